import io
import sys

import pytest

from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.runtime import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("shown", "stream", "delay", "is_visible"),
    [
        (None, Terminal, 0.0, True),
        (None, io.StringIO, 0.0, False),
        (True, io.StringIO, 0.0, True),
        (True, io.StringIO, 1000.0, False),
        (False, Terminal, 0.0, False),
    ],
)
def test_bar_shows_long_work(
    shown: bool | None,
    stream: type[io.StringIO],
    delay: float,
    is_visible: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "DELAY", delay)
    monkeypatch.setattr(sys, "stderr", out := stream())
    with progress.progress_bar("texts", 3, shown=shown, log_interval=0.0) as bar:
        bar.update(2)
        bar.update(1)
    lines = out.getvalue().splitlines()
    assert bool(lines) == is_visible
    if is_visible:
        assert "3/3" in lines[-1]
        assert "texts" in lines[-1]
    if is_visible and stream is io.StringIO:  # a log: a line per state, nothing is overwritten
        assert "\r" not in out.getvalue()
        assert any("2/3" in line for line in lines)


def test_learning_a_vocabulary_shows_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", out := Terminal())
    learn_wordpiece(["low lower"] * 2, 100)
    assert "texts of the vocabulary" in out.getvalue()
    assert "word pieces" in out.getvalue()
