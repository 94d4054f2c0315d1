"""Sources of texts and of judged pairs: BEIR, MS MARCO, DPR, qrels, and tables that are joined."""

import json
from typing import Any

import numpy as np

from big_retrieval.config import Beir, Dpr, Graded, Triples
from tests.data.digests.cases import Case
from tests.data.digests.files import (
    answer,
    caption,
    delimited,
    json_lines,
    npz,
    parquet,
    pictures,
    question,
    stacked,
)

NUMBERS = range(10)
TEXTS = ("query", "text")  # columns of batches


def passages(*numbers: int, **more: Any) -> list[dict[str, Any]]:
    return [{"title": f"t {n}", "text": answer(n), **more} for n in numbers]


def dpr_rows() -> list[Any]:
    rows: list[Any] = [
        {
            "question": f"{question(n)}’s\n end",
            "answers": [str(n)],
            "positive_ctxs": passages(n, n + 1, passage_id=str(n)),
            "hard_negative_ctxs": passages(n, n + 2),
            "negative_ctxs": passages(n + 3, n + 4, title=None),
        }
        for n in NUMBERS
    ]
    rows[1]["positive_ctxs"], rows[2]["hard_negative_ctxs"] = [], None
    rows[3]["positive_ctxs"][0] = {"psg_id": 7, "text": " "}
    rows[4]["positive_ctxs"][0]["title"] = 4
    del rows[5]["negative_ctxs"], rows[5]["answers"]
    return rows


LIST = json.dumps(dpr_rows(), indent=1)
ANY: Any = {"positive": "any", "negatives": ("negative_ctxs",), "normalise": False}
TRIPLES = [f"{question(n)}\t{answer(n)}\t{answer(n + 1)}\n" for n in NUMBERS]
TRIPLES[2:4] = ['a "quote\tx" y\t"z\n', "two\tcells\n"]
BY_ID = {  # MS MARCO's queries, DPR's passages with a header line, and JSON lines
    "queries.tsv": "".join(f"{n}\t{question(n)}\n" for n in NUMBERS),
    "documents.tsv": "id\ttext\ttitle\n"
    + "\n".join(f'{n}\t"{answer(n)} ""x"""\t"t {n}"' for n in NUMBERS),
    "documents.jsonl": json_lines({"pid": n, "text": answer(n), "title": None} for n in NUMBERS),
}
IDS = {"path": "t.tsv", "queries": "queries.tsv", "documents": "documents.tsv"}
LISTS = {"path": "t.jsonl", "queries": "queries.tsv", "documents": "documents.jsonl"}
JSON_TRIPLES = [
    {"qid": n, "pos": [str(n), 5], "neg": {"bm25": [n + 1, 9], "dense": ["3", n]}} for n in range(8)
]
NAMES = ("query_id", "document_id", "score")
PAIRS = [(f"q{n // 2}", f"d{n}", n % 4) for n in NUMBERS]


def beir(*more: Any, documents: Any = None) -> dict[str, str]:
    """Returns a folder in BEIR's form, with more pairs or with other documents."""
    rows = [{"_id": f"d{n}", "title": f"t {n}", "text": answer(n), "url": n} for n in range(12)]
    queries = [{"_id": f"q{n}", "text": question(n), "metadata": {"n": [n]}} for n in range(6)]
    pairs = [("query-id", "corpus-id", "score"), *PAIRS, *more]
    return {
        "beir/corpus.jsonl": json_lines(documents or rows),
        "beir/queries.jsonl": json_lines(queries),
        "beir/qrels/test.tsv": delimited(pairs, "\t"),
    }


SOLVED: Any = {"duplicates": "mean", "skip_unknown_ids": True, "text_column": "body"}


def judged(name: str, content: str, *columns: str, files: Any = (), **keys: Any) -> Case:
    """Returns a case of judged pairs, whose queries and documents have files by id."""
    sides = {
        "queries.json": json.dumps({f"q{n}": question(n) for n in range(5)}),
        "corpus.json": json.dumps({f"d{n}": {"title": answer(n), "n": n} for n in NUMBERS}),
    }
    paths = {"path": name, "queries": "queries.json", "documents": "corpus.json"}
    source = Graded(**{**paths, "text": ("text", "title"), **keys})
    return Case({**sides, **({name: content} if content else {}), **dict(files)}, source, columns)


def by_query() -> str:
    scores: dict[str, Any] = {}
    for query, document, score in PAIRS:
        scores.setdefault(query, {})[document] = str(score) if score == 2 else float(score)
    return json.dumps(scores)


