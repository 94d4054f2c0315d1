"""Bags of words of records, and lexical embeddings in a search mode (`evals/modes.py`)."""

from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.data.fields.reader import FieldReader, stack
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.evals.modes import Mode, Side
from big_retrieval.inference.encoder import Embeddings, Encoder, concatenate

CHUNK = 4096  # texts tokenized at a time


def in_mode(
    embeddings: Embeddings, mode: Mode, side: Side, bow: scipy.sparse.csr_array | None
) -> scipy.sparse.csr_array:
    """Converts the embeddings of a lexical field to a mode.

    Args:
      embeddings: CSR [n, V], after the head's gate.
      side: side of the field.
      bow: bags of words of the texts, [n, V]; None for images.

    Raises:
      UserError: the mode needs words of a field without words.
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
    """Keeps the `top_k` largest entries of each row (the lower term of equal ones).

    Args:
      embeddings: CSR [n, V], not negative.
      bow: bags of words [n, V], whose terms are kept, too.
    """
    matrix: Any = scipy.sparse.csr_array(embeddings)
    matrix.sort_indices()
    starts = np.asarray(matrix.indptr, np.int64)
    counts = np.diff(starts)
    rows = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((matrix.indices, -matrix.data, rows))
    rank = np.empty(len(order), np.int64)  # of an entry in its row, largest first
    rank[order] = np.arange(len(order)) - np.repeat(starts[:-1], counts)
    keep_mask = rank < top_k
    if bow is not None:
        positions = matrix.copy()
        positions.data = np.arange(1, len(order) + 1, dtype=np.float64)
        in_bow: Any = positions.multiply(bow.astype(bool))
        keep_mask[np.asarray(in_bow.data, np.int64) - 1] = True
    entries = (matrix.data[keep_mask], (rows[keep_mask], matrix.indices[keep_mask]))
    return scipy.sparse.csr_array(entries, shape=matrix.shape)


def bags_of_texts(
    encoder: Encoder, field: str, source: RecordSource, reader: FieldReader, items: np.ndarray
) -> scipy.sparse.csr_array:
    """Builds the bags of words of texts, CSR [n, V], without the model.

    They have norm 1 if the representations of the field have (VDR, section 4.3).

    Args:
      field: a lexical text field.
      items: int64 [n, 2]: record, and text in the record.
    """
    terms, normalise = encoder.terms(field), encoder.normalises(field)
    assert terms is not None  # the caller has lexical embeddings of the field
    chunks: list[Any] = [scipy.sparse.csr_array((0, len(terms)), dtype=np.float32)]
    for start in range(0, len(items), CHUNK):
        rows = items[start : start + CHUNK].tolist()
        arrays = stack(reader, [source_texts(source, r, reader)[t] for r, t in rows])
        chunks.append(terms.bag(arrays["ids"], arrays["mask"], normalise=normalise))
    return concatenate(chunks)


def words_shared(
    embeddings: scipy.sparse.csr_array, bow: scipy.sparse.csr_array, count: int
) -> float:
    """Computes the mean share of each row's strongest terms that are in the bag of words.

    Args:
      embeddings: of images, CSR [n, V].
      bow: bags of words of each image's texts, [n, V].
      count: number of strongest terms per row.
    """
    strongest = narrowed(embeddings, count)
    strongest.data[:] = 1
    present: Any = strongest.multiply(bow.astype(bool))
    total = np.maximum(np.diff(strongest.indptr), 1)
    return float(np.mean(np.asarray(present.sum(axis=1)).ravel() / total))
