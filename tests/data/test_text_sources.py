"""Text retrieval data in published forms: DPR, MS MARCO triples, BEIR."""

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import Beir, Dpr, Graded, Triples, recipe
from big_retrieval.config.checks import check
from big_retrieval.data.build import make_source
from big_retrieval.data.fields.labels import number_of
from big_retrieval.data.judged.graded import GradedPairs
from big_retrieval.data.negatives import NegativeSampling, draw_negatives
from big_retrieval.data.order import Order
from big_retrieval.data.passages.collection import Collection
from big_retrieval.data.pipeline import train_batches
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.errors import Damaged, UserError
from tests.helpers import lexical_texts, tiny
from tests.readers import text_reader


def passage(title: str, text: str, **more: Any) -> dict[str, Any]:
    return {"title": title, "text": text, **more}


QUESTIONS = [
    {
        "question": "who’s first",
        "answers": ["one", "1"],
        "positive_ctxs": [passage("T", "line\nend", passage_id="7"), passage("U", "second")],
        "hard_negative_ctxs": [passage("H", "hard"), passage("T", "line\nend")],
        "negative_ctxs": [passage("N", "easy 1"), passage("N", "easy 2")],
    },
    {"question": "2?", "answer": "two", "positive_ctxs": [passage("", 'a "quoted" \\ one')]},
]


def write(path: Path, *rows: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows))
    return str(path)


@pytest.mark.parametrize("form", ["lines", "array", "indented"])
def test_dpr_reads_every_form(tmp_path: Path, form: str) -> None:
    path = tmp_path / ("train.jsonl" if form == "lines" else "train.json")
    if form == "lines":
        write(path, *QUESTIONS)
    else:
        path.write_text(json.dumps(QUESTIONS, indent=4 if form == "indented" else None))
    of = make_source(Dpr(path=str(path)))
    first, second = of
    negatives = [passage("H", "hard", pool=0)]
    negatives += [passage("N", f"easy {n}", pool=1) for n in (1, 2)]
    assert first == {
        **{"id": "train-000000", "query": "who's first", "text": "line end", "title": "T"},
        **{"negatives": negatives, "answers": ("one", "1"), "document_id": "7"},
    }
    assert (second["title"], second["text"]) == ("", 'a "quoted" \\ one')
    assert (second["answers"], second["negatives"]) == (("two",), [])
    assert list(of.captions())[:4] == ["who's first", "T", "line end", "H"]
    assert pickle.loads(pickle.dumps(of))[0] == first
    rng = np.random.default_rng(0)
    drawn = draw_negatives(first, NegativeSampling("document", "negatives", 2), "here", rng)
    assert drawn[0].text == "hard"


def test_dpr_records_ids_of_passages(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {
            "question": "q",
            "positive_ctxs": [passage("", " ", psg_id=1), passage("", "b", psg_id=2)],
        },
        {"question": "q", "positive_ctxs": [passage("", "a", passage_id=3), passage("", "b")]},
    ]
    path = write(tmp_path / "train.jsonl", *rows, QUESTIONS[1])
    first, every = (make_source(Dpr(path=path, positive=x)) for x in ("first", "any"))
    assert [first[index].get("document_id") for index in range(3)] == ["2", "3", None]
    assert [every[index].get("document_id") for index in range(3)] == [("2",), ("3", None), None]


