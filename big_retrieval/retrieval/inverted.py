"""An inverted index: for every term of a vocabulary, the documents with a value for it.

The score of a query and a document is the inner product of their rows of values. If the query is a
bag of words, the score is the sum of the document's values for these words (VDR, section 5).
A search adds the lists of the query's terms to an array of scores, in the order of the query
(`postings.py`). It never returns documents without a common term. It reads every list in full:
upper bounds (MaxScore, block maxima) would skip too few entries (docs/DESIGN.md).
"""

import dataclasses
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from big_retrieval.errors import UserError
from big_retrieval.evals.top_k import check_depth, top
from big_retrieval.io.npy import ArrayWriter
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.files import IndexStore, StoredTexts, mapped_files, open_array
from big_retrieval.retrieval.folder import INVERTED, REBUILD, About
from big_retrieval.retrieval.postings import PostingLists
from big_retrieval.retrieval.runs import Part, Run, Runs, check_count, checked, merged

MEMORY = 512 * 2**20  # bytes for building
SHORT = 16  # a query is short if its lists have less than one entry per this many documents
LARGEST_HALF = 65504.0  # of float16
SCANNED = 2**22  # entries to scan at a time for the values of a document
BINARY = "binary"  # all values are 1 and not stored


def build(
    folder: Path, batches: Iterable[sparse.csr_array], about: About, *, memory: int = MEMORY
) -> About:
    """Writes the arrays of an inverted index in one pass over the documents.

    Args:
      folder: result of `folder.begin`.
      batches: values of consecutive documents, float32 [n, V], not negative.
      about: description of the index with the number of terms and the type of the values.
      memory: approximate bytes to use, independent of the number of documents.
    """
    runs = Runs(folder, about.terms, memory)
    for rows in batches:
        runs.add(_stored(rows, about.values))
    runs.spill()
    about = dataclasses.replace(about, kind=INVERTED, documents=runs.documents)
    return _write_arrays(folder, runs.merge(), runs.entries, about)


def join_parts(folder: Path, parts: Sequence[tuple[Path, About]], *, memory: int = MEMORY) -> About:
    """Joins indexes (folder, description) of consecutive documents, as if built at once."""
    first = parts[0][1]
    runs = [
        Run(
            about.documents,
            pointers=path / "pointers.npy",
            documents=path / "documents.npy",
            values=None if about.values == BINARY else path / "values.npy",
        )
        for path, about in parts
    ]
    entries = np.zeros(first.terms, np.int64)
    for run in runs:
        entries += np.diff(open_array(run.pointers, np.int64))
    about = dataclasses.replace(first, documents=sum(run.rows for run in runs))
    check_count(about.documents)
    return _write_arrays(folder, merged(runs, entries, memory), entries, about)


def _write_arrays(folder: Path, parts: Iterator[Part], entries: np.ndarray, about: About) -> About:
    """Writes the arrays of an index; `entries` counts the values per term, int64 [V]."""
    with ArrayWriter(folder / "documents.npy", np.int32) as documents:
        if about.values == BINARY:
            for indices, _ in parts:
                documents.append(indices)
        else:
            with ArrayWriter(folder / "values.npy", about.values) as values:
                for indices, part_values in parts:
                    documents.append(indices)
                    values.append(part_values)
    with ArrayWriter(folder / "pointers.npy", np.int64) as pointers:
        pointers.append(np.concatenate([[0], np.cumsum(entries)]))  # [V + 1]
    return dataclasses.replace(about, entries=documents.rows)


def _stored(rows: sparse.csr_array, values: str) -> sparse.csr_array:
    """Rounds rows to the type of the stored values; the result is float32."""
    if values == BINARY and (rows.data != 1).any():
        raise UserError("A binary index needs bags of words, with all values 1.")
    if values != "float16":
        return rows
    if (rows.data > LARGEST_HALF).any():
        raise UserError(
            f"Value {rows.data.max():g} is too large for float16. Build with --values=float32."
        )
    rows = rows.copy()
    rows.data = rows.data.astype(np.float16).astype(np.float32)  # tiny values become 0
    return rows


