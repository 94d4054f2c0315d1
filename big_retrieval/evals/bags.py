"""Bags of words of records, and lexical embeddings as a mode of search has them; see `modes`."""

from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.data.fields.reader import FieldReader, stack
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.evals.modes import Mode, Side
from big_retrieval.inference.encoder import Embeddings, concatenate
from big_retrieval.sparse.terms import Terms

CHUNK = 4096  # texts tokenised at a time


def in_mode(
    embeddings: Embeddings, mode: Mode, side: Side, bow: scipy.sparse.csr_array | None
) -> scipy.sparse.csr_array:
    """The embeddings of a lexical field as a mode has them.

    Args:
      embeddings: CSR [n, V], gated as the head says.
      mode: the mode.
      side: of the field.
      bow: bags of words of the texts themselves, [n, V]; None: images, or a head that keeps none.

    Raises:
      UserError: bags are asked for of a field without words.
    """
    if mode.bags == side:
        if bow is None:
            raise UserError(f"mode {mode.name!r} needs words on the {side} side, which has images.")
        return bow
    top_k = mode.top_k[side]
    return embeddings if top_k is None else narrowed(embeddings, top_k, bow)


def narrowed(
    embeddings: scipy.sparse.csr_array, top_k: int, bow: scipy.sparse.csr_array | None = None
) -> scipy.sparse.csr_array:
    """Rows with their `top_k` largest entries, of equal ones the lower term, and those of `bow`.

    Args:
      embeddings: CSR [n, V], not negative.
      top_k: entries of a row.
      bow: bags of words [n, V], whose terms stay, too.
    """
    rows_of: Any = scipy.sparse.csr_array(embeddings)
    rows_of.sort_indices()
    starts = np.asarray(rows_of.indptr, np.int64)
    counts = np.diff(starts)
    rows = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((rows_of.indices, -rows_of.data, rows))
    place = np.empty(len(order), np.int64)  # of an entry in its row, strongest first
    place[order] = np.arange(len(order)) - np.repeat(starts[:-1], counts)
    kept = place < top_k
    if bow is not None:
        numbers = rows_of.copy()
        numbers.data = np.arange(1, len(order) + 1, dtype=np.float64)
        own: Any = numbers.multiply(bow.astype(bool))
        kept[np.asarray(own.data, np.int64) - 1] = True
    found = (rows_of.data[kept], (rows[kept], rows_of.indices[kept]))
    return scipy.sparse.csr_array(found, shape=rows_of.shape)


def bags_of(
    terms: Terms,
    source: RecordSource,
    reader: FieldReader,
    items: np.ndarray,
    normalise: bool = False,
) -> scipy.sparse.csr_array:
    """Bags of words of some texts, [n, V]; no network is asked.

    Args:
      terms: of the field.
      source: the records.
      reader: how the field is read.
      items: int64 [n, 2]: record, and text in the record.
      normalise: to norm 1, where the representations are (VDR, section 4.3).
    """
    parts: list[Any] = [scipy.sparse.csr_array((0, len(terms)), dtype=np.float32)]
    for start in range(0, len(items), CHUNK):
        chosen = items[start : start + CHUNK].tolist()
        arrays = stack(reader, [source_texts(source, r, reader)[t] for r, t in chosen])
        parts.append(terms.bag(arrays["ids"], arrays["mask"], normalise=normalise))
    return concatenate(parts)


def words_shared(
    embeddings: scipy.sparse.csr_array, bow: scipy.sparse.csr_array, count: int
) -> float:
    """The share of the strongest terms of each row that are among some words, on average.

    Args:
      embeddings: of images, CSR [n, V].
      bow: bags of the words of the texts that go with each, [n, V].
      count: strongest terms of a row.
    """
    strongest = narrowed(embeddings, count)
    strongest.data[:] = 1
    present: Any = strongest.multiply(bow.astype(bool))
    total = np.maximum(np.diff(strongest.indptr), 1)
    return float(np.mean(np.asarray(present.sum(axis=1)).ravel() / total))