def test_sampled_positive_keeps_its_id(tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(4)]
    write(tmp_path / "all.tsv", *(f"{n}\t{text}\n" for n, text in enumerate(texts)), "4\t \n")
    write(tmp_path / "queries.tsv", "0\tq\n")
    row = {"query": 0, "pos": [4, 0, 1, 2, 3], "neg": []}
    right = [passage("", text, passage_id=n) for n, text in enumerate(texts)]
    pairs = write(tmp_path / "dpr.jsonl", {"question": "q", "positive_ctxs": right})
    tables: Any = {
        x: str(tmp_path / f"{y}.tsv") for x, y in (("queries", "queries"), ("documents", "all"))
    }
    tokenizer = wordpiece_tokenizer(learn_wordpiece(["q", *texts], 64))
    how: Any = {"length": 8, "tokenizer": tokenizer}
    specs = {name: text_reader(name, **how) for name in ("query", "text")}
    ids, _ = tokenizer.encode(texts, 8)
    for source in (
        Dpr(path=pairs, positive="any"),
        Triples(path=write(tmp_path / "t.jsonl", row), positive="any", **tables),
    ):
        batches = train_batches(
            make_source(source), fields=specs, order=Order(1, 0), batch_size=1, rows=np.arange(1),
            start_batch=0, stop_batch=20,
            labels=configs.PairLabels(document="document_id", document_field="text"),
        )  # fmt: skip
        drawn = set()
        for batch in batches:
            place = np.flatnonzero((ids == batch["text"]["ids"][0]).all(1)).item()
            assert batch["document_id"][0] == number_of(str(place))
            drawn.add(place)
        assert len(drawn) > 1


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"positive_ctxs": [passage("", "x")]}, "'question' is None"),
        ({"question": "q", "positive_ctxs": []}, "'positive_ctxs' has no passage with a text"),
        ({"question": "q", "positive_ctxs": [passage("t", " ")]}, "no passage with a text"),
        ({"question": "q", "positive_ctxs": "x"}, "'positive_ctxs' is 'x', not a list of passages"),
        ({"question": "q", "positive_ctxs": [3]}, 'has 3, not {"title": ..., "text": ...}'),
        ({"question": "q", "positive_ctxs": [passage("t", 5)]}, "not {"),  # type: ignore
        ("not json\n", "not JSON"),
    ],
)
def test_dpr_names_damaged_lines(tmp_path: Path, row: Any, words: str) -> None:
    of = make_source(Dpr(path=write(tmp_path / "train.jsonl", QUESTIONS[0], row)))
    with pytest.raises(Damaged) as problem:
        of[1]
    assert words in str(problem.value)
    assert "train.jsonl, line 2" in str(problem.value)


def test_triples_reads_json_with_lists(tmp_path: Path) -> None:
    rows = [
        {"query": "q", "pos": ["a", "b"], "neg": ["c", "a", {"title": "T", "text": "d"}]},
        {"qid": 4, "pos": ["x"], "neg": {"bm25": ["y", "z"], "dense": ["z"]}},
    ]
    of = make_source(Triples(path=write(tmp_path / "a.jsonl", rows[0]), positive="any"))
    assert of[0]["text"] == ("a", "b")
    assert [x["text"] for x in of[0]["negatives"]] == ["c", "d"]
    documents = [{"_id": x, "text": f"text {x}", "title": x.upper()} for x in "xyz"]
    by_id = make_source(
        Triples(
            path=write(tmp_path / "b.jsonl", rows[1]),
            queries=write(tmp_path / "q.jsonl", {"_id": "4", "text": "four"}),
            documents=write(tmp_path / "d.jsonl", *documents),
        )
    )
    assert (by_id[0]["query"], by_id[0]["title"]) == ("four", "X")
    assert [x["text"] for x in by_id[0]["negatives"]] == ["text y", "text z"]
    lists = {"bm25": [{"text": "a"}, {"title": "T", "text": "a"}], "dense": [{"text": "a"}, "b"]}
    row = {"query": "q", "pos": "p", "neg": lists}
    of = make_source(Triples(path=write(tmp_path / "c.jsonl", row)))
    assert of[0]["negatives"] == [passage("", "a"), passage("T", "a"), passage("", "b")]


def test_triples_selects_lists(tmp_path: Path) -> None:
    rows = [
        {"query": "q", "pos": "p", "neg": {"bm25": ["a", "b"], "dense": ["c"], "other": ["d"]}},
        {"query": "q", "pos": "p", "neg": {"dense": ["c"]}},
        {"query": "q", "pos": "p", "neg": ["e"]},
    ]
    path = write(tmp_path / "a.jsonl", *rows)
    for lists, expected in {("bm25",): "ab", ("other", "bm25"): "dab", (): "abcd"}.items():
        of = make_source(Triples(path=path, lists=lists))
        assert "".join(x["text"] for x in of[0]["negatives"]) == expected
    of = make_source(Triples(path=path, lists=("bm25",)))
    assert of[1]["negatives"] == []
    with pytest.raises(Damaged, match="'neg' has no lists by name, such as 'bm25'"):
        of[2]
    words = "no list 'bm26' in 'neg' of the first lines, which have: bm25, dense, other. Change"
    with pytest.raises(UserError, match=words):
        make_source(Triples(path=path, lists=("bm26",)))


