"""`big-retrieval data split`: the written files contain the source, in four splits."""

import dataclasses
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from big_retrieval.config import Graded
from big_retrieval.data.images.decoding import picture
from big_retrieval.data.judged import split_files
from big_retrieval.data.judged.four_way import SPLITS, draw_split
from big_retrieval.errors import UserError
from tests.helpers import in_process

RNG = np.random.default_rng(0)
PAIRS = sorted({(int(q), int(d)) for q, d in RNG.integers(0, 30, (400, 2))})


def score(query, document):
    return 1 + (7 * query + 3 * document) % 100


@pytest.fixture
def log(tmp_path):
    """A click log with all columns in one file; query 29 is query 0 in capitals."""
    lines = ["query,product_id,title,image_local,score_linear,position"]
    for q, d in PAIRS:
        text = " QUERY 0" if q == 29 else f"query {q}"
        image = f"{d}.png" if d else ""
        lines.append(f"{text},p{d},Title {d},{image},{score(q, d)},{q + d}")
    for d in range(1, 30):
        Image.new("RGB", (4, 4), (d, 0, 0)).save(tmp_path / f"{d}.png")
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    return Graded(
        path=str(tmp_path / "log.csv"), query="query", document="product_id",
        score="score_linear", image="image_local",
    )  # fmt: skip


