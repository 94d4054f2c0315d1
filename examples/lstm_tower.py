"""A tower of your own made from one of ours: an LSTM where `config.Gru` has a GRU.

    big-retrieval train --config=examples/lstm_tower.py:runlocal
    big-retrieval train --config=examples/lstm_tower.py:glove=glove.6B.300d.txt,words=300
    big-retrieval search --run=RUN --plugins=examples/lstm_tower.py ...

A tower is a frozen dataclass, whose fields are its keys, and a Linen module that its `build` makes;
examples/bag_of_words.py is the smallest tower. A subclass inherits the keys of its base class, the
checks of these keys, and `first_values`: the parameters that start from something else than random
numbers. `config.Gru` lets the table of words start from GloVe vectors; here the forget gates start
open, too, with which an LSTM learns faster. `first_values` is called once, before the first step: a
resumed run and a loaded model have trained values, and need no GloVe file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.interop.fit import Fitted

DIRECTIONS = ("forward", "backward")


@config.register("tower")
@dataclass(frozen=True)
class Lstm(config.Gru):
    """The mean of the states of an LSTM that reads forwards and of one that reads backwards."""

    computed_by: ClassVar[tuple[str, ...]] = ("width", "words")
    type: Literal["lstm"] = "lstm"
    read: Literal["mean"] = "mean"
    forget_bias: float = 1.0  # of the forget gates at the start; above 0 they are open

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> "LstmModule":
        """The module; `vocab_size` is the tokenizer's, `fields` those that this tower reads."""
        return LstmModule(vocab_size, self.words, self.width, **module)

    def first_values(self, drawn: Callable[[str], np.ndarray], tokenizer: Any) -> Fitted:
        """The first values of the base class (the table of words) and of the forget gates."""
        words = super().first_values(drawn, tokenizer)
        names = [f"{direction}/hf/bias" for direction in DIRECTIONS]
        gates = {name: np.full_like(drawn(name), self.forget_bias) for name in names}
        note = f"the forget gates start at {self.forget_bias:g}"
        return Fitted({**words.params, **gates}, [*words.notes, note])


class LstmModule(nn.Module):
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
        normal = nn.initializers.normal(1.0)
        table = self.param(config.Gru.table, normal, (self.vocab_size, self.words))
        vectors = jnp.take(table, ids, axis=0)  # [B, L, words]
        states = []
        for name in DIRECTIONS:
            # In float32 whatever `dtype`: a recurrence adds up the rounding of all its steps.
            cell = nn.OptimizedLSTMCell(self.width // 2, name=name)
            # The backward direction begins at the last word of a text, so that the state of no
            # word has seen padding, in either direction.
            read = nn.RNN(cell, reverse=name == "backward", keep_order=True)
            states.append(read(vectors, seq_lengths=jnp.sum(mask, axis=1)))  # [B, L, W/2]
        total = jnp.sum(jnp.concatenate(states, axis=-1) * mask[..., None], axis=1)
        mean = total / jnp.maximum(jnp.sum(mask, axis=1), 1)[:, None]
        return mean[:, None].astype(self.dtype)  # [B, 1, W]


def get_config(arg: str = "") -> recipe.Editable:
    """A small model of generated scenes. Arguments: runlocal; glove (file of word vectors); words
    (numbers of a word, those of the file)."""
    args = recipe.parse_arg(arg, glove="", words=300)
    c = recipe.small()
    c.towers.text = recipe.entry(Lstm(), width=128, words=args.words, glove=args.glove)
    return recipe.runlocal(c) if args.runlocal else c