def test_triples_groups_by_query(tmp_path: Path) -> None:
    lines = ["2\t5\t7\n", "10\t100\t5\n", "2\t5\t8\n", "2\t6\t9\n", "10\t100\t5\n", "2\t5\t100\n"]
    write(tmp_path / "queries.tsv", "10\tfirst query\n", "2\tsecond query\n")
    write(tmp_path / "all.tsv", *(f"{n}\tpassage {n}\n" for n in (5, 6, 7, 8, 9, 100)))
    tables: Any = {"queries": str(tmp_path / "queries.tsv"), "documents": str(tmp_path / "all.tsv")}
    paths = write(tmp_path / "0.tsv", *lines[:3]), write(tmp_path / "1.tsv", *lines[3:])
    of = make_source(Triples(path=str(tmp_path / "[01].tsv"), positive="any", by_query=9, **tables))
    assert (len(of), of[0]["query"], of[0]["query_id"]) == (2, "second query", "2")
    assert of[0]["document_id"] == ("5", "6")
    assert [x["text"] for x in of[0]["negatives"]] == [f"passage {n}" for n in (7, 8, 9, 100)]
    assert [x["text"] for x in of[1]["negatives"]] == ["passage 5"]
    assert pickle.loads(pickle.dumps(of))[1] == of[1]
    spread = make_source(Triples(path=paths[1], by_query=1, **tables))
    assert [spread[i]["negatives"][0]["text"] for i in range(2)] == ["passage 9", "passage 5"]
    few = make_source(Triples(path=str(tmp_path / "[01].tsv"), by_query=2, **tables))
    assert [x["text"] for x in few[0]["negatives"]] == ["passage 7", "passage 9"]
    path = write(tmp_path / "c.tsv", *lines[:3], "2\t5\n", "10\t5\t6\n")
    damaged = make_source(Triples(path=path, by_query=9, **tables))
    assert [damaged[i]["query_id"] for i in range(2)] == ["2", "10"]
    with pytest.raises(Damaged, match=r"c\.tsv, line 4: the line has 2 cells"):
        damaged[2]
    with pytest.raises(UserError, match="`by_query` is for tab-separated lines"):
        make_source(Triples(path=write(tmp_path / "a.jsonl", {"query": "q"}), by_query=1))


def test_triples_skips_header(tmp_path: Path) -> None:
    lines = "qid\tpositive\tnegative\n", "q\tr\tw\n", "q\tr\tv\n"
    path = write(tmp_path / "triples.tsv", *lines)
    of = make_source(Triples(path=path))
    assert (len(of), of[0]["query"], of[0]["text"]) == (2, "q", "r")
    with pytest.raises(UserError, match="no column 'query'; it has negative, positive, qid"):
        make_source(Triples(path=path, by_query=2))
    path = write(tmp_path / "b.tsv", "Query\tPos\tNeg\n", "q\tr\tw\n", " q\tr\tv\n")
    assert len(make_source(Triples(path=path, by_query=2))) == 1  # blanks make no other query


def test_collection_skips_damaged_line_and_strips_ids(tmp_path: Path) -> None:
    lines = "1 \tone\n", "no tab\n", " 2\ttwo\n"
    found = Collection(write(tmp_path / "c.tsv", *lines))
    assert len(found) == 2
    assert [found.find(key, "here")["text"] for key in ("2", " 1")] == ["two", "one"]
    with pytest.raises(Damaged, match="'no tab' is not in c"):
        found.find("no tab", "here")


