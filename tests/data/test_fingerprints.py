"""Fingerprints: row indices, runs and indexes notice that their data have changed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval.config import Pairs, Triples
from big_retrieval.data.formats.open_files import table_of
from big_retrieval.data.formats.tables import Chain, Rows, Table
from big_retrieval.data.formats.views import save_rows
from big_retrieval.data.sources import texts_of
from big_retrieval.errors import UserError

COUNT = 5
LINES = [f"{n}.png,text {n}" for n in range(COUNT)]


def write(path: Path, lines: list[str], newline: str = "\n") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(newline.join(["image,captions", *lines, ""]), newline="")
    return path


def test_rows_file_rejects_changed_table(tmp_path: Path) -> None:
    path, file = write(tmp_path / "t.csv", LINES), tmp_path / "rows.npz"
    save_rows(file, np.array([4, 1]), table_of([path])[0])
    source = Pairs(path=str(path), rows=str(file))
    assert [texts_of(source.build(), i, "captions") for i in (0, 1)] == [("text 4",), ("text 1",)]
    write(path, LINES, newline="\r\n")  # other bytes, the same rows
    assert len(source.build()) == 2
    write(path, ["new.png,new", *LINES])
    with pytest.raises(UserError, match=r"t\.csv has changed since .*rows\.npz were chosen\. Res"):
        source.build()
    np.savez(file, **{**np.load(file), "rules": 3})
    with pytest.raises(UserError, match=r"t\.csv is read by other rules than when the rows in"):
        source.build()
    np.save(tmp_path / "rows.npy", [4, 1])  # of an older version
    assert len(Pairs(path=str(path), rows=str(tmp_path / "rows.npy")).build()) == 2


def test_triples_fingerprint_covers_documents(tmp_path: Path) -> None:
    (tmp_path / "triples.tsv").write_text("q0\td1\td2\nq0\td2\td1\n")
    (tmp_path / "queries.tsv").write_text("q0\ta query\n")
    found = set()
    for by_query in (0, 2):
        for text in ("a text", "another text"):
            (tmp_path / "documents.tsv").write_text(f"d1\t{text}\nd2\tb\n")
            paths: Any = {name: str(tmp_path / f"{name}.tsv") for name in ("queries", "documents")}
            source = Triples(path=str(tmp_path / "triples.tsv"), by_query=by_query, **paths)
            found.add(source.build().fingerprint)
    assert len(found) == 4


def test_custom_tables_and_objects_have_no_fingerprint() -> None:
    class Own(Table):
        name = "own"

        def __len__(self) -> int:
            return 3

        def row(self, index: int, columns: Any = None) -> dict[str, Any]:
            raise AssertionError("no row is read for it")

    for table in (
        Own(),
        Rows([{"object": object()}], "own"),
        Rows([{"a": {1: "a", "b": 2}}], "own"),
    ):
        assert (
            table.fingerprint == Chain([Rows([{"a": 1}], "one"), table], "both").fingerprint == ""
        )
    assert Rows([{"a": 1}], "one").fingerprint != Rows([{"a": 2}], "one").fingerprint
