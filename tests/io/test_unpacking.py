"""Packed files are unpacked up to a bound, wherever they are read."""

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval.data.formats.open_files import file_table
from big_retrieval.data.text import tokenizers
from big_retrieval.errors import UserError
from big_retrieval.interop.read import read
from big_retrieval.io import regular
from examples.convert_regions import load_array

BOUND = 2**16  # bytes, for a fast test


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular, "MAX_UNPACKED", BOUND, raising=False)
    monkeypatch.setattr(tokenizers, "MAX_FILE", BOUND, raising=False)


@pytest.mark.parametrize("name", ["vocab.txt.gz", "bpe_simple_vocab_16e6.txt.gz", "t.json.gz"])
def test_gzip_files_are_unpacked_up_to_a_bound(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"word\n" * BOUND))
    with pytest.raises(UserError, match=rf"unpacks to more than 0 MiB.*gunzip {path}"):
        tokenizers._read(path)


@pytest.mark.parametrize(
    ("name", "open_file"),
    [
        ("a.npz", file_table),
        ("model.npz", lambda path: read(str(path))),
        ("1.npz", lambda path: load_array(path, "feat")),
    ],
)
@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_npz_files_are_unpacked_up_to_a_bound(
    tmp_path: Path, name: str, open_file: Callable[[Path], Any], kind: int
) -> None:
    rows = np.zeros(100 * BOUND // 8)
    np.save(tmp_path / "feat.npy", rows if kind == zipfile.ZIP_DEFLATED else rows[:10])
    with zipfile.ZipFile(tmp_path / name, "w", kind) as archive:
        archive.write(tmp_path / "feat.npy", "feat.npy")
    with pytest.raises(UserError, match=r"unpacks to \d+ MiB, or is packed in an unusual way"):
        open_file(tmp_path / name)


def test_dense_files_without_compression_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", feat=np.zeros(4 * BOUND))
    assert len(file_table(tmp_path / "a.npz")) == 4 * BOUND


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive"])
def test_damaged_npz_files_are_user_errors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"Cannot read .*1\.npz as \.npz file of plain arrays"):
        load_array(tmp_path / "1.npz", "feat")
