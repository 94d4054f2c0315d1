"""Connecting to and losing other processes."""

import jax
import pytest

from big_retrieval.runtime import distributed
from tests.helpers import user_error

VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def test_join_without_variables_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    assert distributed.join_processes(False) == (0, 1)
    assert not jax.distributed.is_initialized()


@pytest.mark.parametrize(
    ("count", "number", "words"),
    [
        (None, None, "Set JAX_NUM_PROCESSES and JAX_PROCESS_ID"),
        ("2", "one", "Set JAX_NUM_PROCESSES and JAX_PROCESS_ID"),
        ("2", "2", "JAX_PROCESS_ID is 2"),
    ],
)
def test_join_rejects_incomplete_variables(
    monkeypatch: pytest.MonkeyPatch, count: str | None, number: str | None, words: str
) -> None:
    for name, value in zip(VARIABLES, ("127.0.0.1:1", count, number), strict=True):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with user_error(words):
        distributed.join_processes(False)
    assert not jax.distributed.is_initialized()


class Ended(Exception):
    """Stands in for the end of the process."""


@pytest.fixture(autouse=True)
def _no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(text: str) -> None:
        raise Ended(text)

    monkeypatch.setattr(distributed, "end", end)


@pytest.mark.parametrize(
    ("processes", "message", "kind"),
    [
        (2, "UNKNOWN: Gloo AllReduce failed: Connection closed by peer", Ended),
        (2, "DEADLINE_EXCEEDED: Barrier timed out", Ended),
        (2, "INVALID_ARGUMENT: shapes", jax.errors.JaxRuntimeError),
        (2, "RESOURCE_EXHAUSTED: out of memory", jax.errors.JaxRuntimeError),
        (1, "UNKNOWN: Gloo AllReduce failed", jax.errors.JaxRuntimeError),
    ],
)
def test_retryable_names_lost_processes(
    processes: int, message: str, kind: type[Exception]
) -> None:
    with (
        pytest.raises(kind) as problem,
        distributed.retryable(processes, lambda: "late: process 1"),
    ):
        raise jax.errors.JaxRuntimeError(f"{message}\nand more")
    if kind is Ended:
        assert str(problem.value) == f"another process is lost, late: process 1 ({message})"
