"""Notes of the records that threads and worker processes read."""

import errno
import subprocess
import sys
import threading

import pytest

from big_retrieval.runtime import activity
from big_retrieval.runtime.activity import current, reading


@pytest.fixture(autouse=True)
def _unpublished(monkeypatch):
    monkeypatch.setattr(activity, "_board", None)


def test_innermost_note_counts():
    with reading("pairs.jsonl, line 7"):
        with reading("7.jpg"):
            assert [note.place for note in current()] == ["7.jpg"]
        assert [note.place for note in current()] == ["pairs.jsonl, line 7"]
    assert current() == []


def test_failed_reader_removes_its_note():
    with pytest.raises(OSError, match="gone"), reading("a"), reading("b"):
        raise OSError("gone")
    assert current() == []


def test_oldest_note_comes_first():
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


def test_published_notes_are_read(tmp_path):
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


def test_workers_without_temporary_folder(monkeypatch):
    def full(*args, **keys):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(activity.tempfile, "mkdtemp", full)
    with activity.workers() as folder:
        assert folder is None
    assert activity._folders == []


def test_published_file_is_allocated(tmp_path):
    activity.publish(tmp_path / "worker_0")  # else a full disk kills the process at its first note
    assert (tmp_path / "worker_0").stat().st_blocks * 512 >= activity.SLOTS * activity.SLOT


@pytest.mark.slow
def test_notes_of_a_killed_process_stay(tmp_path):
    code = (
        "import os, signal; from big_retrieval.runtime import activity;"
        f"activity.publish({str(tmp_path / 'worker_0')!r});"
        "activity.reading('bad.tiff').__enter__(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert [note.place for note in activity.read_notes(tmp_path / "worker_0")] == ["bad.tiff"]
