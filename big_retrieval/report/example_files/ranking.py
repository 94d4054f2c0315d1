"""Examples of graded rankings: queries, their documents and the relevance."""

from typing import Any

import numpy as np

from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.sources import RecordSource, is_absent
from big_retrieval.errors import UserError
from big_retrieval.evals.encoding import average
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.modes import SIDES, Side
from big_retrieval.evals.ranking import RankingResult, readers_of, records_of, weights_of
from big_retrieval.report.example_files.selection import (
    DEEPEST,
    TOP,
    direction_content,
    even_group,
    groups_content,
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
    metric, values = next(iter(result.values.items()))
    lowest = np.argsort(values, kind="stable")[: np.sum(values < 1)][:DEEPEST]
    field = next(iter(result.documents.embeddings))
    terms = term_names(context.encoder, field, result.queries, context.readers.values())

    def example(row: int) -> dict[str, Any]:
        content = _example(result, context, row)
        for answer in content["answers"] if terms else ():
            document = _document(result, context, answer["record"])
            query = result.queries[[content["place"]]]
            answer["matched"] = matched_words(query, document, terms)
        return content

    deepest = "deepest", f"The queries with the lowest {metric}.", lowest
    groups = groups_content([even_group(len(values)), deepest], example)
    counts = len(values), len(records_of(context, "document"))
    failed = int(np.sum(result.ranked.relevance[:, :1] <= 0))
    return {"directions": [direction_content(SIDES, counts, failed, groups)]}


def _document(result: RankingResult, context: EvaluatorContext, record: int) -> Any:
    """Returns the average of a lexical document's fields, CSR [1, V]."""
    embeddings = {name: x[[record]] for name, x in result.documents.embeddings.items()}
    present = {name: x[[record]] for name, x in result.documents.present.items()}
    return average(context.topology, embeddings, weights_of(context, "document"), present)


def _example(result: RankingResult, context: EvaluatorContext, row: int) -> dict[str, Any]:
    ranked, summed = result.ranked, result.shown or SUMMED
    relevance, judged = ranked.relevance[row], ranked.judged[row]
    positives = np.flatnonzero(relevance > 0)
    documents = ranked.documents[row][ranked.documents[row] >= 0][: result.shown or TOP].tolist()
    answers = [
        {
            **_item(context, "document", document),
            "score": rounded(ranked.scores[row, rank]),
            "right": bool(relevance[rank] > 0),
            "relevance": float(relevance[rank]),
        }
        for rank, document in enumerate(documents)
    ]
    query = int(ranked.queries[row])
    return {
        "place": query,
        "query": _item(context, "query", query),
        "rank": int(positives[0]) + 1 if len(positives) else None,
        "right_answers": int(np.sum(judged > 0)),
        "metrics": {name: round(float(x[row]), 4) for name, x in result.values.items()},
        "sum": float(np.sum(relevance[:summed])),
        "best_sum": float(np.sum(-np.sort(-judged)[:summed])),
        "summed": summed,
        "answers": answers,
    }


def _item(context: EvaluatorContext, side: Side, record: int) -> dict[str, Any]:
    """Returns the first picture of a query or document, if any, and its texts."""
    source, out = records_of(context, side), {"record": record}
    texts = []
    for reader in readers_of(context, side).values():
        if not _is_present(source, record, reader):
            continue
        content = show_item(source, reader, record, 0)
        if reader.field.modality == "text":
            texts.append(str(content["text"]))
        elif "picture" not in out:
            out |= content
    return out | ({"text": " · ".join(texts)} if texts or "picture" not in out else {})


def _is_present(source: RecordSource, record: int, reader: FieldReader) -> bool:
    try:
        if reader.field.modality == "image":
            return not is_absent(source[record].get(reader.field.column))
        return reader.field.modality == "text" and bool(source_texts(source, record, reader))
    except UserError:  # includes damaged records
        return False