class InvertedIndex:
    """An opened inverted index with the rows (`store`) and ids of its documents.

    Several threads may search it. `folder` and `about` come from `folder.open_folder`.
    """

    def __init__(self, folder: Path, about: About):
        self.folder, self.about, self.stamp = folder, about, folders.stamp(folder)
        self.store = IndexStore(folder)
        self.ids = StoredTexts(self.store, "id")
        names = ("documents.npy",) if about.values == BINARY else ("documents.npy", "values.npy")
        self._files = mapped_files(*(folder / name for name in names))
        self._pointers = np.array(open_array(folder / "pointers.npy", np.int64))  # [V + 1]
        self._documents = open_array(folder / "documents.npy", np.int32)  # [entries]
        self._values: np.ndarray | None = None
        if about.values != BINARY:
            self._values = open_array(folder / "values.npy", about.values)  # [entries]
        entries = len(self._documents)
        stored = entries if self._values is None else len(self._values)
        sizes = (len(self._pointers), self._pointers[-1], stored, entries, len(self.ids))
        fit = sizes == (about.terms + 1, about.entries, about.entries, about.entries, len(self))
        lengths = np.diff(self._pointers, prepend=0)  # lengths[0] is the start of the first list
        if not fit or lengths.min() < 0 or lengths.max() > len(self):
            raise UserError(f"The files of index {folder} do not fit together. {REBUILD}.")
        self._lists = PostingLists(self._pointers, self._documents, self._values, len(self))
        self._local = threading.local()

    def __len__(self) -> int:
        return self.about.documents

    def search(self, queries: sparse.csr_array, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the best documents of each query by inner product.

        Args:
          queries: values or bags of words, [q, V], not negative.
          depth: maximum number of documents per query.

        Returns:
          Document indices int64 [q, depth], best first (the lower index first for equal scores),
          and their scores above 0, float32 [q, depth]. Missing documents have the index -1 and
          -inf.
        """
        check_depth(depth)
        rows = checked(queries, self.about.terms, 0, noun="query")
        indices = np.full((rows.shape[0], depth), -1, np.int64)
        scores = np.full(indices.shape, -np.inf, np.float32)
        for row in range(len(indices)):
            one = slice(rows.indptr[row], rows.indptr[row + 1])
            hits, values = self._search(rows.indices[one], rows.data[one], depth)
            indices[row, : len(hits)], scores[row, : len(hits)] = hits, values
        return indices, scores

    def search_one(
        self, terms: np.ndarray, weights: np.ndarray | None, depth: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the best documents of one query as `search`, without padding to `depth`.

        Args:
          terms: terms of the query, int [k]; weights of equal terms add up.
          weights: weights of the terms, [k], not negative; None for 1.
        """
        check_depth(depth)
        terms = np.asarray(terms, np.int64)
        weights = np.ones(len(terms), np.float32) if weights is None else weights
        values = np.asarray(weights, np.float32)
        if len(terms) and not 0 <= terms.min() <= terms.max() < self.about.terms:
            raise UserError(
                f"The query has terms {terms.min()} to {terms.max()}, the index "
                f"0 to {self.about.terms - 1}."
            )
        if terms.shape != values.shape or not ((values >= 0) & (values < np.inf)).all():
            raise UserError("The weights of a query must be finite and at least 0, one per term.")
        return self._search(terms, values, depth)

    def explain(
        self, terms: np.ndarray, weights: np.ndarray, document: int
    ) -> list[tuple[int, float]]:
        """Returns (term, part of the document's score), the largest part first."""
        self._check_files()
        parts = []
        for term, weight in zip(terms.tolist(), weights.tolist(), strict=True):
            start, stop = self._pointers[term : term + 2].tolist()
            entry = start + int(np.searchsorted(self._documents[start:stop], document))
            if entry < stop and self._documents[entry] == document:
                value = 1.0 if self._values is None else float(self._values[entry])
                parts.append((term, weight * value))
        return sorted(parts, key=lambda pair: -pair[1])

    def row(self, document: int) -> sparse.csr_array:
        """Returns the values of one document, CSR [1, V], by a scan of all lists."""
        self._check_files()
        blocks = [np.zeros(0, np.int64)]
        for start in range(0, len(self._documents), SCANNED):
            block = self._documents[start : start + SCANNED]
            blocks.append(start + np.flatnonzero(block == document))
        entries = np.concatenate(blocks)
        terms = np.searchsorted(self._pointers, entries, side="right") - 1
        values = np.ones(len(entries)) if self._values is None else self._values[entries]
        rows = (np.asarray(values, np.float32), (np.zeros(len(entries), np.int64), terms))
        return sparse.csr_array(rows, shape=(1, self.about.terms))

    def _search(
        self, terms: np.ndarray, weights: np.ndarray, depth: int
    ) -> tuple[np.ndarray, np.ndarray]:
        self._check_files()
        scores = self._scores()
        try:
            lists = self._lists.add(scores, terms, weights)
            # For short lists, collecting their documents is faster than a scan of all scores.
            short = SHORT * sum(stop - start for start, stop in lists) < len(self)
            indices, values = self._few(scores, lists) if short else (None, scores)
            best = top(values, depth, indices)
            if not short:
                scores.fill(0)
        except BaseException as error:
            self._local.scores = None  # may contain partial scores of this query
            if isinstance(error, IndexError):
                raise UserError(f"Index {self.folder} is damaged. {REBUILD}.") from None
            raise
        return best[0].astype(np.int64), best[1]

    def _check_files(self) -> None:
        """Raises a UserError if a mapped file was changed: reading it could kill the process."""
        for file in self._files:
            file.check()

    def _scores(self) -> np.ndarray:
        """Returns this thread's scores of all documents, float32, all 0."""
        scores = getattr(self._local, "scores", None)
        if scores is None:
            scores = self._local.scores = np.zeros(len(self), np.float32)
        return scores

    def _few(self, scores: np.ndarray, lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the documents of the lists with their scores, and resets the scores to 0.

        A document of several lists has its score in the first list, and 0 in the others.
        """
        indices, values = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
        for start, stop in lists:
            documents = self._documents[start:stop]
            indices.append(documents)
            values.append(scores.take(documents))
            scores[documents] = 0
        return np.concatenate(indices), np.concatenate(values)
