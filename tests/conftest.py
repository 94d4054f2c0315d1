"""Set up before jax is imported: eight virtual CPU devices, cheap compilation and its cache."""

import importlib.metadata
import os
import signal
from pathlib import Path

# A shell's background job ignores Ctrl-C, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NPROC", "16")  # virtual devices deadlock on few cores without it
# Tests compile for longer than they run. XLA's older code generator, without splitting a program
# for threads, takes half the CPU time. XLA ends the process at a flag that it does not know, so
# these flags are given only to the versions in which they were seen. The memory that programs take
# by the compiler's accounting stays the same to 0.01%.
CHEAP = {"xla_cpu_use_fusion_emitters": "false", "xla_cpu_parallel_codegen_split_count": "1"}
KNOWN = importlib.metadata.version("jaxlib").startswith(("0.10.", "0.11."))
_flags = {"xla_force_host_platform_device_count": "8", **(CHEAP if KNOWN else {})}
os.environ.setdefault("XLA_FLAGS", " ".join(f"--{k}={v}" for k, v in _flags.items()))
CACHE = Path(__file__).parent.parent / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
# Small programs are kept, too: every process and every test builds hundreds of the same.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Commands in processes of their own read this, too. Programs as users compile them, e.g. for the
# reference values: JAX_DISABLE_MOST_OPTIMIZATIONS=0
# XLA_FLAGS=--xla_force_host_platform_device_count=8 pytest tests/golden
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest  # noqa: E402
from absl import flags  # noqa: E402

# Several commands are imported here into one process; each has its own --out, --twice and so on.
flags.Flag.allow_override = property(lambda self: True, lambda self, value: None)  # type: ignore


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-dir", default=None, help="a folder laid out like tests/golden/data")


@pytest.fixture(scope="session", autouse=True)
def _parsed_flags() -> None:
    """Grain's worker processes read absl flags, which nothing parses under pytest."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
