"""Judged pairs in BEIR's form: the configuration of `Graded` that reads a folder of it."""

from pathlib import Path

from big_retrieval.config_data import Graded
from big_retrieval.config_texts import Beir


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
        text=config.text,
        negative="zero",
        least=config.least,
        twice=config.twice,
        drop=config.drop,
        how_to_get=config.how_to_get or advice,
    )
