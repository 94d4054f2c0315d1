"""ROUGE-L of a caption against the captions of every image.

Lin, "ROUGE: A package for automatic evaluation of summaries" (2004), as the package rouge-score
computes it without stemming: of two texts with m and n words whose longest common subsequence has l
words, the F-measure 2 l / (m + n); of several references the best one counts. Words are runs of the
letters a to z and digits, in lower case.

All subsequences of one caption with all references are found at once, bit by bit: the words of the
caption are bits of a number, and each word of a reference changes all bits by one addition
(Hyyro, "Bit-parallel LCS-length computation revisited", 2004).
"""

import re
from collections.abc import Sequence

import numpy as np

BITS = 64  # of a number; longer captions have several


def words(text: str) -> list[str]:
    """The words that are compared."""
    return re.findall("[a-z0-9]+", text.lower())


class RougeL:
    """The captions of all images, laid out so that one text is compared with all of them.

    Args:
      captions: of each image.
    """

    def __init__(self, captions: Sequence[Sequence[str]]):
        split = [words(text) for texts in captions for text in texts]
        owners = np.repeat(np.arange(len(captions)), [len(texts) for texts in captions])  # [R]
        self._images, lengths = len(captions), np.array([len(x) for x in split], np.int64)
        self._numbers: dict[str, int] = {}
        order = np.argsort(-lengths, kind="stable")
        self._lengths, self._owners = lengths[order], owners[order]  # [R], the longest first
        # The words at each place of the references that are long enough, as numbers from 0.
        numbers = [[self._number(word) for word in split[place]] for place in order.tolist()]
        longest = int(lengths.max(initial=0))
        self._columns = [
            np.array([row[place] for row in numbers[: int(np.sum(lengths > place))]], np.int64)
            for place in range(longest)
        ]

    def _number(self, word: str) -> int:
        return self._numbers.setdefault(word, len(self._numbers))

    def relevance(self, texts: Sequence[str]) -> np.ndarray:
        """ROUGE-L of each text with the best caption of each image, float32 [texts, images]."""
        return np.stack([self._of_images(words(text)) for text in texts])

    def _of_images(self, text: list[str]) -> np.ndarray:
        """ROUGE-L of a text's words with the best caption of each image, float32 [images]."""
        total = len(text) + self._lengths
        found = 2 * self._common(text) / np.maximum(total, 1)  # [R]
        out = np.zeros(self._images, np.float32)
        np.maximum.at(out, self._owners, found.astype(np.float32))
        return out

    def _common(self, text: list[str]) -> np.ndarray:
        """The length of the longest common subsequence with each reference, int64 [R]."""
        out = np.zeros(len(self._lengths), np.int64)
        # Number k holds the words BITS k .. BITS (k + 1) - 1; additions carry to the next one.
        masks = np.zeros((-(-len(text) // BITS), len(self._numbers)), np.uint64)  # [K, V]
        for place, word in enumerate(text):
            if word in self._numbers:
                bit = np.uint64(1) << np.uint64(place % BITS)
                masks[place // BITS, self._numbers[word]] |= bit
        state = np.full((len(masks), len(out)), ~np.uint64(0))  # [K, R]; a common word clears a bit
        for column in self._columns:
            carry: np.ndarray | None = None
            for mask, row in zip(masks, state[:, : len(column)], strict=True):
                same = row & mask[column]
                first = row + same
                whole = first if carry is None else first + carry
                if len(masks) > 1:
                    carry = ((first < row) | (whole < first)).astype(np.uint64)
                row[:] = whole | (row ^ same)  # of the bits of `row`, those that are not in `same`
        for row in state:
            out += np.bitwise_count(~row)
        return out
