"""What is read of a record, how it becomes an embedding, and the tokenizer of its texts."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.heads import Head, Lexical, Projection
from big_retrieval.config.ranges import (
    AtLeast0,
    AtLeast1,
    NotNegative,
    Positive,
    Share,
    ShareBelow1,
)
from big_retrieval.config.registry import Part, Plugin, register, required
from big_retrieval.config.torch_form import TorchContext, TorchForm, keys
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.data.fields.reader import FieldReader, Tools

Side = Literal["query", "document", "target"]
Shapes = Mapping[str, tuple[tuple[int, ...], str]]  # name of an array -> shape of one row, type


class Field(Part):
    """The base of all fields: what the rest of the code asks them.

    A subclass is a frozen dataclass with the key `type`, made known by `@register("field")`. The
    attributes below may be keys of it. How values are read and stacked is the business of the
    `FieldReader` that `build` returns (`big_retrieval/data/fields/reader.py`).

    Attributes:
      modality: what its values are: "text" (of a subclass of `TextField`; BM25, bags of words and
        hard negatives want one), "image" (pixels that a person can be shown), or anything else.
      draws_first: whether training draws it before the others, as texts are: an image is not
        mirrored where the drawn text forbids it, an array may belong to the drawn text.
      side: of the pair; "target": no tower reads it, but losses do, in training only.
      tower: the one of `config.towers` that reads it; "" of a target.
      column: of the record.
      weight: in the average of its side's fields.
      optional: whether a record may lack it.
      shares_head: another field, whose head is this one's, too.
      same_input_as: another field with the same keys but for the head: training draws one value
        for both, and the tower runs once, with two heads behind it; "": it has its own.
      head: behind the tower.
      length: tokens of a text at most; 0: it is none.
      title: column of a text's title; "": it has none.
    """

    kind: ClassVar[str] = "field"
    modality: ClassVar[str] = ""
    draws_first: ClassVar[bool] = False
    side: Any = "query"
    tower: Any = ""
    column: Any = ""
    weight: Any = 1.0
    optional: Any = False
    shares_head: Any = ""
    same_input_as: Any = ""
    head: Any = Projection()
    length: Any = 0
    title: Any = ""

    def check(self, config: "Config", path: str) -> Iterator[str]:
        """What is wrong with its own keys, a sentence each; towers and heads are checked elsewhere.

        Args:
          config: of the run.
          path: of this field, such as `config.fields.text`.
        """
        del config, path
        yield from ()

    def columns(self) -> Mapping[str, str]:
        """Key -> the column that it names; that of "column" must have a value in some record."""
        return {"column": self.column} if self.column else {}

    @required
    def build(self, tools: "Tools") -> "FieldReader":
        """What reads its values and makes arrays of them.

        Args:
          tools: the tokenizer and the loader of the run, its fields and training records.
        """
        raise NotImplementedError

    @required
    def shapes(self) -> Shapes:
        """The arrays of a batch, `Batch.fields[name]`, without `present`: of one row each."""
        raise NotImplementedError

    def inputs(self, arrays: Mapping[str, Any], dtype: Any) -> tuple[Any, ...]:
        """What a tower is called with: `tower(*inputs, train=..., rows=...)`; traced by jax.

        Args:
          arrays: those of `shapes`, with the rows of a batch in front.
          dtype: of the tower's computations.
        """
        del dtype
        return tuple(arrays[name] for name in self.shapes())

    def trimmed(self, arrays: Mapping[str, Any], length: int | None = None) -> Mapping[str, Any]:
        """An evaluation's batch (numpy) without what is padding in all rows; changes no result.

        Args:
          arrays: those of `shapes`, with rows in front.
          length: of a text field: positions that are left; None: few enough that no row is cut.
        """
        del length
        return arrays

    def record(self, value: Any) -> Mapping[str, Any]:
        """The columns of a record that has a value at hand, which a trained model encodes."""
        return {self.column: value}

    def runlocal(self) -> "Field":
        """The same, small, for `:runlocal`; its head has to shrink as those of other fields do.

        A column that generated records lack needs values of its own making, see `ArrayField`.
        """
        part: Any = self
        if not any(key.name == "head" for key in dataclasses.fields(part)):
            return self
        return dataclasses.replace(part, head=self.head.runlocal())

    def in_graded_scenes(self) -> "Field":
        """The same, reading the generated judged pairs of `:runlocal`."""
        return self


@register("field")
@dataclass(frozen=True)
class ImageField(Field):
    """One image of a record; arrays {"pixels": uint8 [B, size, size, 3]}."""

    modality: ClassVar[str] = "image"
    type: Literal["image"] = "image"
    side: Side = "document"
    tower: str = "image"
    column: str = "image"
    size: AtLeast1 = 224  # pixels, square
    # what evaluations resize the short side to before they cut the central square; 0: to `size`
    eval_resize: AtLeast0 = 0
    crop_scale: tuple[float, float] = (0.5, 1.0)  # share of the area; (1, 1): no crop
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    flip: Share = 0.5  # probability
    flip_unsafe_words: tuple[str, ...] = ("left", "right")  # captions that a flip makes untrue
    # probability that training fills a rectangle, 2% to 33% of the area, with the colour `mean`,
    # which is 0 behind the normalisation
    erasing: Share = 0.0
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[Positive, Positive, Positive] = (0.26862954, 0.26130258, 0.27577711)
    weight: NotNegative = 1.0  # in the average of its side's fields, which divides by their sum
    optional: bool = False  # a record may lack it: its weight is then 0 and its losses are left out
    shares_head: str = ""  # another field, whose head is this one's, too
    same_input_as: str = (
        ""  # another field, whose drawn value and pass of the tower this one shares
    )
    head: Head = field(default_factory=Projection)

    def check(self, config: "Config", path: str) -> Iterator[str]:
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            yield f"{path}.crop_scale is {self.crop_scale}; it must be 0 < low <= high <= 1."
        if not 0 < self.crop_ratio[0] <= self.crop_ratio[1]:
            yield f"{path}.crop_ratio is {self.crop_ratio}; it must be 0 < low <= high."
        if 0 < self.eval_resize < self.size:
            yield (
                f"{path}.eval_resize is {self.eval_resize}, less than size {self.size}; set it to "
                "that at least, or to 0."
            )

    def build(self, tools: "Tools") -> "FieldReader":
        from big_retrieval.data.fields.images import ImageReader

        return ImageReader(self, tools.loader.decoder, tools.loader.reduced)

    def shapes(self) -> Shapes:
        return {"pixels": ((self.size, self.size, 3), "uint8")}

    def inputs(self, arrays: Mapping[str, Any], dtype: Any) -> tuple[Any, ...]:
        """Pixels with the channels' mean and deviation taken out, [B, S, S, 3]."""
        return (self.normalised(arrays["pixels"]).astype(dtype),)

    def normalised(self, pixels: Any) -> Any:
        """uint8 pixels [B, S, S, 3] to float32 with the channels' mean and deviation taken out."""
        import jax.numpy as jnp

        mean, std = jnp.asarray(self.mean, jnp.float32), jnp.asarray(self.std, jnp.float32)
        return (pixels.astype(jnp.float32) / 255 - mean) / std

    def pytorch(self, context: TorchContext) -> TorchForm:
        reads = {"size": self.size, "resize": self.eval_resize}
        return TorchForm("normalised", keys(self, "mean", "std"), call=("pixels",), reads=reads)

    def runlocal(self) -> "ImageField":
        return dataclasses.replace(
            self,
            size=32,
            eval_resize=0,
            flip=0.0,
            erasing=0.0,
            crop_scale=(0.9, 1.0),
            head=self.head.runlocal(),
        )

    def in_graded_scenes(self) -> "ImageField":
        return dataclasses.replace(self, column="image")


