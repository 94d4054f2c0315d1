"""The base of towers, the networks that read an image, a text or any other field; ours are in
models/."""

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
    """Values that some parameters of a tower start from.

    Attributes:
      params: path below the tower -> array.
      notes: log messages about changes to the arrays.
    """

    params: dict[str, Any]
    notes: list[str]


class Tower(Part):
    """The base of all towers.

    A subclass is a frozen dataclass with the key `type`, made known by `@register("tower")`. The
    attributes below may be keys or properties of it. Its operations are counted by tracing its
    module (`models/flops.py`).

    Attributes:
      modality: of the fields that it reads, see `Field.modality`.
      word_table: name of the parameter [R, W] with a vector for every word piece, which its module
        gives tied heads by a method `word_table()`; "": it has none.
      computed_by: the keys that a checkpoint's tower must have alike, since they say what is
        computed; the others are sizes of tables, or say how it runs. (): all keys.
      normed: whether it has batch norms (`models.batch_norm.BatchNorm`), with running averages.
      width: W, of the vectors that come out.
      class_tokens: M, vectors that a row has inside; 0 where all positions come out.
      vocab_size: rows of the word table; None: as many as the tokenizer has ids.
      gives_positions: whether all positions come out, [B, L, W], for heads that read them.
      whole_batch: whether a row's vectors depend on all rows of the batch in training.
      by_slice: whether they depend on the rows of their micro-batch.
      remat: what the backward pass computes again; "none": nothing.
      scan: whether equal layers run as one compiled layer.
      depth: parts of the network that `remat` computes again one at a time.
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
        """Whether it can read a field; one of its `modality` unless overridden."""
        return bool(self.modality) and field.modality == self.modality

    def check(self, config: "Config", path: str) -> Iterator[str]:
        """Yields an error message for each mistake in the keys.

        Args:
          config: of the run.
          path: of this tower, such as `config.towers.text`.
        """
        del config, path
        yield from ()

    def check_field(self, field: Any, field_path: str, path: str) -> Iterator[str]:
        """Yields an error message for each mistake in a field that the tower reads.

        Args:
          field: the field.
          field_path: of the field, such as `config.fields.image`.
          path: of this tower.
        """
        del field, field_path, path
        yield from ()

    def check_head(self, head: Any, head_path: str, path: str) -> Iterator[str]:
        """Yields an error message for each mistake in a head of the tower; see `check_field`."""
        if head.reads_positions != self.gives_positions:
            reads = "all positions" if head.reads_positions else "one vector for each class token"
            yield (
                f"{head_path}.type is {head.type!r}, which reads {reads}, but {path} of the type "
                f"{self.type!r} gives something else; take another head or tower."
            )

    @property
    def tokens(self) -> int:
        """M, vectors that come out of a row."""
        return self.class_tokens

    @abc.abstractmethod
    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> Any:
        """Returns the Linen module, (*Field.inputs, train, rows: int32 [B] | None) -> [B, M, W].

        Args:
          vocab_size: of the tokenizer, for a tower whose config does not set it.
          fields: the fields that the tower reads.
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

        Called once, before the first step of a run, not when the run is resumed or its model
        loaded: the file is not needed later. `config.init` is applied after it.

        Args:
          drawn: path of a parameter below the tower, such as `words/embedding` -> its random value,
            whose shape the initial value needs.
          tokenizer: of the run.
        """
        del drawn, tokenizer
        return Fitted({}, [])

    def at_depth(self, depth: int) -> "Tower | None":
        """Returns the tower with `depth` equal layers; None if its layers differ.

        Operations of a tower with equal layers are counted by tracing one and two layers.
        """
        del depth
