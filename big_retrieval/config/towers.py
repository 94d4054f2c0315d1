"""Base class of towers, networks that read a field; the package's towers are in models/."""

import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.registry import Part

if TYPE_CHECKING:
    from big_retrieval.config.run import Config

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu"]
Remat = Literal["none", "block", "dots"]
AttentionChoice = Literal["auto", "kernel", "plain"]


@dataclass(frozen=True)
class Fitted:
    """Initial values of some parameters of a tower.

    Attributes:
      params: path below the tower -> array.
      notes: log messages about changes to the arrays.
    """

    params: dict[str, Any]
    notes: list[str]


class Tower(Part):
    """Base class of towers.

    A subclass is a frozen dataclass with the key `type`, registered by `@register("tower")`. The
    attributes below may be keys or properties of it. `models/flops.py` counts the operations of its
    module by tracing it.

    Attributes:
      modality: modality of the fields that it reads, see `Field.modality`.
      word_table: name of the parameter [R, W] with a vector for every token, which the module's
        method `word_table()` gives to tied heads; empty for none.
      computed_by: keys that a checkpoint's tower must share, because they define the computation;
        the other keys are table sizes or ways to run it. Empty for all keys.
      normed: True if it has batch norms (`models.batch_norm.BatchNorm`) with running averages.
      width: W, of the output vectors.
      class_tokens: M, vectors per row; 0 if it returns all positions.
      vocab_size: rows of the word table; None for the vocabulary of the tokenizer.
      gives_positions: True if it returns all positions [B, L, W], for heads that read them.
      whole_batch: True if a row's vectors depend on all rows of the batch in training.
      by_slice: True if they depend on the rows of the micro-batch.
      remat: what the backward pass computes again; "none" for nothing.
      scan: True if equal layers run as one compiled layer (on GPUs only with remat=block).
      depth: blocks that `remat` computes again one at a time.
    """

    kind: ClassVar[str] = "tower"
    modality: ClassVar[str] = ""
    word_table: ClassVar[str] = ""
    computed_by: ClassVar[tuple[str, ...]] = ()
    normed: ClassVar[bool] = False
    width: Any = 0
    class_tokens: Any = 1
    vocab_size: Any = None
    gives_positions: Any = False
    whole_batch: Any = False
    by_slice: Any = False
    remat: Any = "none"
    scan: Any = False
    depth: Any = 1

    def reads(self, field: Any) -> bool:
        """Returns True if it can read a field; by default, fields of its `modality`."""
        return bool(self.modality) and field.modality == self.modality

    def check(self, config: "Config", path: str) -> Iterator[str]:
        """Yields an error message for every bad key; `path` is such as `config.towers.text`."""
        yield from ()

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
        """Returns a short description for the start of a run."""
        return f"{self.type!r} of width {self.width}"

    def runlocal(self) -> "Tower":
        """Returns a small version for `:runlocal`."""
        return self

    def first_values(self, drawn: Callable[[str], Any], tokenizer: Any) -> Fitted:
        """Returns initial values that are not random, such as word vectors of a file.

        It is called once, before the first step of a run. A resumed run or a loaded model does not
        need the file. `config.init` is applied after it.

        Args:
          drawn: path of a parameter below the tower, such as `words/embedding` -> its random value.
          tokenizer: tokenizer of the run.
        """
        return Fitted({}, [])

    def at_depth(self, depth: int) -> "Tower | None":
        """Returns the tower with `depth` equal layers; None if its layers differ.

        Tracing one and two equal layers gives the operations of all.
        """
