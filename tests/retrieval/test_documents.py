"""Records of documents and queries: columns of BEIR and MS MARCO, and skipped records."""

import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval.data.damage import SkippedRecords
from big_retrieval.errors import Damaged
from big_retrieval.retrieval import build_index, encode
from big_retrieval.retrieval.documents import DocumentReader, DocumentRow, open_records, read
from tests.helpers import user_error

OWN = DocumentReader("queries", {"query": ("query",)}, from_config=True)
ITEMS = [("t", "a"), ("t", "poison"), ("poison", "c"), ("t", "d")]


def read_all(path: Path, text: str, reader: DocumentReader = OWN) -> list[DocumentRow]:
    path.write_text(text, encoding="utf-8")
    records, reader = open_records("queries", str(path), reader)
    blocks = read(records, reader, 2, SkippedRecords("queries"), range(len(records)))
    return [row for rows in blocks for row in rows]


def texts(path: Path, text: str, reader: DocumentReader = OWN) -> dict[str, str]:
    return {row.id: row.values["query"] for row in read_all(path, text, reader)}


def test_beir_columns_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"_id": f"q{n}", "text": f"text {n}"} for n in range(3)]
    path, lines = tmp_path / "queries.jsonl", "".join(json.dumps(row) + "\n" for row in rows)
    assert texts(path, lines) == {"q0": "text 0", "q1": "text 1", "q2": "text 2"}
    assert capsys.readouterr().out == "queries has no column 'query': using 'text'\n"
    with user_error("queries has no column 'body'", "--text=COLUMN"):
        texts(path, lines, DocumentReader("queries", {"query": ("body",)}))


def test_ms_marco_file_without_header_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "queries.tsv"
    lines = '1048585\twhat is "paula" deen\n2\thow far\n'
    assert texts(path, lines) == {"1048585": 'what is "paula" deen', "2": "how far"}
    assert capsys.readouterr().out == f"{path} has no header line: its columns are id, text\n"
    titled = DocumentReader("documents", {"query": ("body",)}, {"query": "title"}, from_config=True)
    rows = read_all(tmp_path / "docs.tsv", "D1\tlong\tshort\n", titled)
    assert rows == [DocumentRow("D1", {"query": ("short", "long")}, "short long")]


@pytest.mark.parametrize("header", ["id\tquery", "_id\ttext", "id\ttext"])
def test_header_line_is_not_a_query(tmp_path: Path, header: str) -> None:
    assert texts(tmp_path / "queries.tsv", f"{header}\nq1\tred\n") == {"q1": "red"}


def test_other_columns_need_flags(tmp_path: Path) -> None:
    path, lines = tmp_path / "other.tsv", "qid\tquestion\nq1\tred\n"
    with user_error("no column 'query'", "qid, question", "--text="):
        texts(path, lines)
    reader = DocumentReader("queries", {"query": ("question",)}, id="qid")
    assert texts(path, lines, reader) == {"q1": "red"}


@pytest.mark.parametrize("has_model", [True, False])
def test_text_or_title_that_cannot_be_encoded_is_skipped(
    has_model: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(*_: Any) -> Any:
        yield [DocumentRow(name, {"text": item}) for name, item in zip("wxyz", ITEMS, strict=True)]

    def bag(items: Any, length: int, normalise: bool) -> np.ndarray:
        if any("poison" in item for item in items):
            raise RuntimeError("odd")
        return np.zeros(len(items))

    def encode_rows(model: Any, rows: Any, fields: Any) -> np.ndarray:
        if any("poison" in row.values["text"] for row in rows):
            raise Damaged("texts, record 0", "it cannot be used (RuntimeError: odd)")
        return np.zeros(len(rows))

    monkeypatch.setattr(encode, "read", read)
    monkeypatch.setattr(build_index, "normalises", lambda config, name: False)
    monkeypatch.setattr(build_index, "encode_rows", encode_rows)
    work: Any = types.SimpleNamespace(
        records=range(4), reader=types.SimpleNamespace(images=(), noun="documents"),
        config=types.SimpleNamespace(fields={"text": types.SimpleNamespace(length=9)}),
        bag_encoder=types.SimpleNamespace(bag=bag), model=object() if has_model else None,
        fields={"text": 1.0}, span=range(4), block=4,
    )  # fmt: skip
    ((ids, rows, embeddings),) = build_index._encoded(work)
    assert ids == [row.id for row in rows] == ["w", "z"]
    assert len(embeddings) == 2
    printed = capsys.readouterr().err
    assert printed.count("it cannot be used (RuntimeError: odd)") == 2
    assert "skipped: 2 of the documents" in printed
