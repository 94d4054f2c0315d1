"""A text tower of your own that starts from a file: a bidirectional GRU over GloVe vectors.

    big-retrieval train --config=examples/gru_tower.py:runlocal
    big-retrieval train --config=examples/gru_tower.py:glove=glove.6B.300d.txt,words=300
    big-retrieval search --run=RUN --plugins=examples/gru_tower.py ...

As the text encoders of VSE++ and its successors. A tower is a frozen dataclass, whose fields are
its keys, and a Linen module that its `build` makes; examples/bag_of_words.py is the smallest one.
This one has two things more. Its module is recurrent, so that it has to end each text where its
padding begins. And `first_values` lets the table of words start from vectors of a file, which is
read once, before the first step: a resumed run and a loaded model have the trained ones and need
no file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.errors import UserError
from big_retrieval.interop.fit import Fitted

TABLE = "words/embedding"  # the parameter [V, words] of a vector for each id of the tokenizer


@config.register("tower")
@dataclass(frozen=True)
class Gru(config.Tower):
    """The mean of the states of a GRU that reads a text forwards and of one that reads it back."""

    modality: ClassVar[str] = "text"  # of the fields that it reads
    type: Literal["gru"] = "gru"
    width: int = 1024  # W, of what comes out: half of it from each direction
    words: int = 300  # width of the word vectors
    glove: str = ""  # file with `word v1 v2 ...` a line, which they start from; empty: random ones

    def check(self, config: config.Config, path: str) -> Iterator[str]:
        """What is wrong with the keys, a sentence each."""
        if self.width < 2 or self.width % 2:
            yield f"{path}.width is {self.width}; it must be even, for two directions."
        if self.words < 1:
            yield f"{path}.words is {self.words}; it must be at least 1."

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> "GruModule":
        """The module; `vocab_size` is the tokenizer's, `fields` those that this tower reads."""
        return GruModule(vocab_size, self.words, self.width, **module)

    def first_values(self, drawn: Callable[[str], np.ndarray], tokenizer: Any) -> Fitted:
        """The table of words: vectors of the file where it has the word, else those drawn."""
        if not self.glove:
            return Fitted({}, [])
        table, wanted = drawn(TABLE).copy(), ids_of_words(tokenizer)
        found = read_vectors(self.glove, wanted.keys(), self.words)
        for word, vector in found.items():
            table[wanted[word]] = vector
        note = f"{len(found):,} of {len(wanted):,} words start from {self.glove}"
        return Fitted({TABLE: table}, [f"{note}, the others are random"])

    def runlocal(self) -> "Gru":
        """The same, small; word vectors of a file keep their width."""
        return replace(self, width=64, words=self.words if self.glove else 32)


class GruModule(nn.Module):
    """Word ids -> one vector a text; `dtype` is that of the run's computations."""

    vocab_size: int
    words: int
    width: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, ids: jax.Array, mask: jax.Array, *, train: bool = False, rows: Any = None
    ) -> jax.Array:
        """ids int32 [B, L], mask bool [B, L] -> [B, 1, W]; `train` and `rows` are for dropout."""
        vectors = nn.Embed(self.vocab_size, self.words, name="words")(ids)  # [B, L, words]
        lengths = jnp.sum(mask, axis=1)
        states = []
        for name in ("forward", "backward"):
            # In float32 whatever `dtype`: a recurrence adds up the rounding of all its steps.
            cell = nn.GRUCell(self.width // 2, name=name)
            # Backward, a text begins at its last word: padding comes after it either way, so that
            # no state of a word has seen any.
            read = nn.RNN(cell, reverse=name == "backward", keep_order=True)
            states.append(read(vectors, seq_lengths=lengths))  # [B, L, W/2]
        present = mask[..., None]
        total = jnp.sum(jnp.concatenate(states, axis=-1) * present, axis=1)
        mean = total / jnp.maximum(jnp.sum(present, axis=1), 1)
        return mean[:, None].astype(self.dtype)  # [B, 1, W]


def ids_of_words(tokenizer: Any) -> dict[str, list[int]]:
    """Whole word -> its ids. "##ing" is a piece of a word; CLIP's "cat</w>" is "cat"."""
    found: dict[str, list[int]] = {}
    for number in range(tokenizer.vocab_size):
        token = tokenizer.id_to_token(number)
        if number not in tokenizer.special_ids and not token.startswith("##"):
            found.setdefault(token.removesuffix("</w>"), []).append(number)
    return found


def read_vectors(path: str, wanted: Any, width: int) -> Mapping[str, np.ndarray]:
    """The vectors of some words; the file is read once, and only these are held in memory.

    Args:
      path: a text file with a word and its numbers a line, separated by single spaces.
      wanted: words.
      width: how many numbers a word has.

    Raises:
      UserError: there is no such file, a line of a wanted word is another, or it has none of them.
    """
    found: dict[str, np.ndarray] = {}
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(file, 1):
                word, _, rest = line.partition(" ")
                if word not in wanted or word in found:
                    continue
                values = rest.split()
                if number == 1 and len(values) == 1:  # word2vec's first line: how many, how wide
                    continue
                if len(values) > width and _is_word(values[0]):
                    continue  # a word with spaces in it, of which this is the beginning
                found[word] = _vector(values, width, f"{path}, line {number}")
    except OSError as problem:
        raise UserError(f"the word vectors {path} cannot be read: {problem.strerror}.") from None
    if not found:
        raise UserError(f"{path} has none of the tokenizer's words; each line is `word v1 v2 ...`.")
    return found


def _is_word(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return True
    return False


def _vector(values: Sequence[str], width: int, place: str) -> np.ndarray:
    try:
        vector = np.array(values, np.float32)
    except ValueError:
        raise UserError(f"{place}: not a word and {width} numbers.") from None
    if len(vector) != width:
        raise UserError(
            f"{place}: {len(vector)} numbers, but the tower's key words is {width}: set it to "
            f"{len(vector)} (of this config file's own, the argument words={len(vector)})."
        )
    return vector


def get_config(arg: str = "") -> recipe.Editable:
    """A small model of generated scenes. Arguments: runlocal; glove (file of word vectors); words
    (numbers of a word, those of the file)."""
    args = recipe.parse_arg(arg, glove="", words=300)
    c = recipe.small()
    c.towers.text = recipe.entry(Gru(), width=128, words=args.words, glove=args.glove)
    return recipe.runlocal(c) if args.runlocal else c
