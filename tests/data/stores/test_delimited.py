"""CSV and TSV files: a mistake costs its own line, and nothing after it is lost."""

from pathlib import Path
from typing import Any

import pytest

from big_retrieval.data.stores.delimited import LARGEST_RECORD, delimited
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.errors import Damaged


def rows_of(path: Path, content: str | bytes, delimiter: str = ",") -> list[Any]:
    """Line number and cells of each row; of damaged ones the reason."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    store, rows = open_store([path], delimited(delimiter)), []
    for index in range(len(store)):
        number = int(store.place(index).rpartition(" ")[2])
        try:
            rows.append((number, *store.row(index).values()))
        except Damaged as damaged:
            rows.append((number, damaged.why.split(" (")[0].split(":")[0]))
    return rows


OPEN = "a quote in it is not closed"
LONG = f"the record is longer than {LARGEST_RECORD:,} characters"
RAGGED = "{} cells, but the header has 2"


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ('a,b\n"x,1","y\nz"\n"q""q",r\n', [(2, "x,1", "y\nz"), (4, 'q"q', "r")]),
        ('a,b\n1,"2\n3,4\n5,6\n', [(2, OPEN), (3, "3", "4"), (4, "5", "6")]),
        ('a,b\n1,"2\n3,"4"\n5,6\n', [(2, OPEN), (3, "3", "4"), (4, "5", "6")]),
        ('a,b\n1,"2\n3",4\n5,6\n', [(2, OPEN), (3, '3"', "4"), (4, "5", "6")]),
        ('a,b\n"1"x,2\n5,6\n', [(2, OPEN), (3, "5", "6")]),
        ('a,b\n1,x "y" z\n', [(2, "1", 'x "y" z')]),
        ("a,b\n1\n1,2,3\n5,6\n", [(2, RAGGED.format(1)), (3, RAGGED.format(3)), (4, "5", "6")]),
        ("a,b\r\n1,2\r\n\r\n3,4", [(2, "1", "2"), (4, "3", "4")]),
        ("a,b\r1,2\r3,4\r", [(2, "1", "2"), (3, "3", "4")]),
        ("\ufeffa,b\n007,NA\n1e3,\n", [(2, "007", "NA"), (3, "1e3", "")]),
        ("a,b\n1,é\n".encode("utf-16"), [(2, "1", "é")]),
        ("a,b\n1,é\n".encode("cp1252"), [(2, "1", "é")]),
        ("2023,b\n1,2\n", [(2, "1", "2")]),
        ("a;b\n1,5;2\n", [(2, "1,5", "2")]),
        ("a|b\n1,5|2\n", [(2, "1,5", "2")]),
        ("a;b,c\n1;5,2\n", [(2, "1;5", "2")]),
        ('a,b\n1,"' + "x" * (LARGEST_RECORD + 9) + "\n3,4\n", [(2, LONG), (3, "3", "4")]),
    ],
)  # fmt: skip
def test_rows_of_csv(content: str | bytes, rows: list[Any], tmp_path: Path) -> None:
    assert rows_of(tmp_path / "a.csv", content) == rows


def test_tsv_with_stray_quotes_has_quotes_as_letters(tmp_path: Path, said: list[str]) -> None:
    content = 'a\tb\n1\t"x\n2\t"y"\n'
    assert rows_of(tmp_path / "a.tsv", content, "\t") == [(2, "1", '"x'), (3, "2", '"y"')]
    assert any("quotes are letters" in line for line in said)
    content = 'a\tb\n1\t"x\ty"\n'
    assert rows_of(tmp_path / "b.tsv", content, "\t") == [(2, "1", "x\ty")]
