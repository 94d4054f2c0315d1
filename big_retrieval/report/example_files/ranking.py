"""Examples of graded rankings: queries, their documents and the relevance."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.sources import RecordSource, evenly_spaced, is_absent
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.encoding import average
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.ranking import RankingResult, readers_of, records_of, weights_of
from big_retrieval.report.example_files.selection import (
    DEEPEST,
    SPREAD,
    TOP,
    group_content,
    matched_words,
    rounded,
    term_names,
)
from big_retrieval.report.thumbnails import show_item

SUMMED = 10  # documents whose relevance is summed


def ranking_content(result: RankingResult, context: EvaluatorContext) -> dict[str, Any]:
    """Returns queries with their best documents, as JSON values; reads texts and pictures.

    The first metric determines the worst queries.
    """
    ranked = result.ranked
    metric, values = next(iter(result.values.items()))
    even = evenly_spaced(len(values), SPREAD)
    lowest = np.argsort(values, kind="stable")[: np.sum(values < 1)][:DEEPEST]
    field = next(iter(result.documents.embeddings))
    words = term_names(context.encoder, field, result.queries, context.readers.values())

    def example(row: int) -> dict[str, Any]:
        content = _example(result, context, row)
        for answer in content["answers"] if words else ():
            document = _document(result, context, answer["record"])
            query = result.queries[[content["place"]]]
            answer["matched"] = matched_words(query, document, words)
        return content

    rule = f"{len(even)} of {len(values):,} queries, evenly spaced in the data."
    groups = [
        group_content("spread", rule, even, example),
        group_content("deepest", f"The queries with the lowest {metric}.", lowest, example),
    ]
    direction = {
        "name": "query_to_document",
        "query": "query",
        "answer": "document",
        "queries": len(values),
        "answers": len(records_of(context, "document")),
        "failed": int(np.sum(ranked.relevance[:, :1] <= 0)),
        "groups": groups,
    }
    return {"directions": [direction]}


def _document(result: RankingResult, context: EvaluatorContext, record: int) -> Any:
    """Returns the average of a lexical document's fields, CSR [1, V]."""
    embeddings = {name: x[[record]] for name, x in result.documents.embeddings.items()}
    present = {name: x[[record]] for name, x in result.documents.present.items()}
    return average(context.topology, embeddings, weights_of(context, "document"), present)


def _example(result: RankingResult, context: EvaluatorContext, row: int) -> dict[str, Any]:
    ranked, shown, summed = result.ranked, result.shown or TOP, result.shown or SUMMED
    relevance, judged = ranked.relevance[row], ranked.judged[row]
    positives = np.flatnonzero(relevance > 0)
    documents = ranked.found[row][ranked.found[row] >= 0][:shown].tolist()
    answers = [
        {
            **_item(records_of(context, "document"), readers_of(context, "document"), document),
            "score": rounded(ranked.scores[row, rank]),
            "right": bool(relevance[rank] > 0),
            "relevance": float(relevance[rank]),
        }
        for rank, document in enumerate(documents)
    ]
    query = int(ranked.queries[row])
    return {
        "place": query,
        "query": _item(records_of(context, "query"), readers_of(context, "query"), query),
        "rank": int(positives[0]) + 1 if len(positives) else None,
        "right_answers": int(np.sum(judged > 0)),
        "metrics": {name: round(float(x[row]), 4) for name, x in result.values.items()},
        "sum": float(np.sum(relevance[:summed])),
        "best_sum": float(np.sum(-np.sort(-judged)[:summed])),
        "summed": summed,
        "answers": answers,
    }


def _item(source: RecordSource, readers: Mapping[str, FieldReader], record: int) -> dict[str, Any]:
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
