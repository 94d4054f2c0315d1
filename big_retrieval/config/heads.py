"""Base class of heads, which compute embeddings from a tower's vectors; heads are in models/."""

import abc
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from big_retrieval.config.registry import Part

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.sparse.terms import Terms

LOCAL_TOP_K = 16  # terms that a gate leaves in `runlocal`, of the about 50 words of scenes


class Head(Part):
    """Base class of heads; see `Part`."""

    kind: ClassVar[str] = "head"
    # embeddings have a value for every term of a vocabulary (`Lexical` and its subclasses):
    # evaluations store them sparse, and words explain them
    lexical: ClassVar[bool] = False
    reads_positions: ClassVar[bool] = False  # reads all positions of a row, not class tokens
    normed: ClassVar[bool] = False  # has batch norms (`models.batch_norm.BatchNorm`)
    # fields of any modality and width may share it; its module then has a separate part for each
    across: ClassVar[bool] = False
    dim: Any = None  # N of the embeddings; None for the width of the tower
    whole_batch: Any = False  # embeddings depend on all rows of the batch in training
    by_slice: Any = False  # embeddings depend on the rows of the micro-batch

    def check(self, config: "Config", field: str, path: str) -> Iterator[str]:  # type: ignore
        """Yields an error message for every bad key; `path` is as in `config.fields.text.head`."""
        yield from ()

    def embedding_shape(self, config: "Config", field: str, vocab_size: int) -> tuple[int, int]:
        """Returns the shape (M, N) of the field's embeddings; `vocab_size` is the tokenizer's."""
        tower = config.towers[config.fields[field].tower]
        return tower.tokens, self.dim or tower.width

    @abc.abstractmethod
    def build(self, terms: "Terms | None", **module: Any) -> Any:
        """Returns the Linen module with `name`, `parent`, `dtype`; `terms` for lexical heads."""

    def embed(
        self, module: Any, tower: Any, tokens: Any, arrays: Mapping[str, Any], **call: Any
    ) -> Any:
        """Computes raw embeddings [B, M, N], which the topology projects; traced by jax.

        Args:
          module: from `build`.
          tower: the tower's module.
          tokens: output of the tower, [B, M, W].
          arrays: the field's arrays.
          **call: the field's name as `field`; `train` and `rows`, as in a tower's call.
        """
        return module(tokens)
