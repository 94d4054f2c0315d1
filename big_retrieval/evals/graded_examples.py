"""Examples of graded rankings for the report: queries, what was found, relevance and their sums."""

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

SUMMED = 10  # documents whose relevance is added up
Readers = Mapping[str, FieldReader]
Matched = Callable[[int, int], list[list[Any]]]  # of the numbers of a query and a document


def describe(
    kind: str,
    source: JudgedSource,
    readers: Mapping[str, Readers],
    ranked: Ranked,
    values: Mapping[str, np.ndarray],
    matched: Matched | None = None,
    shown: int | None = None,
) -> dict[str, Any]:
    """Some queries with their best documents, ready for JSON; reads texts and pictures.

    Args:
      kind: of the evaluator.
      source: where queries and documents are read from.
      readers: "query" and "document" -> the fields of the side.
      ranked: rankings.
      values: metric -> of every query, [q]; the first one says which did worst.
      matched: the words that a query and a document share; None: of a dense model.
      shown: documents of a query, whose relevance is added up, too; None: `TOP` and `SUMMED`.
    """
    metric, value = next(iter(values.items()))
    even = evenly_spaced(len(ranked.queries), SPREAD)
    order = np.argsort(value, kind="stable")
    lowest = order[: np.sum(value < 1)][:DEEPEST]
    groups = (
        ("spread", f"{len(even)} of {len(value):,} queries, evenly spaced in the data.", even),
        ("deepest", f"The queries with the lowest {metric}.", lowest),
    )

    def example(place: int) -> dict[str, Any]:
        numbers = {name: round(float(each[place]), 4) for name, each in values.items()}
        found = _example(source, readers, ranked, place, numbers, shown)
        if matched is not None:
            for answer in found["answers"]:
                answer["matched"] = matched(found["place"], answer["record"])
        return found

    direction = {
        "name": "query_to_document",
        "query": "query",
        "answer": "document",
        "queries": len(ranked.queries),
        "answers": len(source.documents),
        "failed": int(np.sum(ranked.relevance[:, 0] <= 0)) if ranked.relevance.size else 0,
        "groups": [
            {"name": name, "how": how, "examples": [example(p) for p in places.tolist()]}
            for name, how, places in groups
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
    """What says which words a query and a document of a lexical model share; None: it is dense.

    Args:
      queries: the embeddings of all of them.
      documents: their fields.
      weighting: documents' field -> its weight, as the documents are ranked.
      topology: averages embeddings.
      encoder: knows the terms.
      readers: field name -> how it is read, of both sides.
    """
    field = next(iter(documents.embeddings))
    terms = encoder.terms(field) if scipy.sparse.issparse(queries) else None
    if terms is None:
        return None
    tokenizers = (reader.tokenizer for reader in readers.values() if reader.tokenizer is not None)
    words = terms.names(next(tokenizers, None))

    def matched(query: int, document: int) -> list[list[Any]]:
        embeddings = {name: found[[document]] for name, found in documents.embeddings.items()}
        present = {name: found[[document]] for name, found in documents.present.items()}
        row = average(topology, embeddings, weighting, present)
        return matched_words(queries[[query]], row, words)

    return matched


def _example(
    source: JudgedSource,
    readers: Mapping[str, Readers],
    ranked: Ranked,
    place: int,
    numbers: Mapping[str, float],
    shown: int | None,
) -> dict[str, Any]:
    summed = shown or SUMMED
    relevance, judged = ranked.relevance[place], ranked.judged[place]
    right = np.flatnonzero(relevance > 0)
    found = ranked.found[place]
    answers = []
    for rank in range(min(shown or TOP, int(np.sum(found >= 0)))):
        item = _item(source.documents, readers["document"], int(found[rank]))
        value = float(relevance[rank])
        score = round(float(ranked.scores[place, rank]), 6)
        answers.append({**item, "score": score, "right": value > 0, "relevance": value})
    return {
        "place": int(ranked.queries[place]),
        "query": _item(source.queries, readers["query"], int(ranked.queries[place])),
        "rank": int(right[0]) + 1 if len(right) else None,
        "right_answers": int(np.sum(judged > 0)),
        "metrics": dict(numbers),
        "sum": float(np.sum(relevance[:summed])),
        "best_sum": float(np.sum(-np.sort(-judged)[:summed])),
        "summed": summed,
        "answers": answers,
    }


def _item(source: RecordSource, readers: Readers, record: int) -> dict[str, Any]:
    """The first picture of a record, if any, and its texts."""
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
