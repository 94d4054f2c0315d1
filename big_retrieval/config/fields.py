"""Base class of fields (data/fields/ has the subclasses), and settings of the tokenizer."""

import abc
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.heads import Head
from big_retrieval.config.ranges import AtLeast0, NotNegative
from big_retrieval.config.registry import Part, default

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.data.fields.reader import FieldReader, Tools
    from big_retrieval.models.lexical import Lexical

Side = Literal["query", "document", "target"]
_default_head = default("head", "projection")
Shapes = Mapping[str, tuple[tuple[int, ...], str]]  # name of an array -> shape of one row, type


class _DefaultHead:
    """Class attribute: a `Projection`, created when it is read, because heads import jax."""

    def __get__(self, field: Any, cls: Any) -> Head:
        return _default_head()


class Field(Part):
    """Base class of fields; see `Part`."""

    kind: ClassVar[str] = "field"
    # "text" (subclasses of `TextField`, which BM25, bags of words and hard negatives need), "image"
    # (pixels that people can look at), or any other word
    modality: ClassVar[str] = ""
    # training draws its value before the values of other fields. True for texts, because some texts
    # forbid mirroring the image
    draws_first: ClassVar[bool] = False
    side: Any = "query"  # "document", or "target", which only losses read, in training
    tower: Any = ""  # name in `config.towers`; empty for a target
    column: Any = ""  # of the record
    weight: Any = 1.0  # in the average of its side's fields
    optional: Any = False  # records may lack it
    shares_head: Any = ""  # another field, whose head it uses
    # another field whose keys differ in the head only. Training draws one value for both, and the
    # tower runs once, followed by two heads
    same_input_as: Any = ""
    head: Any = _DefaultHead()  # after the tower
    length: Any = 0  # maximum number of tokens of a text; 0 for other fields
    title: Any = ""  # column of a text's title; empty for none
    generated: Any = False  # records without its column get random values

    def columns(self) -> Mapping[str, str]:
        """Returns key -> column. Without a value for "column", a record lacks the field."""
        return {"column": self.column} if self.column else {}

    @abc.abstractmethod
    def build(self, tools: "Tools") -> "FieldReader":
        """Returns the reader of its values; itself if it is a `FieldReader`, too."""

    @property
    def field(self) -> "Field":
        """The field itself, if it is its own reader."""
        return self

    @abc.abstractmethod
    def shapes(self) -> Shapes:
        """Returns the arrays of one row in `Batch.fields[name]`, without `present`."""

    def inputs(self, arrays: Mapping[str, Any], dtype: Any) -> tuple[Any, ...]:
        """Returns the arguments `inputs` of `tower(*inputs, train=..., rows=...)` for some rows."""
        return tuple(arrays[name] for name in self.shapes())

    def trimmed(self, arrays: Mapping[str, Any], length: int | None = None) -> Mapping[str, Any]:
        """Returns an evaluation batch (numpy) without padding, or with `length` positions."""
        return arrays

    def record(self, value: Any) -> Mapping[str, Any]:
        """Returns a record with one value, column -> value, to encode with a trained model."""
        return {self.column: value}

    def runlocal(self) -> "Field":
        """Returns a small version for `:runlocal` on generated data, which may lack its column."""
        return self.shrunk()

    def shrunk(self) -> "Field":
        """Returns a small version for `:runlocal` on kept data, with the same columns."""
        part: Any = self
        if not any(key.name == "head" for key in dataclasses.fields(part)):
            return self
        return dataclasses.replace(part, head=self.head.runlocal())

    def in_graded_scenes(self) -> "Field":
        """Returns a version that reads the generated judged pairs of `:runlocal`."""
        return self


@dataclass(frozen=True, kw_only=True)
class EncodedField(Field):
    """Keys that all fields of the package share."""

    weight: NotNegative = 1.0  # weight in the average of the side's fields
    optional: bool = False  # a record may lack it: its weight is then 0 and its losses are left out
    shares_head: str = ""  # another field, whose head this one uses
    # another field, whose drawn value and run of the tower this one shares
    same_input_as: str = ""
    head: Head = field(default_factory=_default_head)


def lexical_head(fields: Mapping[str, Field], name: str) -> "Lexical | None":
    """Returns the lexical head of a field, or None. A shared head is set in both fields."""
    head = fields[name].head
    return head if head.lexical else None


@dataclass(frozen=True)
class Tokenizer:
    """Settings of the tokenizer, which all text fields share."""

    # words: whole words of English captions, lower-cased and split as by nltk
    type: Literal["wordpiece", "clip", "auto", "words"] = "wordpiece"
    path: str = ""  # file, folder or hub name; empty to learn it from captions
    vocab_size: int = 8192  # maximum number of learned word pieces
    threshold: AtLeast0 = 0  # minimum occurrences of a learned word; others are <unk>
    # sources of the captions that teach the vocabulary: "data" (training), "evals.NAME"
    sources: tuple[str, ...] = ("data",)

    @property
    def learned(self) -> bool:
        """True if the vocabulary comes from the run's captions, not from a file."""
        return not self.path and self.type in ("wordpiece", "words")

    def check(self, config: "Config") -> Iterator[str]:
        """Yields an error message for every bad key."""
        if not self.path and not self.learned:
            yield (
                f"config.tokenizer.type {self.type!r} needs config.tokenizer.path (a file, folder "
                "or hub name); only 'wordpiece' and 'words' can be learned from the captions."
            )
        choices = ["data", *(f"evals.{name}" for name, x in sorted(config.evals.items()) if x.data)]
        for name in self.sources:
            if name not in choices:
                yield f"config.tokenizer.sources has {name!r}; it can have {', '.join(choices)}."
        if not self.sources:
            yield "config.tokenizer.sources is empty; name at least 'data'."
        if not self.path and not 6 <= self.vocab_size <= 1_114_111:
            yield (
                f"config.tokenizer.vocab_size is {self.vocab_size}; a learned one needs 6 to "
                "1,114,111."
            )

    def runlocal(self) -> "Tokenizer":
        """Returns a tokenizer of the same kind that generated captions can teach."""
        tokenizer_type = "words" if self.type == "words" else "wordpiece"
        return Tokenizer(type=tokenizer_type, vocab_size=512)
