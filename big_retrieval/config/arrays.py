"""Arrays as a field: region features, precomputed embeddings, targets of losses."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from big_retrieval.config.fields import EncodedField, Shapes, Side
from big_retrieval.config.registry import register
from big_retrieval.config.torch_form import TorchContext, TorchForm

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.data.fields.reader import FieldReader, Tools

LARGEST = 2**24  # values of one array
FLOATS = ("float32", "float16")


@register("field")
@dataclass(frozen=True)
class ArrayField(EncodedField):
    """Numbers of a fixed shape, one array for each record or for each of its texts.

    Arrays {"values": `dtype` [B, *shape]}.

    They stand in a column of the records (nested lists), or as rows of a memory-mapped .npy file
    beside the data: row i is record i's, or a column names the rows.
    """

    type: Literal["array"] = "array"
    side: Side = "target"
    tower: str = ""  # one that reads arrays; "" of a target
    shape: tuple[int, ...] = ()  # of one array, such as (36, 2048); (): a single number
    dtype: Literal["float32", "float16", "int32", "uint8", "bool"] = "float32"
    column: str = ""  # of the arrays; with `file` of their rows (numbers from 0), "": in order
    file: str = ""  # .npy, [rows, *shape]; "": the arrays stand in the column
    # the text field to whose texts the arrays belong, one for each: the drawn text decides; "": one
    # for each record
    aligned_with: str = ""
    generated: bool = False  # a record without the column gets random values, as in `:runlocal`

    def check(self, config: "Config", path: str) -> Iterator[str]:
        if any(size < 1 for size in self.shape) or math.prod(self.shape) > LARGEST:
            yield (
                f"{path}.shape is {self.shape}; its sizes must be at least 1 and their product at "
                f"most {LARGEST:,}."
            )
        if not self.column and not self.file and not self.generated:
            yield f"{path} has neither column nor file; name where its arrays stand."
        if self.file and self.generated:
            yield (
                f"{path}.file is {self.file!r}, but {path}.generated gives random values instead: "
                f"set {path}.generated=False (and give the data that the file belongs to)."
            )
        text = config.fields.get(self.aligned_with)
        if self.aligned_with and (text is None or text.modality != "text"):
            known = ", ".join(n for n, f in config.fields.items() if f.modality == "text") or "none"
            yield f"{path}.aligned_with is {self.aligned_with!r}, no text field (there: {known})."
        if not self.file or self.column or self.generated:
            return
        if self.side != "target":
            yield (
                f"{path} has a file and no column: its rows are those of the training records, so "
                "that evaluations would find none; name a column with the numbers of the rows."
            )
        if self.optional:
            yield (
                f"{path}.optional: every record has a row of {self.file}; name a column with the "
                "numbers of the rows, which may be empty, or set it to False."
            )

    def columns(self) -> Mapping[str, str]:
        """See `Field`; none where values are generated for what lacks it."""
        return {} if self.generated else super().columns()

    def build(self, tools: "Tools") -> "FieldReader":
        from big_retrieval.data.fields.arrays import make_reader

        return make_reader(self, tools)

    def shapes(self) -> Shapes:
        return {"values": (self.shape, self.dtype)}

    def inputs(self, arrays: Mapping[str, Any], dtype: Any) -> tuple[Any, ...]:
        """The values, [B, *shape], in the type of the computation where they are floats."""
        values = arrays["values"]
        return (values.astype(dtype) if self.dtype in FLOATS else values,)

    def pytorch(self, context: TorchContext) -> TorchForm:
        return TorchForm("", call=("values",))

    def runlocal(self) -> "ArrayField":
        """Random values, as generated records have none; of the same shape, which losses know."""
        small: Any = self.shrunk()
        return dataclasses.replace(small, file="", generated=True)
