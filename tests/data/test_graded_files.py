"""Judged pairs in files of every form, and errors of bad files."""

import csv
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from big_retrieval import config
from big_retrieval.data.build import make_source
from big_retrieval.data.formats import columns
from big_retrieval.data.formats.columns import Keys, encode, first_duplicate, match, scan
from big_retrieval.data.formats.open_files import file_table
from big_retrieval.data.formats.tables import Arrays, Chain, Rows
from big_retrieval.data.formats.views import View, selected
from big_retrieval.data.images.decoding import picture
from big_retrieval.data.stores.headerless import qrels_reader
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.errors import UserError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pairs.csv").write_text("query_id,document_id,score\nq1,10,3\nq2,12,2\n")
    (tmp_path / "queries.json").write_text('{"q1": "red shoes", "q2": "lamp"}')
    (tmp_path / "corpus_1.json").write_text('{"10": {"title": "ten"}, "12": {"title": "twelve"}}')
    return tmp_path


def graded(folder, path, **keys):
    keys = {
        "queries": str(folder / "queries.json"),
        "documents": str(folder / "corpus_1.json"),
        "text": ("text", "title"),
        **keys,
    }
    return make_source(config.Graded(path=str(folder / path), **keys))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "a.json is not JSON"),
        ("a.json", "[" * 100_000, "a.json is not a whole JSON list"),
        ("a.json", "3", "neither an object nor a list"),
        ("a.json", "{}", "is empty"),
        ("a.json", '{"q": {"d": 1, "d": 2}}', "the key 'd' is there twice"),
        ("a.json", '{"q": {"d": 1}, "q": {}}', "the key 'q' is there twice"),
        ("a.json", '{"q": 3}', "query 1, not documents with scores, such as"),
        ("a.json", '{"q": {"d": "x"}}', "a.json, query .q.: 'score' is 'x', not a number"),
        (
            "a.json",
            '{"q1": {"10": 1}, "q2": {}}',
            "1 of 2 pairs have no document_id, .*query .q2.;",
        ),
        ("a.json", "[3]", "row 1, not a JSON object with keys"),
        ("a.qrels", "q1 0 10 3\nq1 10 3\n", "line 2: the line has 3 cells; lines before have 4"),
        ("a.qrels", "q1 0 10 3\n\nq1 0 11 x\n", "line 3: 'score' is 'x', not a number"),
        ("a.qrels", "q1 0 10 -1\n", "line 1: 'score' is -1; it must be 0 or more, and finite"),
        ("a.csv", "query_id,document_id,score\nq1,10,3\nq1,11,x\n", "line 3: 'score' is 'x'"),
        ("a.csv", "query_id,document_id\nq1,10\n", "a has no column 'score'"),
        ("a.bin", "", "a.bin is of no known kind"),
    ],
)
def test_graded_rejects_bad_file_of_pairs(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(UserError, match=message):
        graded(folder, name)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"10": 3}', "row 1, not a JSON object with keys"),
        ('["10"]', "row 1, not a JSON object with keys"),
        ('{"10": {"title": "a", "document_id": "7"}}', "row 1, its 'document_id' is '7', not"),
        ('{"10": {"title": "a"}, "10": {"title": "b"}}', "the key '10' is there twice"),
        (
            '[{"document_id": 10}, {"document_id": "10"}]',
            r"row 2: .*'10' is there already \(.*1",
        ),
    ],
)
def test_graded_rejects_bad_file_of_documents(folder, rows, message):
    (folder / "corpus_1.json").write_text(rows)
    with pytest.raises(UserError, match=message):
        graded(folder, "pairs.csv")


def test_graded_names_missing_files(folder):
    with pytest.raises(UserError, match=r"nowhere.csv is not on this machine.*ids of query and"):
        graded(folder, "nowhere.csv")
    with pytest.raises(UserError, match=r"docs.json is not on this machine.*, or run get.sh"):
        graded(folder, "pairs.csv", documents="docs.json", how_to_get="run get.sh")


CLICKS = """query,product_id,title,image_local,score_linear,position
red shoes,p1,a shoe,1.png,100,1
red shoes,p2,"boot, brown",2.png,99,2
lamp,p1,a shoe,1.png,55,46
lamp,p3,lamp,,20,81
"""


@pytest.fixture
def clicks(tmp_path):
    (tmp_path / "query_0_product_id_0.csv").write_text(CLICKS)
    for number in (1, 2):
        Image.new("RGB", (4, 3), (number, 0, 0)).save(tmp_path / f"{number}.png")
    return {
        "path": str(tmp_path / "query_0_product_id_0.csv"),
        "query": "query",
        "document": "product_id",
        "score": "score_linear",
        "image": "image_local",
    }


