"""Hard negatives from rankings: their choice, the file, and training on it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.commands import mine
from big_retrieval.config import Dpr, recipe
from big_retrieval.data.build import make_source
from big_retrieval.data.passages.collection import Collection
from big_retrieval.data.sources import TextRecords
from big_retrieval.errors import UserError
from big_retrieval.evals import ranks
from big_retrieval.evals.bm25 import Bm25
from big_retrieval.inference.load import put_together
from big_retrieval.mining import mine as mining
from big_retrieval.mining import searchers
from big_retrieval.mining.choice import (
    Chosen,
    MiningOptions,
    QueryResults,
    ceiling,
    choose_negatives,
    has_answer,
    words_of,
)
from big_retrieval.mining.searchers import ModelSearcher
from big_retrieval.mining.task import Task, judged_task, pairs_task
from big_retrieval.train.build import untrained
from tests.helpers import in_process, lexical_texts, tiny
from tests.readers import text_reader

QUERY = text_reader("query")
DOCUMENT = text_reader("text", title="title")
TEXTS = {n: f"text {n}" for n in range(10)} | {7: "text 3", 8: "the answer is 42.", 9: "text 1"}


NAN = float("nan")


def choose_from(
    options: MiningOptions, answers: tuple[str, ...] = (), itself: Any = (), **changes: Any
) -> tuple[list[Chosen], Counter[str]]:
    """Returns the choice and the counted reasons; 1 is relevant, 9 has its text, 7 that of 3."""
    keys: dict[str, Any] = {"positives": {1}, "best_positive": 9.0, **changes}
    results = QueryResults(
        documents=[5, 1, 3, 7, 8, 9, 2, 4, 6], scores=[10.0, 9, 8, 7, 6, 5, 4, 3, 2], **keys
    )
    dropped: Counter[str] = Counter()
    text_of = TEXTS.__getitem__
    return choose_negatives(
        results, options, text_of, answers, dropped, lambda n: n in itself
    ), dropped


def documents(options: MiningOptions, answers: tuple[str, ...] = (), **changes: Any) -> list[int]:
    return [x.document for x in choose_from(options, answers, **changes)[0]]


@pytest.mark.parametrize(
    ("options", "keys", "expected"),
    [
        ({}, {}, [5, 3, 8, 2, 4, 6]),
        ({"count": 2}, {}, [5, 3]),
        ({"skip": 1}, {}, [3, 8, 2, 4, 6]),
        ({}, {"answers": ("42",)}, [5, 3, 2, 4, 6]),
        ({"margin": 0.0}, {}, [3, 8, 2, 4, 6]),
        ({"margin": 3.0}, {}, [8, 2, 4, 6]),
        ({"share": 0.5}, {}, [2, 4, 6]),
        ({"share": 0.5, "margin": 6.0}, {}, [4, 6]),
        ({"margin": 0.0}, {"best_positive": NAN}, [5, 3, 8, 2, 4, 6]),
        ({"margin": 0.0}, {"positives": set(), "best_positive": NAN}, [5, 1, 3, 8, 2, 4, 6]),
    ],
)
def test_choose_leaves_documents_out(options: Any, keys: Any, expected: list[int]) -> None:
    assert documents(MiningOptions(**{"count": 0, **options}), **keys) == expected


def test_choose_counts_reasons_and_keeps_ranks() -> None:
    chosen, dropped = choose_from(MiningOptions(0, skip=1, margin=1.0), ("42",))
    assert [(x.document, x.rank, x.score) for x in chosen] == [
        (3, 3, 8.0), (2, 7, 4.0), (4, 8, 3.0), (6, 9, 2.0),
    ]  # fmt: skip
    assert dropped == {"first ranks": 1, "right": 1, "same text": 2, "answer inside": 1}


def test_choose_leaves_the_query_itself_out_of_the_ranks() -> None:
    chosen, dropped = choose_from(MiningOptions(2, skip=1), itself=(1, 5))
    assert [x.document for x in chosen] == [7, 8]
    assert dropped == {"the query itself": 1, "right": 1, "first ranks": 1}


def test_ceiling_of_a_negative_score_is_below_it() -> None:
    assert ceiling(-10.0, MiningOptions(share=0.9)) == pytest.approx(-11)
    assert ceiling(10.0, MiningOptions(share=0.9, margin=2)) == 8
    assert ceiling(NAN, MiningOptions(share=0.9)) == float("inf")


@pytest.mark.parametrize(
    ("text", "answer", "present"),
    [
        ("born in Köln, in 1906", "koln", False),
        ("born in KÖLN", "Köln", True),
        ("the U.S. army", "U.S.", True),
        ("the US army", "u.s.", False),
        ("he was 42.", "42", True),
        ("he was 421", "42", False),
        ("New\nYork", "new york", True),
        ("new and york", "New York", False),
        ("anything", "", False),
    ],
)
def test_has_answer_matches_sequences_of_words(text: str, answer: str, present: bool) -> None:
    assert has_answer(text, [words_of(answer)]) == present
    assert has_answer(text, [words_of("zzz"), words_of(answer)]) == present


def test_bm25_scores_relevant_documents_that_it_does_not_return() -> None:
    documents = ["red shoe", "red", "blue red hat", "hat"]
    index = Bm25(documents)
    numbers, scores, right = index.search(["red shoe", "hat", "none"], 4, [[1, 2], [0], []])
    plain = index.search(["red shoe", "hat", "none"], 4)
    np.testing.assert_array_equal(numbers, plain[0])
    np.testing.assert_array_equal(scores, plain[1])
    assert right[0] == pytest.approx(max(scores[0][np.isin(numbers[0], [1, 2])]))
    assert right[1] == 0
    assert np.isnan(right[2])
    _, _, cut = index.search(["red shoe"], 1, [[1]])
    assert cut[0] == pytest.approx(scores[0][numbers[0] == 1][0])


WORDS = ["red shoe", "blue hat", "green scarf", "red hat", "blue shoe", "red shoe sale"]
CORPUS = {f"d{i}": text for i, text in enumerate(WORDS)}
QRELS = (("q0", "d0"), ("q1", "d1"), ("q2", "d2"))


def folder(
    root: Path, corpus: Any = CORPUS, queries: Any = tuple(WORDS[:3]), qrels: Any = QRELS
) -> str:
    """Writes BEIR's files, by default three queries with a relevant document each."""
    (root / "qrels").mkdir(parents=True)
    tables = {
        "corpus": [{"_id": key, "title": "", "text": text} for key, text in corpus.items()],
        "queries": [
            {"_id": f"q{i}", "text": text, "answers": ["sale"]} for i, text in enumerate(queries)
        ],
    }
    for name, rows in tables.items():
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore", *(f"{query}\t{key}\t1" for query, key in qrels)]
    (root / "qrels" / "train.tsv").write_text("\n".join(lines) + "\n")
    return str(root)


