"""An inverted index: for every term of a vocabulary the documents that have a value in it.

A query's score of a document is the inner product of their rows of values; with a bag of words as
the query, the sum of the document's values in the terms of its words (VDR, section 5). Only the
lists of the query's terms are read, in the order of the query, and added to an array of scores
(`postings.py`). Documents that share no term with a query are never looked at, nor found. No list
is skipped: upper bounds of lists and of blocks of documents are too high (docs/DESIGN.md).
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
from big_retrieval.retrieval.files import StoredTexts, mapped_files, open_array
from big_retrieval.retrieval.folder import INVERTED, REBUILD, About
from big_retrieval.retrieval.postings import PostingLists, are_pointers
from big_retrieval.retrieval.runs import Part, Run, Runs, check_number, checked, merged

MEMORY = 512 * 2**20  # bytes that building works with
SHORT = 16  # a query is short where its lists hold less than one entry in so many documents
LARGEST_HALF = 65504.0  # of float16
SCANNED = 2**22  # entries that are looked through at a time for the values of a document
BINARY = "binary"  # all values are 1 and none is stored
VALUES = ("float32", "float16", BINARY)


def build(
    folder: Path, batches: Iterable[sparse.csr_array], about: About, *, memory: int = MEMORY
) -> About:
    """Writes the arrays of an inverted index in one pass over the documents.

    Args:
      folder: what `folder.begin` gave; `folder.finish` comes after this.
      batches: values of consecutive documents, float32 [n, V] each, from 0 on.
      about: with the number of terms and the type of the values.
      memory: bytes to work with, about, however many documents there are.

    Returns:
      `about` with what was found: kind, documents and entries.

    Raises:
      UserError: what `Runs.add` says of the values; one that is not 1 in a binary index, or one
        too large for float16.
    """
    runs = Runs(folder, about.terms, memory)
    for rows in batches:
        runs.add(_stored(rows, about.values))
    runs.spill()
    about = dataclasses.replace(about, kind=INVERTED, documents=runs.documents)
    return _write(folder, runs.merge(), runs.entries, about)


def join(folder: Path, parts: Sequence[tuple[Path, About]], *, memory: int = MEMORY) -> About:
    """Writes the arrays of the inverted index of all documents of several indexes.

    They are those that `build` would write for all documents: an index is a run of its documents.

    Args:
      folder: as in `build`.
      parts: folders of indexes of consecutive documents, of one kind, and what they are.
      memory: as in `build`.

    Returns:
      The description of the whole index.
    """
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
    check_number(about.documents)
    return _write(folder, merged(runs, entries, memory), entries, about)


def _write(folder: Path, parts: Iterator[Part], entries: np.ndarray, about: About) -> About:
    """Writes the arrays of an index.

    Args:
      folder: of the index.
      parts: values of all terms, one term behind the other.
      entries: int64 [V], values of every term.
      about: the index, but for the number of entries.

    Returns:
      `about` with the number of entries.
    """
    with ArrayWriter(folder / "documents.npy", np.int32) as documents:
        if about.values == BINARY:
            for numbers, _ in parts:
                documents.append(numbers)
        else:
            with ArrayWriter(folder / "values.npy", about.values) as values:
                for numbers, found in parts:
                    documents.append(numbers)
                    values.append(found)
    with ArrayWriter(folder / "pointers.npy", np.int64) as pointers:
        pointers.append(np.concatenate([[0], np.cumsum(entries)]))  # [V + 1]
    return dataclasses.replace(about, entries=documents.rows)


def _stored(rows: sparse.csr_array, values: str) -> sparse.csr_array:
    """Rows with the values that a type can hold, as float32 again."""
    if values == BINARY and (rows.data != 1).any():
        raise UserError("a binary index holds bags of words, whose values are 1.")
    if values != "float16":
        return rows
    if (rows.data > LARGEST_HALF).any():
        raise UserError(
            f"the value {rows.data.max():g} is too large for float16; build with --values=float32."
        )
    rows = rows.copy()
    rows.data = rows.data.astype(np.float16).astype(np.float32)  # the smallest ones become 0
    return rows


class InvertedIndex:
    """An opened inverted index; safe to search from several threads.

    Args:
      folder: checked by `folder.open_folder`.
      about: what it returned.

    Attributes:
      about: what the index is.
      ids: of the documents.

    Raises:
      UserError: its files do not fit together.
    """

    def __init__(self, folder: Path, about: About):
        self.folder, self.about, self.stamp = folder, about, folders.stamp(folder)
        self.ids = StoredTexts(folder, "ids")
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
        if not (fit and are_pointers(self._pointers, len(self))):
            raise UserError(f"the files of the index {folder} do not fit together; {REBUILD}.")
        self._lists = PostingLists(self._pointers, self._documents, self._values, len(self))
        self._local = threading.local()

    def __len__(self) -> int:
        """The number of documents."""
        return self.about.documents

    def search(self, queries: sparse.csr_array, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """The best documents of each query by inner product, exactly.

        Args:
          queries: values or bags of words, [q, V], not negative.
          depth: documents of a query at most.

        Returns:
          Numbers of documents, int64 [q, depth], best first, of equal scores the lower number; and
          their scores, float32 [q, depth]. Only documents with a score above 0 are found; behind
          the last one the number is -1 and the score -inf.

        Raises:
          UserError: another number of terms, values that are negative or not finite, or a depth
            below 1.
        """
        check_depth(depth)
        rows = checked(queries, self.about.terms, 0, what="query")
        numbers = np.full((rows.shape[0], depth), -1, np.int64)
        scores = np.full(numbers.shape, -np.inf, np.float32)
        for row in range(len(numbers)):
            one = slice(rows.indptr[row], rows.indptr[row + 1])
            found, values = self._search(rows.indices[one], rows.data[one], depth)
            numbers[row, : len(found)], scores[row, : len(found)] = found, values
        return numbers, scores

    def search_one(
        self, terms: np.ndarray, weights: np.ndarray | None, depth: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best documents of one query.

        Args:
          terms: of the query, int [k].
          weights: in them, [k], not negative; None: 1. Of a term that comes twice they add up.
          depth: documents at most.

        Returns:
          Numbers of documents, int64 [d], best first, d <= depth, and their scores, float32 [d].

        Raises:
          UserError: as `search`.
        """
        check_depth(depth)
        terms = np.asarray(terms, np.int64)
        weights = np.ones(len(terms), np.float32) if weights is None else weights
        values = np.asarray(weights, np.float32)
        if len(terms) and not 0 <= terms.min() <= terms.max() < self.about.terms:
            raise UserError(
                f"a query has terms {terms.min()} to {terms.max()}, the index "
                f"0 to {self.about.terms - 1}."
            )
        if terms.shape != values.shape or not ((values >= 0) & (values < np.inf)).all():
            raise UserError("the weights of a query are finite numbers from 0 on, one a term.")
        return self._search(terms, values, depth)

    def explain(
        self, terms: np.ndarray, weights: np.ndarray, number: int
    ) -> list[tuple[int, float]]:
        """What each term adds to the score of a document: (term, product), largest first."""
        self._check_files()
        found = []
        for term, weight in zip(terms.tolist(), weights.tolist(), strict=True):
            start, stop = self._pointers[term : term + 2].tolist()
            # The numbers of a list's documents ascend.
            place = start + int(np.searchsorted(self._documents[start:stop], number))
            if place < stop and self._documents[place] == number:
                value = 1.0 if self._values is None else float(self._values[place])
                found.append((term, weight * value))
        return sorted(found, key=lambda pair: -pair[1])

    def row(self, number: int) -> sparse.csr_array:
        """The values of one document, CSR [1, V]: looks through all lists, and keeps nothing."""
        self._check_files()
        places: list[np.ndarray] = []
        for start in range(0, len(self._documents), SCANNED):
            found = np.flatnonzero(self._documents[start : start + SCANNED] == number)
            places.append(start + found)
        at = np.concatenate(places) if places else np.zeros(0, np.int64)
        terms = np.searchsorted(self._pointers, at, side="right") - 1
        values = np.ones(len(at)) if self._values is None else self._values[at]
        shape = (1, self.about.terms)
        rows = (np.asarray(values, np.float32), (np.zeros(len(at), np.int64), terms))
        return sparse.csr_array(rows, shape=shape)

    def _search(
        self, terms: np.ndarray, weights: np.ndarray, depth: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """`search_one` for a query that was checked."""
        self._check_files()
        scores = self._scores()
        try:
            lists = self._lists.add(scores, terms, weights)
            # Looking through all scores, and setting them to 0, costs more than to collect the few
            # documents of short lists.
            short = SHORT * sum(stop - start for start, stop in lists) < len(self)
            numbers, found = self._few(scores, lists) if short else (None, scores)
            best = top(found, depth, numbers)
            if not short:
                scores.fill(0)
        except BaseException as problem:
            self._local.scores = None  # they may hold half a query
            if isinstance(problem, IndexError):
                raise UserError(f"the index {self.folder} is damaged; {REBUILD}.") from None
            raise
        return best[0].astype(np.int64), best[1]

    def _check_files(self) -> None:
        """Raises a UserError if a mapped file was changed, which might end the process."""
        for file in self._files:
            file.check()

    def _scores(self) -> np.ndarray:
        """This thread's scores of all documents, float32, all 0."""
        scores = getattr(self._local, "scores", None)
        if scores is None:
            scores = self._local.scores = np.zeros(len(self), np.float32)
        return scores

    def _few(self, scores: np.ndarray, lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """The documents of the lists with their scores, which are set back to 0.

        A document of several lists keeps its score in the first one and has 0 in the others.
        """
        numbers, found = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
        for start, stop in lists:
            documents = self._documents[start:stop]
            numbers.append(documents)
            found.append(scores.take(documents))
            scores[documents] = 0
        return np.concatenate(numbers), np.concatenate(found)
