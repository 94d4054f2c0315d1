"""ROUGE-L of a caption against the captions of every image.

Lin, "ROUGE: A package for automatic evaluation of summaries" (2004), as in the package rouge-score
without stemming. For texts of m and n words with a longest common subsequence of l words, it is the
F-measure 2 l / (m + n); the best of several references counts. Words are runs of the letters a to z
and digits, in lower case.

All references are compared at once. The words of the caption are bits of an integer, and each word
of a reference updates all bits by one addition (Hyyro, "Bit-parallel LCS-length computation
revisited", 2004).
"""

import re
from collections.abc import Sequence

import numpy as np

BITS = 64  # of an integer; longer captions use several integers


def words(text: str) -> list[str]:
    """Splits a text into the words to compare."""
    return re.findall("[a-z0-9]+", text.lower())


class RougeL:
    """Captions of all images, arranged for the comparison with one text."""

    def __init__(self, captions: Sequence[Sequence[str]]):
        split = [words(text) for texts in captions for text in texts]
        owners = np.repeat(np.arange(len(captions)), [len(texts) for texts in captions])  # [R]
        self._images, lengths = len(captions), np.array([len(x) for x in split], np.int64)
        order = np.argsort(-lengths, kind="stable")
        self._lengths, self._owners = lengths[order], owners[order]  # [R], the longest first
        ids: dict[str, int] = {}
        rows = [[ids.setdefault(word, len(ids)) for word in split[row]] for row in order.tolist()]
        self._ids = ids
        # Word ids at each position, of the references that are long enough.
        self._columns = [
            np.array([row[index] for row in rows[: int(np.sum(lengths > index))]], np.int64)
            for index in range(int(lengths.max(initial=0)))
        ]

    def relevance(self, texts: Sequence[str]) -> np.ndarray:
        """Computes ROUGE-L of each text with each image's best caption, float32 [texts, images]."""
        out = np.zeros((len(texts), self._images), np.float32)
        for row, text in zip(out, map(words, texts), strict=True):
            scores = 2 * self._common(text) / np.maximum(len(text) + self._lengths, 1)  # [R]
            np.maximum.at(row, self._owners, scores.astype(np.float32))
        return out

    def _common(self, text: list[str]) -> np.ndarray:
        """Computes the lengths of the longest common subsequences, int64 [R]."""
        out = np.zeros(len(self._lengths), np.int64)
        # Integer k has the words BITS k .. BITS (k + 1) - 1; additions carry to the next integer.
        masks = np.zeros((-(-len(text) // BITS), len(self._ids)), np.uint64)  # [K, V]
        for index, word in enumerate(text):
            if word in self._ids:
                bit = np.uint64(1) << np.uint64(index % BITS)
                masks[index // BITS, self._ids[word]] |= bit
        state = np.full((len(masks), len(out)), ~np.uint64(0))  # [K, R]; a common word clears a bit
        for column in self._columns:
            carry: np.ndarray | None = None
            for mask, row in zip(masks, state[:, : len(column)], strict=True):
                same = row & mask[column]
                first = row + same
                total = first if carry is None else first + carry
                if len(masks) > 1:
                    carry = ((first < row) | (total < first)).astype(np.uint64)
                row[:] = total | (row ^ same)  # `row ^ same`: bits of `row` that are not in `same`
        for row in state:
            out += np.bitwise_count(~row)
        return out
