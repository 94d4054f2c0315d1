"""What threads and worker processes say that they read."""

import errno
import subprocess
import sys
import threading
import time

import pytest

from big_retrieval.runtime import activity
from big_retrieval.runtime.activity import current, reading


@pytest.fixture(autouse=True)
def _unpublished(monkeypatch):
    monkeypatch.setattr(activity, "_board", None)


def test_the_innermost_place_counts_and_the_outer_one_comes_back():
    with reading("pairs.jsonl, line 7"):
        with reading("7.jpg"):
            assert [note.place for note in current()] == ["7.jpg"]
        assert [note.place for note in current()] == ["pairs.jsonl, line 7"]
    assert current() == []


def test_a_note_goes_when_its_reader_fails():
    with pytest.raises(OSError, match="gone"), reading("a"), reading("b"):
        raise OSError("gone")
    assert current() == []


def test_the_thread_that_reads_the_longest_comes_first():
    started, done = threading.Event(), threading.Event()

    def other():
        with reading("slow.png"):
            started.set()
            done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    started.wait()
    with reading("quick.png"):
        assert [note.place for note in current()] == ["slow.png", "quick.png"]
    done.set()
    thread.join()
    assert current() == []


def test_a_note_says_for_how_long():
    note = activity.Note("a.jpg", time.monotonic() - 62)
    assert str(note) == "a.jpg (for 62 s)"


def test_published_notes_are_read_by_another_process(tmp_path):
    long = "ü" * 1000
    with activity.workers() as folder:
        assert folder is not None
        activity.publish(folder / "worker_0")
        with reading("pairs.jsonl, line 7"), reading(long):
            activity._notes.clear()  # what another process sees is the file alone
            (note,) = current()
            assert note.place.startswith("ü" * 200)
            assert long.startswith(note.place.rstrip("�"))
            assert note.seconds < 60
        assert current() == []
    assert not folder.exists()
    assert current() == []


def test_notes_without_a_temporary_folder_stay_unknown(monkeypatch):
    def full(*args, **keys):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(activity.tempfile, "mkdtemp", full)
    with activity.workers() as folder:
        assert folder is None
    assert activity._folders == []


def test_a_published_file_takes_its_room_before_it_is_mapped(tmp_path):
    activity.publish(tmp_path / "worker_0")  # else a full disk kills the process at its first note
    assert (tmp_path / "worker_0").stat().st_blocks * 512 >= activity.SLOTS * activity.SLOT


@pytest.mark.slow
def test_what_a_killed_process_was_reading_stays_known(tmp_path):
    code = (
        "import os, signal; from big_retrieval.runtime import activity;"
        f"activity.publish({str(tmp_path / 'worker_0')!r});"
        "activity.reading('bad.tiff').__enter__(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert [note.place for note in activity.published(tmp_path / "worker_0")] == ["bad.tiff"]