def folder(root: Path, relevance: str) -> str:
    corpus = [{"_id": f"d{i}", "title": f"T{i}" * (i % 2), "text": f"text {i}"} for i in range(5)]
    write(root / "corpus.jsonl", *corpus)
    write(root / "queries.jsonl", *({"_id": f"q{i}", "text": f"query {i}"} for i in range(4)))
    write(root / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\n", relevance)
    return str(root)


def test_beir_reads_folder(tmp_path: Path) -> None:
    path = folder(tmp_path, "q0\td1\t2\nq0\td0\t-1\nq2\td4\t0\nq2\td3\t1\n")
    of: Any = make_source(Beir(path=path))
    assert isinstance(of, GradedPairs)
    assert of.qrels.score.tolist() == [2, 0, 0, 1]
    train: Any = make_source(Beir(path=path, min_relevance=1))
    assert [train[i]["document_id"] for i in range(len(train))] == ["d1", "d3"]
    assert any("score below 1" in note for note in train.notes)
    with pytest.raises(UserError, match=r"qrels/dev.tsv is not on this machine.*corpus.jsonl"):
        make_source(Beir(path=path, split="dev"))
    write(tmp_path / "corpus.jsonl", *({"_id": f"d{i}", "text": "x"} for i in range(5)))
    assert len(make_source(Beir(path=path))) == 4


def test_beir_merges_duplicates_and_reads_trec(tmp_path: Path) -> None:
    path = folder(tmp_path, "q0\td1\t2\nq0\td1\t3\nq1\td0\t1\nq0\td1\t1\n")
    with pytest.raises(UserError, match=r"set `duplicates` of the data to 'max'"):
        make_source(Beir(path=path))
    of: Any = make_source(Beir(path=path, duplicates="mean"))
    assert of.qrels.score.tolist() == [2, 1]
    qrels = tmp_path / "qrels" / "test.tsv"
    qrels.write_text("q0\t0\td1\t2\n")
    of = make_source(Beir(path=path))
    assert (of[0]["query_id"], of[0]["document_id"]) == ("q0", "d1")


def test_graded_keeps_better_rank(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", "q\td\tr\n", "a\tx\t3\n", "a\tx\t1\n")
    keys = {"path": path, "query": "q", "document": "d", "score": "r", "text": ("q",)}
    of: Any = make_source(Graded(**keys, score_from="rank", s_max=10, duplicates="max"))
    assert of.qrels.score.tolist() == [10]


def test_graded_renames_columns(tmp_path: Path) -> None:
    pairs = write(tmp_path / "pairs.tsv", "query_id\tdocument_id\tscore\n", "a\tx\t3\n")
    queries = write(tmp_path / "queries.jsonl", {"query_id": "a", "text": "words"})
    keys = {"path": pairs, "queries": queries, "text": ("query",)}
    of: Any = make_source(Graded(**keys, rename=("queries.text=query",)))
    assert of[0]["query"] == "words"
    with pytest.raises(UserError, match="has no column 'grade'"):
        make_source(Graded(**keys, rename=("pairs.grade=score2",)))


def texts(source: Any, **changes: Any) -> configs.Config:
    found = lexical_texts()
    for name, column in (("query", "query"), ("document", "text")):
        found["fields"][name]["column"] = column
    return tiny(**{**found, "data": recipe.entry(source), **changes})


def test_checks_accept_text_data() -> None:
    for source in (Dpr(path="a"), Triples(path="a"), Beir(path="a", min_relevance=1)):
        check(texts(source))
    beir = recipe.entry(configs.Ranking(), data=Beir(path="a"))
    check(texts(Dpr(path="a"), evals={"beir": beir}, negatives__count=2))


@pytest.mark.parametrize(
    ("source", "changes", "words"),
    [
        (Dpr(), {}, "config.data.path is empty; give the file with questions and passages."),
        (Beir(path="a"), {}, "config.data.min_relevance is 0"),
        (Beir(path="a", split="", min_relevance=1), {}, "config.data.split is empty"),
        (
            Beir(path="a", min_relevance=1),
            {"negatives__count": 1},
            "type 'beir', whose records have no neg",
        ),
        (Triples(path="a", queries="b"), {}, "config.data.documents is empty"),
        (Triples(path="a", lists=("b",), by_query=1), {}, "set only one of them"),
        (Dpr(path="a", negatives=()), {"negatives__count": 1}, "config.data.negatives is empty"),
        (Dpr(path="a"), {"fields__document__column": "answer"}, "column is 'answer'"),
    ],
)
def test_checks_reject_text_data(source: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as problem:
        check(texts(source, **changes))
    assert words in str(problem.value)


def test_runlocal_keeps_negatives() -> None:
    from tests.helpers import raw_config

    found = lexical_texts()
    c = recipe.runlocal(raw_config(**found, data=recipe.entry(Dpr(path="a")), negatives__count=2))
    c.total_steps = 1
    config = configs.load(c)
    check(config)
    assert (config.data.type, config.negatives.count) == ("graded_scenes", 2)
    of = make_source(config.data)
    assert any(of[i]["negatives"] for i in itertools.islice(range(0, len(of), 50), 5))
