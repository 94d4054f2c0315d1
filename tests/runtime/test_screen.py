"""Standard streams that go away, fill up, stall or lack characters do not end a command."""

import io
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from big_retrieval import cli
from big_retrieval.runtime import distributed, screen
from big_retrieval.runtime.screen import _Guarded

TEXT = "é ✓ 🙂 \udc80"


@pytest.fixture
def pipe() -> Any:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def text(number: int, *, log: bool, encoding: str = "utf-8") -> io.TextIOWrapper:
    stream = io.TextIOWrapper(io.BufferedWriter(_Guarded(number, log)), encoding=encoding)
    stream.reconfigure(errors="backslashreplace")
    return stream


@pytest.mark.parametrize("log", [True, False])
def test_closed_pipe_becomes_the_null_device(pipe: tuple[int, int], log: bool) -> None:
    reader, writer = pipe
    stream = text(writer, log=log)
    print("first", file=stream, flush=True)
    assert os.read(reader, 100) == b"first\n"
    os.close(reader)
    for _ in range(3):
        print("second", file=stream, flush=True)
    assert os.readlink(f"/proc/self/fd/{writer}") == os.devnull  # for libraries and children, too
    assert writer in screen._closed
    screen._closed.discard(writer)


def test_control_characters_are_escaped(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    stream: Any = screen._guarded(None, 1, False)
    stream = type(stream)(io.BufferedWriter(_Guarded(writer, log=False)), encoding="utf-8")
    print("\x1b]0;title\x07 \x9b2J \x7f\b a\rb", "tab\t é ✓ 🙂", file=stream, flush=True)
    print("\r 1 of 2", end="", file=stream, flush=True)  # a line that is written over
    print("\r", end="", file=stream, flush=True)
    found = os.read(reader, 1000).decode()
    assert found == ("\\x1b]0;title\\x07 \\x9b2J \\x7f\\x08 a\\x0db tab\t é ✓ 🙂\n\r 1 of 2\r")


def test_full_disk_is_an_error_for_results_only() -> None:
    with Path("/dev/full").open("wb") as full:
        print("a log line", file=text(full.fileno(), log=True), flush=True)
        with pytest.raises(OSError, match="No space left"):
            _Guarded(full.fileno(), log=False).write(b"a result")


def test_write_waits_on_a_nonblocking_stream(
    pipe: tuple[int, int],
) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    size, done = 2**20, threading.Event()

    def write() -> None:
        _Guarded(writer, log=False).write(b"x" * size)
        done.set()

    threading.Thread(target=write, daemon=True).start()
    assert not done.wait(0.2)
    taken = 0
    while taken < size:
        taken += len(os.read(reader, 65536))
    assert done.wait(60)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_missing_characters_are_escaped(pipe: tuple[int, int], encoding: str) -> None:
    reader, writer = pipe
    print(TEXT, file=text(writer, log=False, encoding=encoding), flush=True)
    expected = (TEXT + "\n").encode(encoding, "backslashreplace")
    assert os.read(reader, 1000) == expected


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [Broken(), io.TextIOWrapper(io.BytesIO(), "ascii")])
def test_put_never_raises(stream: Any) -> None:
    screen.put(TEXT, stream)
    stream = io.StringIO()
    stream.close()
    screen.put(TEXT, stream)


@pytest.mark.parametrize(("end", "status"), [(cli.fail, 2), (distributed.end, 75)])
def test_process_ends_without_a_screen(
    end: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        pass

    def ended(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", ended)
    monkeypatch.setattr(sys, "stdout", Broken())
    monkeypatch.setattr(sys, "stderr", Broken())
    with pytest.raises(Ended) as found:
        end("a reason")
    assert found.value.args == (status,)
