"""Queries and documents in the files that BEIR and MS MARCO ship, without a flag for columns."""

import json
from pathlib import Path

import pytest

from big_retrieval.data.damage import SkippedRecords
from big_retrieval.errors import UserError
from big_retrieval.retrieval.documents import DocumentReader, DocumentRow, open_records, read

OWN = DocumentReader("queries", {"query": ("query",)}, own=True)


def found(path: Path, reader: DocumentReader = OWN) -> dict[str, str]:
    """Id -> text."""
    records, reader = open_records("queries", str(path), reader)
    chunks = read(records, reader, 2, SkippedRecords("queries"), range(len(records)))
    return {row.id: row.values["query"] for rows in chunks for row in rows}


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_beir_has_its_ids_in_another_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"_id": f"q{n}", "text": f"text {n}"} for n in range(3)]
    path = written(tmp_path / "queries.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert found(path) == {"q0": "text 0", "q1": "text 1", "q2": "text 2"}
    assert capsys.readouterr().out == "queries has no column 'query': using 'text'\n"
    with pytest.raises(UserError, match=r"queries has no column 'body'.*--text=COLUMN"):
        found(path, DocumentReader("queries", {"query": ("body",)}))


def test_ms_marco_has_no_header_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "queries.tsv", '1048585\twhat is "paula" deen\n2\thow far\n')
    assert found(path) == {"1048585": 'what is "paula" deen', "2": "how far"}
    assert capsys.readouterr().out == f"{path} has no header line: its columns are id, text\n"
    titled = DocumentReader("documents", {"query": ("body",)}, {"query": "title"}, own=True)
    path = written(tmp_path / "docs.tsv", "D1\tlong\tshort\n")
    records, reader = open_records("documents", str(path), titled)
    (rows,) = read(records, reader, 2, SkippedRecords("documents"), range(1))
    assert rows == [DocumentRow("D1", {"query": ("short", "long")}, "short long")]


def test_a_header_line_is_none_of_the_queries(tmp_path: Path) -> None:
    for header in ("id\tquery", "_id\ttext", "id\ttext"):
        assert found(written(tmp_path / f"{hash(header)}.tsv", f"{header}\nq1\tred\n")) == {
            "q1": "red"
        }
    path = written(tmp_path / "other.tsv", "qid\tquestion\nq1\tred\n")
    with pytest.raises(UserError, match=r"no column 'query'; it has qid, question: .*--text="):
        found(path)
    reader = DocumentReader("queries", {"query": ("question",)}, id="qid")
    assert found(path, reader) == {"q1": "red"}
