"""Set up before jax is imported: eight virtual CPU devices, cheap compilation and its cache."""

import importlib.metadata
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# A shell's background job ignores Ctrl-C, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NPROC", "16")  # virtual devices deadlock on few cores without it
# Tests compile for longer than they run. XLA's older code generator, without splitting a program
# for threads, takes half the CPU time. XLA ends the process at a flag that it does not know, so
# these flags are given only to the versions in which they were seen.
CHEAP = {"xla_cpu_use_fusion_emitters": "false", "xla_cpu_parallel_codegen_split_count": "1"}
USUAL = {"xla_cpu_use_fusion_emitters": True, "xla_cpu_parallel_codegen_split_count": 32}
KNOWN = importlib.metadata.version("jaxlib").startswith(("0.10.", "0.11."))
_flags = {"xla_force_host_platform_device_count": "8", **(CHEAP if KNOWN else {})}
os.environ.setdefault("XLA_FLAGS", " ".join(f"--{k}={v}" for k, v in _flags.items()))
CACHE = Path(__file__).parent.parent / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
# Small programs are kept, too: every process and every test builds hundreds of the same.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Commands in processes of their own read this, too.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
OPTIMIZED = ("plan",)  # compiled as users' programs are
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jax  # noqa: E402
import pytest  # noqa: E402
from absl import flags  # noqa: E402
from jax._src import compiler  # noqa: E402  # nothing public sets options for all programs

# Several commands are imported here into one process; each has its own --out, --twice and so on.
flags.Flag.allow_override = property(lambda self: True, lambda self, value: None)  # type: ignore


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-dir", default=None, help="a folder laid out like tests/golden/data")


@pytest.fixture(scope="session", autouse=True)
def _parsed_flags() -> None:
    """Grain's worker processes read absl flags, which nothing parses under pytest."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


@pytest.fixture(scope="module", autouse=True)
def _optimizations(request: pytest.FixtureRequest) -> Iterator[None]:
    """The compiler's memory is looked at in optimised programs.

    A process reads XLA_FLAGS once, so these programs get the usual flags as options of their own.
    """
    plain = request.path.parent.name not in OPTIMIZED
    jax.config.update("jax_disable_most_optimizations", plain)
    with pytest.MonkeyPatch.context() as patch:
        if KNOWN and not plain:
            patch.setattr(compiler, "get_compile_options", _usual_options)
        yield


_options = compiler.get_compile_options


def _usual_options(*args: Any, env_options_overrides: Any = None, **kwargs: Any) -> Any:
    """jax's compile options, with the compiler's own defaults in place of `CHEAP`."""
    return _options(*args, env_options_overrides=USUAL | (env_options_overrides or {}), **kwargs)
