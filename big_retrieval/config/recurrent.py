"""The recurrent networks among the towers."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.ranges import AtLeast1
from big_retrieval.config.registry import register
from big_retrieval.config.torch_form import TorchContext, TorchForm, keys
from big_retrieval.config.towers import Tower

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.interop.fit import Fitted


@register("tower")
@dataclass(frozen=True)
class Gru(Tower):
    """A bidirectional GRU over word vectors, which may start from a file: one vector a text."""

    modality: ClassVar[str] = "text"
    computed_by: ClassVar[tuple[str, ...]] = ("width", "words", "read")
    table: ClassVar[str] = "token_embedding"  # parameter [V, words]
    type: Literal["gru"] = "gru"
    width: AtLeast1 = 1024  # half of it from each direction
    words: AtLeast1 = 300  # numbers of a word vector
    # file with `word v1 v2 ...` a line (GloVe), which word vectors start from; "": random ones
    glove: str = ""
    # both directions' states at the last word, where the backward one has seen this word alone (as
    # PCME and LTD have it), or the mean of the states at all words (VSE++)
    read: Literal["last", "mean"] = "last"

    def check(self, config: "Config", path: str) -> Iterator[str]:
        if self.width % 2:
            yield f"{path}.width is {self.width}; it must be even, for two directions."

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> Any:
        from big_retrieval.models.recurrent import RecurrentText

        return RecurrentText(self, vocab_size, **module)

    def pytorch(self, context: TorchContext) -> TorchForm:
        sizes = {"vocab_size": context.shapes[self.table][0]}
        arguments = sizes | keys(self, *self.computed_by)
        return TorchForm("RecurrentText", arguments, fixed_length=True)

    def describe(self) -> str:
        return f"a GRU of width {self.width}, read at {self.read!r}"

    def first_values(self, drawn: Callable[[str], Any], tokenizer: Any) -> "Fitted":
        """The table of words: vectors of the file where it has the word, else those drawn."""
        from big_retrieval.interop.word_vectors import fit_words

        if not self.glove:
            return super().first_values(drawn, tokenizer)
        return fit_words(self.glove, self.table, drawn(self.table), tokenizer)

    def runlocal(self) -> "Gru":
        """The same, small; word vectors of a file keep their width."""
        words = self.words if self.glove else min(32, self.words)
        return dataclasses.replace(self, width=min(64, self.width), words=words)
