"""Messages: levels, streams and processes."""

import io
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from big_retrieval.runtime import messages
from tests.helpers import ROOT, environment

log = logging.getLogger("big_retrieval.tests.messages")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = messages.settings()
    yield
    messages.show(**before)


def say_all() -> None:
    for name, level in messages.LEVELS.items():
        log.log(level, f"at {name}")


@pytest.mark.parametrize(
    ("shown", "out", "err"),
    [
        ({}, "at info\n", "warning: at warning\nerror: at error\n"),
        ({"results": True}, "", "at info\nwarning: at warning\nerror: at error\n"),
        ({"level": logging.WARNING}, "", "warning: at warning\nerror: at error\n"),
        ({"level": logging.ERROR}, "", "error: at error\n"),
        ({"program": "launch", "level": logging.ERROR}, "", "launch: error: at error\n"),
        (
            {"process": 3},
            "", "[process 3] warning: at warning\n[process 3] error: at error\n",
        ),
        (
            {"process": 3, "level": logging.DEBUG},
            "[process 3] debug: at debug\n[process 3] at info\n",
            "[process 3] warning: at warning\n[process 3] error: at error\n",
        ),
    ],
)  # fmt: skip
def test_show_selects_levels_and_streams(
    shown: dict[str, int], out: str, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    messages.show(**shown)
    assert messages.settings().items() >= shown.items()
    say_all()
    assert tuple(capsys.readouterr()) == (out, err)


def test_about_begins_messages(capsys: pytest.CaptureFixture[str]) -> None:
    with messages.about("retrieval/test"):
        log.info("100% done")  # no argument, so nothing is put in
        log.warning("cut\x1b[2J short")
    log.info("done")
    found = capsys.readouterr()
    assert found.out == "retrieval/test: 100% done\ndone\n"
    assert found.err == "warning: retrieval/test: cut\\x1b[2J short\n"


def test_hidden_messages_reach_other_handlers(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    messages.hide()
    with caplog.at_level(logging.INFO):
        log.info("heard")
    assert set(caplog.messages) == {"heard"}
    assert tuple(capsys.readouterr()) == ("", "")


@pytest.mark.parametrize("closed", [False, True])
def test_failing_output_raises_nothing(monkeypatch: pytest.MonkeyPatch, closed: bool) -> None:
    """A full disk, or a stream that was closed."""
    stream = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)
    if closed:
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    messages.show()
    say_all()


PROGRAM = """
import logging, sys
from absl import logging as theirs
from big_retrieval import cli
from big_retrieval.cli.option_groups import CommonOptions

def main(options: CommonOptions):
    log = logging.getLogger("big_retrieval.somewhere")
    log.debug("ours debug"); log.info("ours info"); log.warning("ours warning")
    theirs.info("absl info"); theirs.warning("absl warning")
    logging.getLogger("jax._src").warning("jax warning"); theirs.error("absl error")

cli.run({"": main}, sys.argv[1:], name="example", doc="", log=True)
"""


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), ["ours info", "ours warning", "absl warning", "jax warning", "absl error"]),
        (("--verbosity=warning",), ["ours warning", "absl warning", "jax warning", "absl error"]),
        (("--verbosity=error",), ["absl error"]),
        (
            ("--verbosity=debug",),
            ["ours debug", "ours info", "ours warning", "absl info", "absl warning",
             "jax warning", "absl error"],
        ),
    ],
)  # fmt: skip
def test_verbosity_of_package_and_libraries(flags: tuple[str, ...], expected: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *flags],
        cwd=ROOT, env=environment(), text=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (done.stdout + done.stderr).splitlines()
    found = [" ".join(line.split()[-2:]) for line in lines]
    assert sorted(found) == sorted(expected)
    if "ours warning" in expected:
        assert "warning: ours warning" in lines
    if "ours info" in expected:
        assert "ours info" in done.stdout.splitlines()