def test_graded_reads_file_of_documents_without_queries(clicks, tmp_path):
    rows = {f"p{i}": {"title": f"title {i}", "image_local": "1.png"} for i in range(1, 5)}
    (tmp_path / "corpus_1.json").write_text(json.dumps(rows))
    found = make_source(config.Graded(**clicks, documents=str(tmp_path / "corpus_1.json")))
    assert len(found.documents) == 4
    record = found[1]
    assert (record["title"], record["pair.title"]) == ("title 2", "boot, brown")
    assert picture(record["image"])[0, 0, 0] == 1
    assert "title" not in found.queries[0]
    assert list(found.captions())[2:] == [f"title {i}" for i in range(1, 5)]


def test_graded_reads_file_of_queries_without_documents(clicks, tmp_path):
    (tmp_path / "queries.jsonl").write_text(
        '{"query": "lamp", "text": "a lamp"}\n{"query": "red shoes", "text": "shoes in red"}'
    )
    keys = {**clicks, "queries": str(tmp_path / "queries.jsonl"), "text": ("text", "title")}
    found = make_source(config.Graded(**keys))
    assert found[0]["text"] == "shoes in red"
    assert list(found.captions()) == ["a lamp", "shoes in red", "a shoe", "boot, brown", "lamp"]


def test_scan_equals_rows_in_every_table(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "BLOCK", 2)
    rows = [{"a": str(i), "n": i / 2, "t": "x" * i} for i in range(5)]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    with (tmp_path / "r.csv").open("w", newline="") as file:
        csv.writer(file).writerows([rows[0].keys(), *(row.values() for row in rows)])
    np.savez(tmp_path / "r.npz", **{key: np.array([row[key] for row in rows]) for key in rows[0]})
    tables = [
        file_table(tmp_path / "r.jsonl"),
        Rows(rows, "r"),
        file_table(tmp_path / "r.parquet"),
        file_table(tmp_path / "r.csv"),
        Arrays(tmp_path / "r.npz"),
        Chain([Rows(rows[:2], "r"), Rows(rows[2:], "r")], "r"),
    ]
    tables += [View(Chain([each, each], "r"), np.arange(5, 10)) for each in tables]
    for table in tables:
        found = scan(table, ("a", "t"), ("n",))
        assert found.texts["a"].to_pylist() == ["0", "1", "2", "3", "4"]
        assert found.texts["t"].to_pylist() == [None, "x", "xx", "xxx", "xxxx"]
        assert found.numbers["n"].tolist() == [0, 0.5, 1, 1.5, 2]
        assert found.columns == {"a", "n", "t"}
        chosen = selected(table, {"a": "3"})
        assert (len(chosen), chosen.row(0)["t"]) == (1, "xxx")


def test_scan_formats_whole_numbers(tmp_path):
    pq.write_table(pa.table({"id": [1.0, float("nan"), 3.0]}), tmp_path / "r.parquet")
    found = [
        scan(file_table(tmp_path / "r.parquet"), ("id",)),
        scan(Rows([{"id": 1.0}, {"id": None}, {"id": 3}], "r"), ("id",)),
    ]
    assert [each.texts["id"].to_pylist() for each in found] == [["1", None, "3"]] * 2


def test_encode_match_and_keys():
    texts = pa.array(["b", "a", "b", "\U0001f600", "é"], columns.TEXT)
    codes, different = encode(texts)
    assert codes.tolist() == [0, 1, 0, 2, 3]
    assert match(different, texts).tolist() == [0, 1, 3, 4]
    assert first_duplicate(texts) == (2, 0)
    assert first_duplicate(different) is None
    keys = Keys(different)
    assert [keys.find(key) for key in ("b", "a", "\U0001f600", "é", "c", "")] == [
        0, 1, 2, 3, None, None
    ]  # fmt: skip


def test_qrels_reader_accepts_carriage_returns(tmp_path):
    path = tmp_path / "a.qrels"
    path.write_bytes(b"q1 0 d1 1\rq2 0 d3 1\r")
    store = open_store([path], qrels_reader(path, ("q", "d", "s")))
    assert [store.row(i) for i in range(len(store))] == [
        {"q": "q1", "d": "d1", "s": "1"},
        {"q": "q2", "d": "d3", "s": "1"},
    ]


def test_graded_reads_parquet_with_images(tmp_path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (5, 4), (7, 0, 0)).save(buffer, "PNG")
    images = [{"bytes": buffer.getvalue(), "path": None}, None]
    columns = {
        "image": pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()})),
        "query": ["a", "b"], "query_id": ["qa", "qb"], "product_id": ["1", "2"],
        "title": ["one", None], "score_linear": [100, 99], "position": [1, 2],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "in_domain-00000.parquet")
    path = str(tmp_path / "in_domain-*.parquet")
    pairs = config.Graded(
        path=path, document="product_id", score="score_linear", image="image"
    ).build()
    assert picture(pairs[0]["image"])[0, 0, 0] == 7
    assert pairs[1]["image"] is None
    assert [record["title"] for record in pairs] == ["one", None]