@pytest.fixture
def files(tmp_path):
    """The same pairs in three files, with columns named like the columns of the split."""
    pairs = [{"q": q, "d": d, "score": score(q, d), "split": "x"} for q, d in PAIRS]
    queries = [{"qid": q, "text": f"query {q}", "kind": None} for q in range(31)]
    documents = [
        {"d": d, "title": f"Title {d % 20}", "brand": f"b{d % 9}", "tags": ["a", str(d)], "part": 1}
        for d in range(40)
    ]
    for name, rows in (("pairs", pairs), ("queries", queries), ("documents", documents)):
        text = "\n".join(json.dumps(row) for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    return Graded(
        path=str(tmp_path / "pairs.jsonl"), query="q", document="d",
        queries=str(tmp_path / "queries.jsonl"), query_key="qid",
        documents=str(tmp_path / "documents.jsonl"), text=("text", "title"),
    )  # fmt: skip


def read_back(summary):
    """Returns the four sources of split.json."""
    return {
        name: Graded(**{k: tuple(x) if isinstance(x, list) else x for k, x in keys.items()}).build()
        for name, keys in summary["read"].items()
    }


def ids(side):
    return side.ids().to_pylist()


def test_split_files_divides_click_log(log, tmp_path) -> None:
    out = tmp_path / "out"
    summary = split_files.split_files(log.build(), log, split_files.SplitOptions(seed=1), out)
    sources, seen = read_back(summary), {}
    for name, source in sources.items():
        found = summary["splits"][name]
        assert found["pairs"] == len(source) > 0
        assert found["queries"] == len(source.queries)
        assert found["documents"] == len(source.documents)
        for record in (source[index] for index in range(len(source))):
            document = int(record["product_id"][1:])
            query = 29 if record["query"] == " QUERY 0" else int(record["query"].split()[1])
            assert record["title"] == f"Title {document}"
            assert record["score_linear"] == score(query, document)
            assert int(record["position"]) == query + document  # of the pair: not that of another
            if document:
                assert picture(record["image"])[0, 0, 0] == document
            else:
                assert record["image"] is None
            seen[query, document] = name
    assert sorted(seen) == PAIRS
    assert sum(found["pairs"] for found in summary["splits"].values()) == len(PAIRS)
    training, novel = sources["in_domain"], sources["zero_shot"]
    assert not set(ids(training.queries)) & set(ids(novel.queries))
    assert not set(ids(training.documents)) & set(ids(novel.documents))
    assert ids(training.documents) == ids(sources["novel_query"].documents)
    assert summary["queries_that_share_their_text"] == 1
    parts = {row["query"]: (row["part"], row["use"]) for row in rows_of(out / "queries.parquet")}
    assert parts["query 0"] == parts[" QUERY 0"]


def rows_of(path):
    return pq.read_table(path).to_pylist()


def test_split_files_keeps_groups_together(files, tmp_path) -> None:
    out = tmp_path / "out"
    options = split_files.SplitOptions(group_column="brand", query_share=0.5)
    summary = split_files.split_files(files.build(), files, options, out)
    documents = rows_of(out / "documents.parquet")
    assert len(documents) == 40
    assert len({(x["brand"], x["part"]) for x in documents}) == 9
    assert [x["tags"] for x in documents] == [["a", str(d)] for d in range(40)]
    assert {x["part_before"] for x in documents} == {1}
    assert {x["split_before"] for x in rows_of(out / "pairs.parquet")} == {"x"}
    assert set(summary["renamed_columns"]) == {"pairs.parquet: split", "documents.parquet: part"}
    queries = rows_of(out / "queries.parquet")
    assert [x["text"] for x in queries] == [f"query {q}" for q in range(30)]
    assert {x["kind"] for x in queries} == {None}
    assert summary["skipped"] == ["1 of 31 rows of queries are not judged"]
    assert summary["queries"] == {"training": 15, "novel": 15}
    assert summary["document_texts_on_both_sides"] > 0
    sources = read_back(summary)
    assert sum(len(source) for source in sources.values()) == len(PAIRS)
    for name, source in sources.items():
        for index in range(len(source)):
            record = source[index]
            assert record["score"] == score(int(record["q"]), int(record["d"]))
            assert record["text"] == f"query {record['q']}"
        assert summary["splits"][name]["dev_queries"] <= len(source.queries)


def test_split_files_converts_clicks_once(tmp_path) -> None:
    lines = ["q,d,clicks", *(f"q{q},d{d},{d}" for q in range(10) for d in range(8))]
    (tmp_path / "clicks.csv").write_text("\n".join(lines))
    config = Graded(
        path=str(tmp_path / "clicks.csv"), query="q", document="d", score="clicks",
        score_from="clicks", text=("q",),
    )  # fmt: skip
    source = config.build()
    summary = split_files.split_files(source, config, split_files.SplitOptions(), tmp_path / "out")
    found = {}
    for each in read_back(summary).values():
        found |= {(x["q"], x["d"]): x["clicks"] for x in (each[i] for i in range(len(each)))}
    expected = (source[index] for index in range(len(source)))
    assert found == {(x["q"], x["d"]): x["clicks"] for x in expected}
    assert summary["skipped"] == ["10 of 80 pairs are skipped: they have no clicks"]


def test_split_files_rejects_leak(log, tmp_path, monkeypatch) -> None:
    def leaky(queries, documents, options):
        parts = draw_split(queries, documents, options)
        trains = parts.query_trains.copy()
        first = queries.index("query 0")  # its twin stays where it is
        trains[first] = not trains[first]
        return dataclasses.replace(parts, query_trains=trains)

    monkeypatch.setattr(split_files, "draw_split", leaky)
    message = r"leaks: the query 'query 0' is on both sides \(1 such\)"
    with pytest.raises(UserError, match=message):
        split_files.split_files(log.build(), log, split_files.SplitOptions(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_split_files_rejects_bad_options(log, files, tmp_path) -> None:
    for options, message in (
        (split_files.SplitOptions(group_column="colour"), "no column 'colour'"),
        (split_files.SplitOptions(query_share=0.001), "one part is empty"),
    ):
        with pytest.raises(UserError, match=message):
            split_files.split_files(files.build(), files, options, tmp_path / "out")
    path = tmp_path / "documents.jsonl"
    path.write_text(path.read_text().replace('"brand": "b8"', '"brand": 8'))
    with pytest.raises(UserError, match="column 'brand' has values of different types"):
        split_files.split_files(files.build(), files, split_files.SplitOptions(), tmp_path / "out")
    assert not (tmp_path / "out" / "split.json").exists()


def test_split_command_writes_and_reports(log, tmp_path) -> None:
    given = [
        f"--data.path={log.path}", "--data.query=query", "--data.document=product_id",
        "--data.score=score_linear", "--data.image=image_local", "--data.text=query,title",
    ]  # fmt: skip
    done = in_process(
        "data", "split", *given, f"--out={tmp_path / 'out'}", "--seed=3", "--query-share=0.7"
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "split.json").read_text())
    assert (summary["seed"], summary["query_share"]) == (3, 0.7)
    for name in SPLITS:
        assert f"{name:15} {summary['splits'][name]['pairs']:>10,} pairs" in done.stdout
    assert "leaks           none" in done.stdout
    assert "1 queries have the text of another query" in done.stdout
    assert "--config.data.where='(\"split=in_domain\",)'" in done.stdout
    for flags, message in (
        (["--out=x"], "--data.path is missing"),
        (given, "--out is missing"),
        ([*given, "--data.score=", "--out=x"], "--data.score is empty"),
        ([*given, "--out=x", "--query_share=2"], "--query_share is 2.0; it must be above 0"),
    ):
        done = in_process("data", "split", *flags)
        assert done.returncode == 2
        assert message in done.stderr
