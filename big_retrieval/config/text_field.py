"""Texts as a field: their length, title, prefix and dropped words."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.fields import EncodedField, Shapes, Side
from big_retrieval.config.ranges import (
    Share,
    ShareBelow1,
)
from big_retrieval.config.registry import register
from big_retrieval.config.torch_form import TorchContext, TorchForm, keys

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.data.fields.reader import FieldReader, Tools

SHORTEST = 16  # tokens that texts are cut to at least


@register("field")
@dataclass(frozen=True)
class TextField(EncodedField):
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
        return dataclasses.replace(self.shrunk(), title="")

    def shrunk(self) -> "TextField":
        return dataclasses.replace(
            self,
            length=min(self.length, 32),
            word_dropout=0.0,
            word_deletion=0.0,
            head=self.head.runlocal(),
        )

    def in_graded_scenes(self) -> "TextField":
        return dataclasses.replace(self, column="query" if self.side == "query" else "title")
