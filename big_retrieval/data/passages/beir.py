"""Judged pairs in BEIR's form: the configuration of `Graded` that reads a folder of it."""

import json
from pathlib import Path

from big_retrieval.config.graded import Graded
from big_retrieval.config.texts import Beir
from big_retrieval.io.regular import check_regular


def as_graded(config: Beir) -> Graded:
    """The judged pairs of a folder with corpus.jsonl, queries.jsonl and qrels/<split>.tsv."""
    folder, qrels = Path(config.path), f"qrels/{config.split}.tsv"
    advice = f"give a folder in BEIR's form, with corpus.jsonl, queries.jsonl and {qrels}"
    return Graded(
        path=str(folder / qrels),
        queries=str(folder / "queries.jsonl"),
        query_key="_id",
        documents=str(folder / "corpus.jsonl"),
        document_key="_id",
        rename=("pairs.query-id=query_id", "pairs.corpus-id=document_id", "queries.text=query"),
        text=("query", "title", "text") if has_titles(folder) else ("query", "text"),
        negative="zero",
        min_relevance=config.min_relevance,
        duplicates=config.duplicates,
        skip_unknown_ids=config.skip_unknown_ids,
        how_to_get=config.how_to_get or advice,
    )


def has_titles(folder: Path) -> bool:
    """Whether the documents of a folder have titles, as far as the first one tells."""
    try:
        check_regular(folder / "corpus.jsonl")
        with (folder / "corpus.jsonl").open(encoding="utf-8-sig", errors="replace") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError):
        return True  # who opens it says what is wrong
    return not isinstance(first, dict) or "title" in first