def run_mine(data: str, out: Path, **flags: Any) -> list[dict[str, Any]]:
    """Runs `big-retrieval mine --bm25` in this process; returns the rows."""
    mine.main(mine.MineOptions(bm25=True, config=None, data=data, out=out, **flags))
    return [json.loads(line) for line in out.read_text().splitlines()]


def negatives(rows: list[dict[str, Any]]) -> list[set[str]]:
    return [{x["passage_id"] for x in row["hard_negative_ctxs"]} for row in rows]


def test_bm25_mines_a_beir_folder_and_dpr_reads_the_result(tmp_path: Path) -> None:
    out = tmp_path / "hard.jsonl"
    rows = run_mine(folder(tmp_path / "data"), out)
    assert [row["question"] for row in rows] == ["red shoe", "blue hat", "green scarf"]
    assert rows[0]["positive_ctxs"] == [{"title": "", "text": "red shoe", "passage_id": "d0"}]
    assert negatives(rows) == [{"d3", "d4"}, {"d3", "d4"}, set()]  # d5 has the answer
    assert not list(tmp_path.glob("*.partial"))
    of = make_source(Dpr(path=str(out)))
    assert (of[0]["query"], of[0]["text"]) == ("red shoe", "red shoe")
    assert [x["text"] for x in of[0]["negatives"]] == [
        x["text"] for x in rows[0]["hard_negative_ctxs"]
    ]


def test_mine_leaves_out_copies_and_relevant_documents_of_equal_questions(tmp_path: Path) -> None:
    right = "the Cafe\u0301 of Paris"
    copies = [
        f"{right} ", "the  Cafe\u0301 of Paris", f"\ufeff{right}", "the Caf\u00e9 of\u00a0Paris\n",
        "the cafe\u0301 of paris",
    ]  # fmt: skip
    texts = [right, *copies, "the other Caf\u00e9", "a Caf\u00e9 in Rome"]
    queries = "Caf\u00e9  of Paris", "Cafe\u0301 of paris"
    qrels = ("q0", "0"), ("q0", "gone"), ("q1", "6")
    corpus = {str(i): text for i, text in enumerate(texts)}
    rows = run_mine(folder(tmp_path / "data", corpus, queries, qrels), tmp_path / "mined.jsonl")
    assert [[x["passage_id"] for x in row["positive_ctxs"]] for row in rows] == [["0"], ["6"]]
    assert negatives(rows) == [{"7"}, {"7"}]


