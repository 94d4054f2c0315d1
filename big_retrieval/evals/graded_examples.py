"""Examples of graded rankings for the report: queries, their documents and the relevance."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.config.topologies import Topology
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.judged.qrels import JudgedSource
from big_retrieval.data.sources import RecordSource, evenly_spaced, is_absent
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.encoding import EncodedFields, average
from big_retrieval.evals.examples import DEEPEST, SPREAD, TOP, matched_words
from big_retrieval.evals.judged import Ranked
from big_retrieval.evals.thumbnails import show_item
from big_retrieval.inference.encoder import Embeddings, Encoder

SUMMED = 10  # documents whose relevance is summed
Readers = Mapping[str, FieldReader]
Matched = Callable[[int, int], list[list[Any]]]  # words of (query index, document index)


def describe(
    kind: str,
    source: JudgedSource,
    readers: Mapping[str, Readers],
    ranked: Ranked,
    values: Mapping[str, np.ndarray],
    matched: Matched | None = None,
    shown: int | None = None,
) -> dict[str, Any]:
    """Returns queries with their best documents, as JSON values; reads texts and pictures.

    Args:
      kind: type of the evaluator.
      readers: readers of each side's fields, by "query" and "document".
      values: metrics of every query, [q]; the first one determines the worst queries.
      matched: finds the words that a query and a document share; None for a dense model.
      shown: number of documents to show and to sum the relevance of; None for `TOP` and `SUMMED`.
    """
    metric, value = next(iter(values.items()))
    even = evenly_spaced(len(ranked.queries), SPREAD)
    order = np.argsort(value, kind="stable")
    lowest = order[: np.sum(value < 1)][:DEEPEST]
    groups = (
        ("spread", f"{len(even)} of {len(value):,} queries, evenly spaced in the data.", even),
        ("deepest", f"The queries with the lowest {metric}.", lowest),
    )

    def example(row: int) -> dict[str, Any]:
        metrics = {name: round(float(x[row]), 4) for name, x in values.items()}
        content = _example(source, readers, ranked, row, metrics, shown)
        if matched is not None:
            for answer in content["answers"]:
                answer["matched"] = matched(content["place"], answer["record"])
        return content

    direction = {
        "name": "query_to_document",
        "query": "query",
        "answer": "document",
        "queries": len(ranked.queries),
        "answers": len(source.documents),
        "failed": int(np.sum(ranked.relevance[:, 0] <= 0)) if ranked.relevance.size else 0,
        "groups": [
            {"name": name, "how": how, "examples": [example(row) for row in rows.tolist()]}
            for name, how, rows in groups
        ],
    }
    return {"type": kind, "directions": [direction]}


def matching(
    queries: Embeddings,
    documents: EncodedFields,
    weighting: Mapping[str, float],
    *,
    topology: Topology,
    encoder: Encoder,
    readers: Readers,
) -> Matched | None:
    """Makes a function that finds the words of a query and a document; None for a dense model.

    Args:
      queries: embeddings of all queries.
      documents: fields of all documents.
      weighting: weight of each document field in the ranking.
      readers: readers of both sides' fields.
    """
    field = next(iter(documents.embeddings))
    terms = encoder.terms(field) if scipy.sparse.issparse(queries) else None
    if terms is None:
        return None
    tokenizers = (reader.tokenizer for reader in readers.values() if reader.tokenizer is not None)
    words = terms.names(next(tokenizers, None))

    def matched(query: int, document: int) -> list[list[Any]]:
        embeddings = {name: x[[document]] for name, x in documents.embeddings.items()}
        present = {name: x[[document]] for name, x in documents.present.items()}
        row = average(topology, embeddings, weighting, present)
        return matched_words(queries[[query]], row, words)

    return matched


def _example(
    source: JudgedSource,
    readers: Mapping[str, Readers],
    ranked: Ranked,
    row: int,
    metrics: dict[str, float],
    shown: int | None,
) -> dict[str, Any]:
    summed = shown or SUMMED
    relevance, judged = ranked.relevance[row], ranked.judged[row]
    positives = np.flatnonzero(relevance > 0)
    query, documents = int(ranked.queries[row]), ranked.found[row]
    answers = []
    for rank in range(min(shown or TOP, int(np.sum(documents >= 0)))):
        item = _item(source.documents, readers["document"], int(documents[rank]))
        value = float(relevance[rank])
        score = round(float(ranked.scores[row, rank]), 6)
        answers.append({**item, "score": score, "right": value > 0, "relevance": value})
    return {
        "place": query,
        "query": _item(source.queries, readers["query"], query),
        "rank": int(positives[0]) + 1 if len(positives) else None,
        "right_answers": int(np.sum(judged > 0)),
        "metrics": metrics,
        "sum": float(np.sum(relevance[:summed])),
        "best_sum": float(np.sum(-np.sort(-judged)[:summed])),
        "summed": summed,
        "answers": answers,
    }


def _item(source: RecordSource, readers: Readers, record: int) -> dict[str, Any]:
    """Returns the first picture of a record, if any, and its texts."""
    out: dict[str, Any] = {"record": record}
    texts = []
    for reader in readers.values():
        if not _has(source, record, reader):
            continue
        item = show_item(source, reader, record, 0)
        if reader.field.modality == "text":
            texts.append(str(item["text"]))
        elif "picture" not in out:
            out |= item
    return out | ({"text": " · ".join(texts)} if texts or "picture" not in out else {})


def _has(source: RecordSource, record: int, reader: FieldReader) -> bool:
    try:
        if reader.field.modality == "image":
            return not is_absent(source[record].get(reader.field.column))
        return reader.field.modality == "text" and bool(source_texts(source, record, reader))
    except (Damaged, UserError):
        return False