@register("field")
@dataclass(frozen=True)
class TextField(Field):
    """One text of a record; where it has several, training draws one.

    Arrays {"ids": int32 [B, length], "mask": bool [B, length]}.
    """

    modality: ClassVar[str] = "text"
    draws_first: ClassVar[bool] = True
    type: Literal["text"] = "text"
    side: Side = "query"
    tower: str = "text"
    column: str = "captions"
    length: int = 77  # tokens, [CLS] and [SEP] included
    title: str = ""  # column of its title: [CLS] title [SEP] text [SEP], cut at the end
    prefix: str = ""  # put before every text, such as "query: ", in front of its title
    # in training, each word becomes the unknown token with this probability, and then this share of
    # the words, rounded down, is deleted; words stand between white space, or are the tokens of a
    # tokenizer of the type "words"
    word_dropout: Share = 0.0
    word_deletion: ShareBelow1 = 0.0
    weight: NotNegative = 1.0  # in the average of its side's fields, which divides by their sum
    optional: bool = False  # a record may lack it: its weight is then 0 and its losses are left out
    shares_head: str = ""  # another field, whose head is this one's, too
    same_input_as: str = (
        ""  # another field, whose drawn value and pass of the tower this one shares
    )
    head: Head = field(default_factory=Projection)

    def check(self, config: "Config", path: str) -> Iterator[str]:
        if self.length < 3:
            yield f"{path}.length is {self.length}; [CLS], a word and [SEP] need at least 3."

    def columns(self) -> Mapping[str, str]:
        return {"column": self.column, **({"title": self.title} if self.title else {})}

    def build(self, tools: "Tools") -> "FieldReader":
        from big_retrieval.data.fields.texts import TextReader

        return TextReader(self, tools.tokenizer)

    def shapes(self) -> Shapes:
        return {"ids": ((self.length,), "int32"), "mask": ((self.length,), "bool")}

    def lengths(self, arrays: Mapping[str, Any]) -> Any:
        """The tokens of every row of a batch (numpy), int [n]: positions that it cannot lose."""
        return arrays["mask"].sum(axis=1)

    def trimmed(self, arrays: Mapping[str, Any], length: int | None = None) -> Mapping[str, Any]:
        """Without the positions that are padding in all rows.

        Lengths that are not given are powers of two, so that few programs are compiled. Padding
        changes no result but by rounding.
        """
        if length is None:
            longest = int(self.lengths(arrays).max(initial=1))
            length = max(SHORTEST, 1 << (longest - 1).bit_length())
        return {**arrays, **{name: arrays[name][:, :length] for name in ("ids", "mask")}}

    def pytorch(self, context: TorchContext) -> TorchForm:
        fill = getattr(self.head, "pool_padding", False)
        reads = {**keys(self, "length", "prefix"), "fill": fill}
        return TorchForm("", call=("ids", "mask"), reads=reads)

    def runlocal(self) -> "TextField":
        return dataclasses.replace(
            self,
            length=min(self.length, 32),
            title="",
            word_dropout=0.0,
            word_deletion=0.0,
            head=self.head.runlocal(),
        )

    def in_graded_scenes(self) -> "TextField":
        return dataclasses.replace(self, column="query" if self.side == "query" else "title")