def test_stopped_mine_resumes_and_other_settings_start_from_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    data = folder(tmp_path / "data")
    run_mine(data, tmp_path / "whole.jsonl")
    whole, told = (tmp_path / "whole.jsonl").read_bytes(), capsys.readouterr().out.splitlines()
    out, searched, search = tmp_path / "hard.jsonl", [], searchers.WordSearcher.search

    def stopped(self: Any, queries: np.ndarray, depth: int) -> Any:
        searched.extend(queries.tolist())
        if len(searched) == 3:
            raise KeyboardInterrupt
        return search(self, queries, depth)

    monkeypatch.setattr(searchers.WordSearcher, "search", stopped)
    monkeypatch.setattr(mining, "QUERIES", 1)
    with pytest.raises(KeyboardInterrupt):
        run_mine(data, out)
    partial = tmp_path / "hard.jsonl.partial"
    left = partial.read_bytes()
    assert whole.startswith(left)
    partial.write_bytes(left + b'{"question": "half')
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("hard.*")}
    capsys.readouterr()
    run_mine(data, out)
    assert (out.read_bytes(), searched[3:]) == (whole, [2])
    again = capsys.readouterr().out.splitlines()
    assert again[1].startswith("resuming after the 2 queries")
    assert again[2:4] == told[1:3]
    assert not list(tmp_path.glob("*.partial*"))
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    assert list(map(len, negatives(run_mine(data, out, count=1)))) == [1, 1, 0]
    assert searched[4:] == [0, 1, 2]


def test_fingerprint_covers_every_document() -> None:
    def fingerprints(changed: int) -> dict[str, str]:
        texts = [f"text {number + (number == changed)}" for number in range(2500)]
        documents = TextRecords(texts, column="text")
        queries = TextRecords(["a query"], column="query")
        return mining.data_fingerprints(Task(queries, documents, [[0]], QUERY, text_reader("text")))

    assert fingerprints(-1) == fingerprints(-1)
    assert len({fingerprints(n)["documents"] for n in (-1, 1, 2)}) == 3


