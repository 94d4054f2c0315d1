import signal
from collections.abc import Iterator

import pytest

from big_retrieval.sweep import runner
from tests.helpers import ROOT
from tests.sweep.stubs import STUB


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replaces the programs of runs by `STUB`; checks that signal handlers are restored."""
    monkeypatch.setattr(runner, "MODULE", STUB)
    monkeypatch.setattr(runner, "COMMANDS", STUB)
    monkeypatch.setattr(runner, "LOOK", 0.02)
    handlers = [signal.getsignal(number) for number in runner.SIGNALS]
    yield
    assert [signal.getsignal(number) for number in runner.SIGNALS] == handlers