CLICKS = {
    f"part-{part}.parquet": parquet(
        [{"q": int(q[1:]), "document_id": d, "n": s, "split": "ab"[s % 2]} for q, d, s in rows]
    )
    for part, rows in enumerate((PAIRS[::2], PAIRS[1::2]))
}
CLICKS |= {"q.jsonl": json_lines({"q": float(n), "text": question(n)} for n in range(5))}
RENAMED = ("pairs.q=query_id", "queries.q=query_id", "queries.text=asked", "documents.title=head")
SHOP = [(question(n % 3), f"p{n % 7}", f"title, {n % 7}", f"{n % 7}.png", n) for n in NUMBERS]
SHOP.insert(0, ("query", "product_id", "title", "picture", "score"))
IMAGES = npz(images=stacked(NUMBERS), image_id=np.arange(10)[::-1])
KEYS = [
    {"document_id": f"d{n}", "title": caption(n), "keys": [n, 9] if n % 2 else n} for n in NUMBERS
]
SPACES = json_lines({"document_id": f"a {d}", "title": d} for _, d, _ in PAIRS)
TABLE = delimited([NAMES, *PAIRS], "\t")

CASES = {
    "dpr_lines": Case({"t.json": json_lines(dpr_rows())}, Dpr(path="t.json"), TEXTS, negatives=2),
    "dpr_list_with_any_positive": Case(
        {"t.json": f"\ufeff{LIST}"}, Dpr(path="t.json", **ANY), TEXTS, negatives=1
    ),
    "dpr_list_cut_short": Case({"t.json": LIST[:-9]}, Dpr(path="t.json")),
    "triples_of_texts": Case(
        {"t.tsv": "".join(TRIPLES) + "\n\n"}, Triples(path="t.tsv"), TEXTS, negatives=1
    ),
    "triples_of_ids": Case(
        {**BY_ID, "t.tsv": "".join(f"{n}\t{9 - n}\t{n // 2}\r\n" for n in (*NUMBERS, 77))},
        Triples(**IDS),
        TEXTS,
        negatives=1,
    ),
    "triples_by_query": Case(
        {**BY_ID, "t.tsv": "".join(f"{n % 4}\t{n % 3}\t{n}\n" for n in [*NUMBERS] * 2)},
        Triples(by_query=3, positive="any", **IDS),
        TEXTS,
        negatives=2,
    ),
    "triples_of_json_lines": Case(
        {**BY_ID, "t.jsonl": json_lines(JSON_TRIPLES)},
        Triples(lists=("dense",), **LISTS),
        TEXTS,
        negatives=2,
    ),
    "beir_folder": Case(
        beir(("q1", "gone", 2), ("q1", "d9", -1)), Beir(path="beir", min_relevance=1), TEXTS
    ),
    "beir_folder_with_unknown_and_repeated_pairs": Case(
        beir(("q9", "d1", 2), ("q1", "d2", 3), ("q1", "d2", 1)),
        Beir(path="beir", **SOLVED),
        ("query", "body"),
    ),
    "beir_folder_with_an_unknown_query": Case(beir(("q9", "d1", 2)), Beir(path="beir")),
    "beir_folder_with_a_repeated_id": Case(
        beir(documents=[{"_id": x, "text": "a"} for x in ("d1", 7, "7", "d1")]), Beir(path="beir")
    ),
    "judged_csv": judged(
        "t.csv", delimited([(*NAMES, "title"), *((*x, "pair") for x in PAIRS)]), "text", "title"
    ),
    "judged_qrels_of_trec": judged(
        "t.qrels", "\n".join(f" {q} 0\t {d}   {s}\n" for q, d, s in PAIRS)
    ),
    "judged_qrels_of_tabs": judged(
        "t.tsv",
        "".join(f"{q}\ta {d}\t{s}.5\r\n" for q, d, s in PAIRS),
        files={"d.jsonl": SPACES},
        documents="d.jsonl",
    ),
    "judged_text_with_header": judged("t.txt", TABLE),
    "judged_object": judged("t.json", by_query()),
    "judged_object_with_a_key_twice": judged("t.json", '{"q1": {"d1": 1}, "q1": {"d2": 1}}'),
    "judged_list_by_rank": judged(
        "t.json",
        json.dumps([dict(zip(NAMES, (q, d, s + 1), strict=True)) for q, d, s in PAIRS]),
        score_from="rank",
        s_max=10.0,
    ),
    "judged_parquet_parts_with_clicks": judged(
        "part-?.parquet",
        "",
        files=CLICKS,
        score="n",
        score_from="clicks",
        where=("split=a",),
        rename=RENAMED,
        queries="q.jsonl",
        text=("asked", "head"),
    ),
    "judged_table_with_images": Case(
        {**pictures("pictures", NUMBERS), "t.csv": delimited(SHOP)},
        Graded(
            path="t.csv", root="pictures", query="query", document="product_id", image="picture"
        ),
        ("query", "title", "image"),
    ),
    "judged_images_by_key": judged(
        "t.tsv",
        TABLE,
        "text",
        "title",
        "image",
        files={"images.npz": IMAGES, "d.jsonl": json_lines(KEYS)},
        documents="d.jsonl",
        image="keys",
        images="images.npz",
    ),
    "judged_scores_that_are_no_numbers": judged("t.csv", delimited([NAMES, ("q1", "d1", "x")])),
}
