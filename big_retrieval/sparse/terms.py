"""Terms of lexical representations: the word pieces of a vocabulary that a rule selects.

| rule | terms | BERT's uncased vocabulary |
| --- | --- | --- |
| `all` | all ids | 30,522 |
| `words` | all except special and unused tokens (VDR, section 3.1) | 29,523 |
| `ascii` | `words` in plain ASCII (the VDR authors' image-text models) | 27,623 |
| `1000-` | ids from 1000, or from another first id | 29,522, as in the VDR paper |
"""

import functools
import hashlib
import re
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
    """Methods of a tokenizer that `Terms` needs."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    def id_to_token(self, token_id: int) -> str: ...


@dataclass(frozen=True)
class Terms:
    """Token ids of V terms."""

    ids: range | tuple[int, ...]  # V token ids, ascending
    vocab_size: int  # number of ids of the tokenizer
    words: tuple[str, ...] = field(default=(), repr=False)  # names of the terms; empty if unknown
    special: tuple[int, ...] = ()  # special ids: not words of a text even if they are terms

    def __len__(self) -> int:
        return len(self.ids)

    @functools.cached_property
    def table(self) -> np.ndarray:
        """Term of each token id, int32 [vocab_size]; -1 for ids without a term and special ids."""
        table = np.full(self.vocab_size, -1, np.int32)
        table[np.asarray(self.ids)] = np.arange(len(self.ids), dtype=np.int32)
        table[list(self.special)] = -1
        return table

    def bag(self, ids: np.ndarray, mask: np.ndarray, *, normalise: bool = False) -> "csr_array":
        """Builds binary bags of words, float32 [n, V], from token ids [n, L] (VDR, section 3.2).

        Args:
          mask: bool [n, L]; False for padding.
          normalise: scales bags to norm 1, as heads with `normalise` do (VDR, section 4.3); a bag
            without words stays 0.
        """
        from scipy.sparse import csr_array  # not at the top: checks of a config do not need it

        terms = np.where(mask, self.table[ids], -1)  # [n, L]
        rows, _ = np.nonzero(terms >= 0)
        values = np.ones(len(rows), np.float32)
        bags = csr_array((values, (rows, terms[terms >= 0])), shape=(len(ids), len(self)))
        bags.data[:] = 1  # words that occur twice were added up
        if normalise:
            lengths = np.diff(bags.indptr)
            bags.data /= np.repeat(np.sqrt(lengths), lengths)
        return bags

    def names(self, tokenizer: Words | None) -> tuple[str, ...]:
        """Returns the names of the V terms; `[id]` for ids that the tokenizer does not have."""
        if self.words:
            return self.words
        size = 0 if tokenizer is None else tokenizer.vocab_size
        return tuple(
            tokenizer.id_to_token(i) if tokenizer is not None and i < size else f"[{i}]"
            for i in self.ids
        )

    def fingerprint(self) -> str:
        """Returns the SHA-256 of ids and words."""
        content = repr((list(self.ids), self.words)).encode()
        return hashlib.sha256(content).hexdigest()


def check_rule(rule: str) -> str:
    """Returns the error of a rule, without its key; "" if it is valid."""
    if rule in ("all", "words", "ascii") or _FROM.fullmatch(rule):
        return ""
    return f"{rule!r}; it must be 'all', 'words', 'ascii', or a first id and a dash, as in '999-'"


def terms_of(rule: str, words: Words) -> Terms:
    """Selects the terms of a tokenizer by a rule; a UserError if the rule selects nothing."""
    if error := check_rule(rule):
        raise UserError(f"terms is {error}.")
    size = words.vocab_size
    names = [words.id_to_token(i) for i in range(size)]
    if rule == "all":
        ids = range(size)
    elif match := _FROM.fullmatch(rule):
        ids = range(min(int(match[1]), size), size)
    else:
        ids = [
            i
            for i, name in enumerate(names)
            if i not in words.special_ids
            and not _UNUSED.fullmatch(name)
            and (rule == "words" or name.isascii())
        ]
    if not len(ids):
        raise UserError(f"terms {rule!r} leaves none of the {size} ids of the tokenizer.")
    special = tuple(sorted(words.special_ids))
    return Terms(_compact(ids), size, tuple(names[i] for i in ids), special)


def terms_of_size(rule: str, size: int) -> Terms:
    """Returns as many terms as a rule selects, with arbitrary ids, for plans without a tokenizer.

    The count is exact for `all`, for rules such as `1000-` and for BERT's uncased vocabulary.
    Otherwise it includes all ids, which is slightly too many.
    """
    match = _FROM.fullmatch(rule)
    first = int(match[1]) if match else 0
    if size == _BERT_UNCASED:
        first = size - _BERT_COUNTS.get(rule, size - first)
    return Terms(range(min(first, size - 1), size), size)


def _compact(ids: Any) -> range | tuple[int, ...]:
    all_ids = list(ids)
    span = range(all_ids[0], all_ids[0] + len(all_ids))
    return span if all_ids == list(span) else tuple(all_ids)