def test_queries_that_are_documents_are_not_their_own_negatives(tmp_path: Path) -> None:
    """As in ArguAna: by the id, or by the text."""
    data = folder(tmp_path / "data", qrels=(("q0", "d0"), ("q1", "d4")))
    rows = [{"_id": "q0", "title": "Red", "text": "red shoe!"}, {"_id": "d7", "text": " blue  hat"}]
    with Path(data, "corpus.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    assert negatives(run_mine(data, tmp_path / "hard.jsonl")) == [{"d3", "d4"}, {"d3"}]


def test_training_flags_set_columns_and_clear_labels() -> None:
    fields = {"query": ("query", "query"), "passage": ("document", "title")}
    made: Any = {
        name: configs.TextField(side=side, column=column)  # type: ignore[arg-type]
        for name, (side, column) in fields.items()
    }
    labels = configs.PairLabels(query="query_id", document="document_id")
    assert mining.training_flags(configs.Config(fields=made, labels=labels), Path("x.jsonl")) == [
        "--config.data.type=dpr", "--config.data.path=x.jsonl", "--config.negatives.count=1",
        "--config.fields.passage.column=text", "--config.labels.query=",
    ]  # fmt: skip


def test_mine_rejects_pairs_judged_twice_and_further_documents(tmp_path: Path) -> None:
    data, out = folder(tmp_path / "data"), tmp_path / "hard.jsonl"
    with pytest.raises(UserError, match="Remove --documents"):
        run_mine(data, out, documents="all.tsv")
    with Path(data, "qrels", "train.tsv").open("a") as file:
        file.write("q0\td0\t2\n")
    with pytest.raises(UserError, match="set `duplicates` of the data"):
        run_mine(data, out)
    assert len(run_mine(data, out, duplicates="max")) == 3


def test_pairs_task_adds_documents_to_a_collection(tmp_path: Path) -> None:
    rows = [
        {
            "question": q,
            "answers": [texts[0], "x"],
            "positive_ctxs": [{"title": "T", "text": t} for t in texts],
            "negative_ctxs": [{"title": "N", "text": "own negative"}],
        }
        for q, texts in (("a", ["one"]), ("b", ["own", "two"]), ("a", ["three"]), ("c", [" "]))
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "all.tsv").write_text("p1\tzero\tT\np2\ttwo\tT\np3\tone\tT\n")
    source = make_source(Dpr(path=str(tmp_path / "train.jsonl"), positive="any"))
    task = pairs_task(source, QUERY, DOCUMENT, Collection(str(tmp_path / "all.tsv")))
    texts = [task.text(number) for number in range(len(task.documents))]
    assert texts == [
        ("T", "zero"), ("T", "two"), ("T", "one"), ("N", "own negative"), ("T", "own"),
        ("T", "three"),
    ]  # fmt: skip
    assert [task.question(n) for n in range(len(task.queries))] == ["a", "b"]
    assert [task.answers(n) for n in (0, 1)] == [("one", "x", "three"), ("own", "x")]
    assert [[texts[d][1] for d in right] for right in task.positives] == [
        ["one", "three"], ["own", "two"],
    ]  # fmt: skip
    assert [task.document_id(d) for d in (2, 3)] == ["p3", "own-0"]
    alone = pairs_task(source, QUERY, DOCUMENT)
    assert [alone.text(d)[1] for d in alone.positives[1]] == ["own", "two"]
    assert len(alone.documents) == 5


def searching(tmp_path: Path, lexical: bool = True, **head: Any) -> tuple[Any, Task, ModelSearcher]:
    """Returns a model with random weights, its task and its searcher."""
    from big_retrieval.data.build import make_readers

    c = lexical_texts(**head)
    c["fields"]["query"]["column"], c["fields"]["document"]["column"] = "query", "text"
    for part in () if lexical else c["fields"].values():
        part["head"] = recipe.entry(configs.Projection(dim=4))
    for tower in () if lexical else c["towers"].values():
        tower["pool"] = "first"
    data = recipe.entry(configs.Beir(path=folder(tmp_path), split="train", min_relevance=1))
    config = tiny(**c, data=data)
    model = untrained(config, batch_size=4)
    again = put_together(tmp_path, config, model.tokenizer, model.weights, 4)
    source: Any = make_source(config.data)
    task = judged_task(source, QUERY, text_reader("text"))
    specs = make_readers(config, model.tokenizer)
    return model, task, ModelSearcher(task, config, specs, again.encoder, model.weights)


@pytest.mark.parametrize("lexical", [False, True])
def test_model_searcher_returns_the_best_and_the_relevant_scores(
    tmp_path: Path, lexical: bool
) -> None:
    model, task, searcher = searching(tmp_path, lexical)
    numbers, scores, right = searcher.search(np.array([2, 0]), 4)
    queries = model.encode_texts(["green scarf", "red shoe"], "query")
    words = [task.text(d)[1] for d in range(6)]
    whole = model.score(queries, model.encode_texts(words, "document"))
    for place in range(2):
        order = np.argsort(-whole[place], kind="stable")[:4]
        np.testing.assert_array_equal(numbers[place], order)
        np.testing.assert_allclose(scores[place], whole[place][order], rtol=1e-5)
    np.testing.assert_allclose(right, [whole[0, 2], whole[1, 0]], rtol=1e-5)


def test_lexical_model_returns_only_documents_that_share_a_word(tmp_path: Path) -> None:
    """The gate keeps the words of the texts."""
    head = {"terms": "words", "top_k": 0, "keep_input_terms": True, "activation": "elu1p"}
    _, task, searcher = searching(tmp_path, **head)
    numbers, scores, _ = searcher.search(np.array([0, 1]), 6)
    for place, query in enumerate(("red shoe", "blue hat")):
        present = numbers[place] >= 0
        words = {n: set(task.text(n)[1].split()) for n in range(6)}
        assert {*numbers[place][present].tolist()} == {
            n for n, own in words.items() if own & set(query.split())
        }
        assert (scores[place][present] > 0).all()


@pytest.mark.parametrize("lexical", [False, True])
def test_documents_are_laid_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lexical: bool
) -> None:
    calls: list[Any] = []

    class Counted(ranks.DocumentScorer):
        def __init__(self, documents: Any, **how: Any) -> None:
            calls.append(documents.shape)
            super().__init__(documents, **how)

    monkeypatch.setattr(searchers, "DocumentScorer", Counted)
    _, _, searcher = searching(tmp_path, lexical)
    monkeypatch.setattr(ranks, "DocumentScorer", None)  # nor anywhere else
    whole = searcher.search(np.array([0, 1, 2]), 9)
    parts = [searcher.search(np.array([query]), 9) for query in range(3)]
    assert len(calls) == 1
    for one, several in zip(whole, zip(*parts, strict=True), strict=True):
        np.testing.assert_allclose(one, np.concatenate(several), rtol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--out=x", "--run, --bm25"),
        ("--out=x --bm25 --run=x", "--run and --bm25"),
        ("--bm25 --data=x", "--out is missing"),
        ("--bm25 --out=x", "--bm25 needs --data"),
        ("--bm25 --out=x --data=d --share=1.5", "--share is 1.5"),
        ("--bm25 --out=x --data=d --margin=-1", "--margin is -1"),
        ("--bm25 --out=x --data=missing.jsonl", "missing.jsonl is not on this"),
    ],
)
def test_mine_rejects_wrong_flags(
    flags: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = in_process("mine", *flags.split())
    assert done.returncode == 2
    assert message in done.stderr
