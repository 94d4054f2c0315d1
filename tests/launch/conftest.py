"""Fixtures that start processes."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.helpers import ROOT, environment

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(autouse=True)
def _python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts commands, and kills those that are left."""
    started: list[subprocess.Popen[str]] = []

    def begin(*args: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            args, cwd=ROOT, env={**environment(), **env}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
