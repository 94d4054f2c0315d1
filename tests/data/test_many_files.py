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


def test_handles_read_more_files_than_descriptors(tmp_path):
    found = subprocess.run(
        [sys.executable, "-m", many_files.__name__, tmp_path], cwd=ROOT, env=environment(),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("again", ["reopened", "unpickled"])
def test_handles_reject_replaced_file(tmp_path, again):
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


def test_handles_reject_truncated_file(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("first\nsecond\n")
    file = handles.RandomAccessFile(path)
    assert file.read(6, 12) == b"second"
    os.truncate(path, 9)
    with pytest.raises(UserError, match=r"a\.tsv was changed while it was in use"):
        file.read(6, 12)


def test_handles_reject_removed_file(tmp_path):
    (tmp_path / "a.txt").touch()
    file = handles.RandomAccessFile(tmp_path / "a.txt")
    (tmp_path / "a.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.txt"):
        file.read(0, 9)
