"""Base class of towers, networks that read a field; the package's towers are in models/."""

import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from big_retrieval.config.registry import Part

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu"]
Remat = Literal["none", "block", "dots"]
AttentionChoice = Literal["auto", "kernel", "plain"]


@dataclass(frozen=True)
class Fitted:
    """Initial values of some parameters of a tower."""

    params: dict[str, Any]  # path below the tower -> array
    notes: list[str]  # log messages about changes to the arrays


class Tower(Part):
    """Base class of towers; see `Part`. `models/flops.py` counts the operations of its module."""

    kind: ClassVar[str] = "tower"
    modality: ClassVar[str] = ""  # of the fields that it reads, see `Field.modality`
    # parameter [R, W] with a vector for every token, which the module's method `word_table()` gives
    # to tied heads; empty for none
    word_table: ClassVar[str] = ""
    # keys that must be equal in a checkpoint's tower, because they define the computation; others
    # are table sizes or execution settings. Empty for all keys
    computed_by: ClassVar[tuple[str, ...]] = ()
    normed: ClassVar[bool] = False  # has batch norms (`models.batch_norm.BatchNorm`)
    width: Any = 0  # W, of the output vectors
    class_tokens: Any = 1  # M, vectors per row; 0 if it returns all positions
    vocab_size: Any = None  # rows of the word table; None for the tokenizer's vocabulary
    gives_positions: Any = False  # returns all positions [B, L, W], for heads that read them
    whole_batch: Any = False  # vectors depend on all rows of the batch in training
    by_slice: Any = False  # vectors depend on the rows of the micro-batch
    remat: Any = "none"  # parts that the backward pass computes again
    scan: Any = False  # equal layers run as one compiled layer (on GPUs only with remat=block)
    depth: Any = 1  # blocks that `remat` computes again one at a time

    def reads(self, field: Any) -> bool:
        """Returns True if it can read a field; by default, fields of its `modality`."""
        return bool(self.modality) and field.modality == self.modality

    def check_field(self, field: Any, field_path: str, path: str) -> Iterator[str]:
        """Yields an error message for every key of a field that does not fit the tower."""
        yield from ()

    def check_head(self, head: Any, head_path: str, path: str) -> Iterator[str]:
        """Yields an error message if a head of the tower does not fit it."""
        if head.reads_positions != self.gives_positions:
            reads = "all positions" if head.reads_positions else "one vector for each class token"
            yield (
                f"{head_path}.type is {head.type!r}, which reads {reads}, but {path} of the type "
                f"{self.type!r} gives something else; take another head or tower."
            )

    @property
    def tokens(self) -> int:
        """M, the number of output vectors per row."""
        return self.class_tokens

    @abc.abstractmethod
    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> Any:
        """Returns the Linen module, (*Field.inputs, train, rows: int32 [B] | None) -> [B, M, W].

        Args:
          vocab_size: size of the tokenizer, if the config does not set it.
          **module: `name`, `parent` and `dtype` of the module.
        """

    def describe(self) -> str:
        """Returns a short description, for logs and model cards."""
        keys = ", ".join(f"{key} {getattr(self, key)}" for key in self.computed_by)
        return f"{self.type} ({keys or f'width {self.width}'})"

    def first_values(self, drawn: Callable[[str], Any], tokenizer: Any) -> Fitted:
        """Returns initial values that are not random, such as word vectors of a file.

        It is called once, before the first step of a run and before `config.init`. A resumed run or
        a loaded model does not need the file.

        Args:
          drawn: path of a parameter below the tower, such as `words/embedding` -> its random value.
        """
        return Fitted({}, [])

    def at_depth(self, depth: int) -> "Tower | None":
        """Returns the tower with `depth` equal layers, to count operations; None if they differ."""
