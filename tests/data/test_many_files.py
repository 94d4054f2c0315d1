"""More data files than a process may open, and files that change between two reads."""

import os
import pickle
import subprocess
import sys

import pytest

from big_retrieval.errors import UserError
from big_retrieval.io import handles
from tests.data import many_files
from tests.helpers import ROOT, environment


def test_more_files_than_descriptors_are_read_by_threads_and_processes(tmp_path):
    found = subprocess.run(
        [sys.executable, "-m", many_files.__name__, tmp_path], cwd=ROOT, env=environment(),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("again", ["reopened", "unpickled"])
def test_a_file_that_changed_between_two_reads_is_an_error(tmp_path, again):
    path = tmp_path / "a.txt"
    path.write_text("first")
    file = handles.RandomAccessFile(path)
    assert file.read(0, 9) == b"first"
    other = tmp_path / "b.txt"
    other.write_text("another")
    other.rename(path)
    handles._handles.clear()
    if again == "unpickled":
        file = pickle.loads(pickle.dumps(file))
    with pytest.raises(UserError, match=r"a\.txt was changed while it was in use\. Run"):
        file.read(0, 9)


def test_a_file_that_is_cut_between_two_reads_gives_no_part_of_a_text(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("first\nsecond\n")
    file = handles.RandomAccessFile(path)
    assert file.read(6, 12) == b"second"
    os.truncate(path, 9)
    with pytest.raises(UserError, match=r"a\.tsv was changed while it was in use"):
        file.read(6, 12)


def test_a_removed_file_is_an_error(tmp_path):
    (tmp_path / "a.txt").touch()
    file = handles.RandomAccessFile(tmp_path / "a.txt")
    (tmp_path / "a.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.txt"):
        file.read(0, 9)