def lexical_head(fields: Mapping[str, Field], name: str) -> Lexical | None:
    """The lexical head of a field; None: it has another. One that is shared is set in both."""
    head = fields[name].head
    return head if head.lexical else None


SHORTEST = 16  # tokens that texts are cut to at least


@dataclass(frozen=True)
class ForeignTarget(Field):
    """A target of a saved run whose file is not imported: kept as it is, and never read.

    Attributes:
      saved_form: its keys.
      plugin: where it was defined.
    """

    side: Side = "target"
    saved_form: Mapping[str, Any] = field(default_factory=dict)
    plugin: Plugin = field(default_factory=Plugin)

    def build(self, tools: "Tools") -> "FieldReader":
        """Raises a UserError that names the file."""
        raise UserError(
            f"a field of the type {self.saved_form.get('type')!r} is needed, which "
            f"{self.plugin.where} defines: give this file as --plugins=FILE."
        )


@dataclass(frozen=True)
class Tokenizer:
    """From text to ids; one for all text fields."""

    # words: whole words of English captions, lower-cased and split as by nltk
    type: Literal["wordpiece", "clip", "auto", "words"] = "wordpiece"
    path: str = ""  # file, folder or hub name; empty: learned from captions
    vocab_size: int = 8192  # of learned word pieces, at most
    threshold: AtLeast0 = 0  # of learned words: those that occur less often are <unk>
    # whose captions the vocabulary is learned from: "data" (training), "evals.NAME"
    sources: tuple[str, ...] = ("data",)

    @property
    def learned(self) -> bool:
        """Whether the vocabulary comes from the run's captions, not from a file."""
        return not self.path and self.type in ("wordpiece", "words")

    def runlocal(self) -> "Tokenizer":
        """One of the same kind, as far as generated captions can teach it."""
        kind = "words" if self.type == "words" else "wordpiece"
        return Tokenizer(type=kind, vocab_size=512)
