"""Set up before jax is imported: eight virtual CPU devices, cheap compilation and its cache."""

import dataclasses
import importlib.metadata
import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# A shell's background job ignores Ctrl-C, one under nohup also a hang-up, and so would
# every process that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile for longer than they run. XLA's older code generator, without splitting a program
# for threads, takes half the CPU time. XLA ends the process at a flag that it does not know, so
# these flags are given only to the versions in which they were seen: 0.11.2 has no older code
# generator. The memory that programs take by the compiler's accounting stays the same to 0.01%.
VERSION = importlib.metadata.version("jaxlib")
_flags = {"xla_force_host_platform_device_count": "8"}
if VERSION.startswith(("0.10.", "0.11.")):
    _flags["xla_cpu_parallel_codegen_split_count"] = "1"
if VERSION.startswith("0.10."):
    _flags["xla_cpu_use_fusion_emitters"] = "false"
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
_stores = tempfile.TemporaryDirectory()  # removed at the end of the process
os.environ.setdefault("BIG_RETRIEVAL_STORES", _stores.name)
# Where in the code an operation stands: to write that into every program takes a tenth of the time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import pytest  # noqa: E402
from absl import flags  # noqa: E402

from big_retrieval import cli  # noqa: E402

cli.prepare_environment()  # as commands do


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-dir", default=None, help="a folder laid out like tests/golden/data")


@pytest.fixture(scope="session", autouse=True)
def _parsed_flags() -> None:
    """Grain's worker processes read absl flags, which nothing parses under pytest."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


@pytest.fixture(scope="session", autouse=True)
def _messages_on_the_screen() -> None:
    """As commands do."""
    from big_retrieval.runtime import messages

    messages.show()


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The messages so far, as they are on the screen."""
    from big_retrieval.runtime import messages

    lines: list[str] = []
    (handler,) = messages.handlers()

    def keep(record: logging.LogRecord) -> bool:
        lines.append(handler.format(record))
        return True

    handler.addFilter(keep)
    yield lines
    handler.removeFilter(keep)


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The words that stand for `python` where a process need not be started, see tests/warm.py."""
    from tests import warm

    with warm.server(tmp_path_factory.mktemp("warm")) as words:
        yield words


_models: dict[str, Any] = {}
_compiled: dict[Any, Any] = {}


@pytest.fixture(scope="module")
def one_model() -> Iterator[None]:
    """Runs that compute the same step share the compiled step: tracing it takes seconds.

    Not for tests that replace a part of a model or of a loss.
    """
    from big_retrieval.train import run
    from big_retrieval.train.build import BuiltModel

    aside: Any = dict.fromkeys(("data", "evals", "loader", "log_every", "checkpoint_every"))
    aside |= dict.fromkeys(("eval_every", "stop_after", "hang_after", "report"))
    aside |= dict.fromkeys(("best_metric", "best_mode", "final_weights"))
    build, compile_one = run.build_model, run.compile_step

    def build_model(config: Any, mesh: Any, *, words: Any, **sizes: int) -> BuiltModel:
        devices = [device.id for device in mesh.devices.flat]
        key = repr((dataclasses.replace(config, **aside), mesh, devices, sizes, words.to_json()))
        if key not in _models:
            _models[key] = build(config, mesh, words=words, **sizes)
        return dataclasses.replace(_models[key], config=config)

    def compile_step(step: Any, state: Any, batch: Any, mesh: Any) -> Any:
        key = (step, repr(batch))  # the step is of one mesh
        if key not in _compiled:
            _compiled[key] = compile_one(step, state, batch, mesh)
        return _compiled[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "build_model", build_model)
        patch.setattr(run, "compile_step", compile_step)
        yield
