"""The base of fields, whose parts are in data/fields/, and the tokenizer."""

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
    """Class attribute: a `Projection`, created when it is read, as heads need jax."""

    def __get__(self, field: Any, cls: Any) -> Head:
        return _default_head()


class Field(Part):
    """The base of all fields: what the rest of the code asks them.

    A subclass is a frozen dataclass with the key `type`, made known by `@register("field")`. The
    attributes below may be keys of it. The `FieldReader` that `build` returns reads and stacks
    values (`big_retrieval/data/fields/reader.py`).

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
      generated: whether records without its column get random values; starts say so.
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
    head: Any = _DefaultHead()
    length: Any = 0
    title: Any = ""
    generated: Any = False

    def check(self, config: "Config", path: str) -> Iterator[str]:
        """What is wrong with its own keys, a sentence each; towers and heads are checked elsewhere.

        `path` names it, such as `config.fields.text`.
        """
        del config, path
        yield from ()

    def columns(self) -> Mapping[str, str]:
        """Key -> the column that it names; that of "column" must have a value in some record."""
        return {"column": self.column} if self.column else {}

    @abc.abstractmethod
    def build(self, tools: "Tools") -> "FieldReader":
        """Returns what reads its values; itself if it inherits from `FieldReader`, too."""
        raise NotImplementedError

    @property
    def field(self) -> "Field":
        """Itself, where it is its own reader."""
        return self

    @abc.abstractmethod
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
        """The same, small, for `:runlocal` on generated data: by default that of `shrunk`.

        A column that generated records lack needs values of its own making, see `ArrayField`.
        """
        return self.shrunk()

    def shrunk(self) -> "Field":
        """The same, small, for `:runlocal` on kept data: it reads what it read before."""
        part: Any = self
        if not any(key.name == "head" for key in dataclasses.fields(part)):
            return self
        return dataclasses.replace(part, head=self.head.runlocal())

    def in_graded_scenes(self) -> "Field":
        """The same, reading the generated judged pairs of `:runlocal`."""
        return self


@dataclass(frozen=True, kw_only=True)
class EncodedField(Field):
    """The keys that all fields of the package have besides their own."""

    weight: NotNegative = 1.0  # in the average of its side's fields, which divides by their sum
    optional: bool = False  # a record may lack it: its weight is then 0 and its losses are left out
    shares_head: str = ""  # another field, whose head is this one's, too
    # another field, whose drawn value and pass of the tower this one shares
    same_input_as: str = ""
    head: Head = field(default_factory=_default_head)


def lexical_head(fields: Mapping[str, Field], name: str) -> "Lexical | None":
    """The lexical head of a field; None: it has another. One that is shared is set in both."""
    head = fields[name].head
    return head if head.lexical else None


@dataclass(frozen=True)
class Tokenizer:
    """Converts text to ids; one for all text fields."""

    # words: whole words of English captions, lower-cased and split as by nltk
    type: Literal["wordpiece", "clip", "auto", "words"] = "wordpiece"
    path: str = ""  # file, folder or hub name; empty: learned from captions
    vocab_size: int = 8192  # of learned word pieces, at most
    threshold: AtLeast0 = 0  # of learned words: those that occur less often are <unk>
    # whose captions the vocabulary is learned from: "data" (training), "evals.NAME"
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
        known = ["data", *(f"evals.{name}" for name, x in sorted(config.evals.items()) if x.data)]
        for name in self.sources:
            if name not in known:
                yield f"config.tokenizer.sources has {name!r}; it can have {', '.join(known)}."
        if not self.sources:
            yield "config.tokenizer.sources is empty; name at least 'data'."
        if not self.path and self.vocab_size < 6:
            yield (
                f"config.tokenizer.vocab_size is {self.vocab_size}; a learned one needs at least 6."
            )

    def runlocal(self) -> "Tokenizer":
        """Returns one of the same kind that generated captions can teach."""
        kind = "words" if self.type == "words" else "wordpiece"
        return Tokenizer(type=kind, vocab_size=512)
