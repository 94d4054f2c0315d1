"""Set up before jax is imported: eight virtual CPU devices and a compilation cache."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NPROC", "16")  # virtual devices deadlock on few cores without it
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
CACHE = Path(__file__).parent.parent / ".cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
# Most tests compile for longer than they run; commands in processes of their own read this, too.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
OPTIMIZED = ("golden", "plan")  # compiled as users' programs are
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jax  # noqa: E402
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


@pytest.fixture(scope="module", autouse=True)
def _optimizations(request: pytest.FixtureRequest) -> None:
    """Reference values and the compiler's memory are looked at in optimised programs."""
    plain = request.path.parent.name not in OPTIMIZED
    jax.config.update("jax_disable_most_optimizations", plain)
