"""The columns of a lexical head: which token each stands for, and bags of words in them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from big_retrieval.config import Bert, Config
from big_retrieval.data.text import Tokenizer
from big_retrieval.errors import UserError
from big_retrieval.retrieval.files import ArrayWriter, open_array

FILE = "columns.npy"
TOKENIZER = "tokenizer.json"


class Columns:
    """Columns and their tokens.

    Args:
      ids: of the token of each column, [V], each once.
      tokenizer: of the texts.

    Attributes:
      ids: int32 [V].
      tokenizer: of the texts.
    """

    def __init__(self, ids: Sequence[int] | np.ndarray, tokenizer: Tokenizer):
        self.ids, self.tokenizer = np.asarray(ids, np.int32), tokenizer
        size = max(tokenizer.vocab_size, 1 + int(self.ids.max(initial=0)))
        self._column = np.full(size, -1, np.int32)
        self._column[self.ids] = np.arange(len(self.ids))
        # No query asks for the end of a text, and a document that did would be found by all.
        self._column[sorted(tokenizer.special_ids)] = -1

    def __len__(self) -> int:
        """V."""
        return len(self.ids)

    @property
    def words(self) -> list[str]:
        """The token of each column as the tokenizer writes it; [id n] where it knows none."""
        known = self.tokenizer.vocab_size
        names = (self.tokenizer.id_to_token(i) if i < known else f"[id {i}]" for i in self.ids)
        return list(names)

    def bag(self, ids: np.ndarray, mask: np.ndarray) -> sparse.csr_array:
        """Bags of words: 1 in the column of every token of a text, however often it occurs.

        Special tokens have none, nor have tokens without a column.

        Args:
          ids: of tokens, int [n, L].
          mask: true at tokens, [n, L].

        Returns:
          float32 [n, V].
        """
        columns = np.where(mask, self._column[ids], -1)  # [n, L]
        rows, places = np.nonzero(columns >= 0)
        shape = (len(ids), len(self))
        ones = np.ones(len(rows), np.float32)
        found = sparse.csr_array((ones, (rows, columns[rows, places])), shape=shape)
        found.data[:] = 1  # what occurs twice was added up
        return found

    def bag_of(self, texts: Sequence[str], length: int) -> sparse.csr_array:
        """Bags of words of n texts that are cut to a number of tokens: float32 [n, V]."""
        return self.bag(*self.tokenizer.encode(texts, length))

    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer and of the columns' ids."""
        digest = hashlib.sha256(self.tokenizer.to_json().encode())
        digest.update(self.ids.astype("<i4").tobytes())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Writes what `load` needs into a folder."""
        with ArrayWriter(folder / FILE, np.int32) as file:
            file.append(self.ids)
        self.tokenizer.save(folder / TOKENIZER)

    @classmethod
    def load(cls, folder: Path) -> "Columns":
        """The columns that `save` wrote.

        Raises:
          UserError: a file is missing or damaged.
        """
        return cls(
            np.array(open_array(folder / FILE, np.int32)), Tokenizer.load(folder / TOKENIZER)
        )


def is_lexical(config: Config, field: str) -> bool:
    """Whether a field has a lexical head, its own or a shared one."""
    return config.fields[config.fields[field].shares_head or field].head.type == "lexical"


def columns_of(config: Config, tokenizer: Tokenizer, field: str) -> Columns:
    """The columns of a field with a lexical head.

    Raises:
      UserError: it has another head.
    """
    if not is_lexical(config, field):
        raise UserError(f"field {field!r} has no lexical head, so its model has no columns.")
    tower = config.towers[config.fields[config.fields[field].shares_head or field].tower]
    words = (tower.vocab_size if isinstance(tower, Bert) else None) or tokenizer.vocab_size
    return Columns(range(words), tokenizer)
