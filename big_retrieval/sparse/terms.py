"""Which word pieces are the terms of a lexical representation.

| rule | terms | BERT's uncased vocabulary |
| --- | --- | --- |
| `all` | every id | 30,522 |
| `words` | all but special and unused tokens (VDR, section 3.1) | 29,523 |
| `ascii` | those of `words` that are plain ASCII (the VDR authors' image-text models) | 27,623 |
| `1000-` | ids from 1000 on, or from any other number | 29,522, as the VDR paper counts |
"""

import functools
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_UNUSED = re.compile(r"\[unused\d+\]")
_FROM = re.compile(r"(\d+)-")
_BERT_UNCASED = 30_522
_BERT_COUNTS = {"words": 29_523, "ascii": 27_623}


class Words(Protocol):
    """What is asked of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    def id_to_token(self, number: int) -> str: ...


@dataclass(frozen=True)
class Terms:
    """The token id of each of V terms, ascending.

    Attributes:
      ids: V ids.
      vocab_size: ids that there are.
      words: what each term is called; empty where that is not known.
      special: ids that are no words of a text, even where they have a term.
    """

    ids: range | tuple[int, ...]
    vocab_size: int
    words: tuple[str, ...] = field(default=(), repr=False)
    special: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @functools.cached_property
    def table(self) -> np.ndarray:
        """int32 [vocab_size]: the term of each id as a word; -1: it is none, or has none."""
        table = np.full(self.vocab_size, -1, np.int32)
        table[np.asarray(self.ids)] = np.arange(len(self.ids), dtype=np.int32)
        table[list(self.special)] = -1
        return table

    def bag(self, ids: np.ndarray, mask: np.ndarray, *, normalise: bool = False) -> "csr_array":
        """The binary bags of words of n texts: 1 at each term that occurs (VDR, section 3.2).

        Args:
          ids: token ids [n, L].
          mask: bool [n, L]; False where there is no token.
          normalise: bring bags to norm 1, as heads that normalise have their embeddings (VDR,
            section 4.3); one without words stays 0.

        Returns:
          float32 [n, V].
        """
        from scipy.sparse import csr_array  # checks of a config need no more than the counts above

        terms = np.where(mask, self.table[ids], -1)  # [n, L]
        rows, _ = np.nonzero(terms >= 0)
        places = terms[terms >= 0]
        values = np.ones(len(rows), np.float32)
        found = csr_array((values, (rows, places)), shape=(len(ids), len(self)))
        found.data[:] = 1  # what a text has twice was added up
        if normalise:
            lengths = np.diff(found.indptr)
            found.data /= np.repeat(np.sqrt(lengths), lengths)
        return found

    def names(self, tokenizer: Words | None) -> tuple[str, ...]:
        """What the V terms are called; rows beyond the tokenizer's by their number.

        Args:
          tokenizer: of the model; None: unknown.
        """
        if self.words:
            return self.words
        size = 0 if tokenizer is None else tokenizer.vocab_size
        return tuple(
            tokenizer.id_to_token(i) if tokenizer is not None and i < size else f"[{i}]"
            for i in self.ids
        )

    def fingerprint(self) -> str:
        """A name for the terms and their order: the SHA-256 of words and ids."""
        content = repr((list(self.ids), self.words)).encode()
        return hashlib.sha256(content).hexdigest()


def check_rule(rule: str) -> str:
    """What is wrong with a rule, "" if nothing."""
    if rule in ("all", "words", "ascii") or _FROM.fullmatch(rule):
        return ""
    return f"{rule!r}; it must be 'all', 'words', 'ascii', or a first id and a dash, as in '999-'"


def terms_of(rule: str, words: Words) -> Terms:
    """The terms that a rule chooses of a tokenizer's ids.

    Raises:
      UserError: an unknown rule, or one that leaves nothing.
    """
    if problem := check_rule(rule):
        raise UserError(f"terms is {problem}.")
    size = words.vocab_size
    names = [words.id_to_token(number) for number in range(size)]
    if rule == "all":
        ids = range(size)
    elif match := _FROM.fullmatch(rule):
        ids = range(min(int(match[1]), size), size)
    else:
        special, plain = words.special_ids, _chooser(rule)
        ids = [i for i in range(size) if i not in special and plain(names[i])]
    if not len(ids):
        raise UserError(f"terms {rule!r} leaves none of the {size} ids of the tokenizer.")
    special = tuple(sorted(words.special_ids))
    return Terms(_compact(ids), size, tuple(names[i] for i in ids), special)


def _chooser(rule: str) -> Callable[[str], bool]:
    if rule == "ascii":
        return lambda name: not _UNUSED.fullmatch(name) and name.isascii()
    return lambda name: not _UNUSED.fullmatch(name)


def terms_of_size(rule: str, size: int) -> Terms:
    """As many terms as a rule chooses of so many ids, where the tokenizer is not at hand.

    Their number is exact for `all`, for first ids and for BERT's uncased vocabulary; otherwise all
    ids are counted, which is a little too many. Which ids they are does not matter to a plan.
    """
    match = _FROM.fullmatch(rule)
    first = int(match[1]) if match else 0
    if size == _BERT_UNCASED:
        first = size - _BERT_COUNTS.get(rule, size - first)
    return Terms(range(min(first, size - 1), size), size)


def _compact(ids: Any) -> range | tuple[int, ...]:
    numbers = list(ids)
    whole = range(numbers[0], numbers[0] + len(numbers))
    return whole if numbers == list(whole) else tuple(numbers)
