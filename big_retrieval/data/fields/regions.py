"""Regions of an image as a field: detector features and boxes."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from big_retrieval.config.fields import EncodedField, Shapes, Side
from big_retrieval.config.ranges import AtLeast1
from big_retrieval.config.registry import register
from big_retrieval.data.fields.arrays import ArrayField, ArrayReader
from big_retrieval.data.fields.reader import Drawing, FieldReader, Tools
from big_retrieval.data.sources import Record, RecordSource
from big_retrieval.errors import Damaged

if TYPE_CHECKING:
    from big_retrieval.config.run import Config

ROUNDING = 1e-3  # a box may exceed its image by this share of the side


@register("field")
@dataclass(frozen=True)
class RegionField(EncodedField):
    """Features [R, F] of R regions of an image, and their boxes [R, 4].

    Batches contain {"features": `dtype` [B, R, F], "boxes": float32 [B, R, 4]}. A box is x1, y1,
    x2, y2, divided by the width and the height of the image; all 0 without boxes. Both arrays are
    in columns of the records, or are rows of memory-mapped .npy files that `column` selects.
    """

    modality: ClassVar[str] = "regions"
    type: Literal["regions"] = "regions"
    side: Side = "document"
    tower: str = "regions"
    regions: AtLeast1 = 36  # R
    dim: AtLeast1 = 2048  # F
    dtype: Literal["float32", "float16"] = "float32"  # type of the features in a batch
    column: str = "regions"  # column of the features; with `file`, of row indices
    boxes: str = ""  # column of the boxes; empty for no boxes, or for `boxes_file`
    file: str = ""  # .npy file [rows, R, F]; empty for features in the column
    boxes_file: str = ""  # .npy file [rows, R, 4], with the row indices of `column`
    generated: bool = False  # a record without the column gets random values, as in `:runlocal`

    def check(self, config: "Config", path: str) -> Iterator[str]:
        yield from self.arrays()["features"].check(config, path)
        if not self.column and not self.generated:
            yield f"{path}.column is empty; name the column of the regions."
        if self.boxes and self.boxes_file:
            yield f"{path}.boxes and boxes_file are both set; remove one of them."

    def columns(self) -> Mapping[str, str]:
        if self.generated:
            return {}
        return {**super().columns(), **({"boxes": self.boxes} if self.boxes else {})}

    def arrays(self) -> dict[str, ArrayField]:
        """Returns the array fields "features" and, if it has boxes, "boxes"."""
        same: dict[str, Any] = {"side": self.side, "generated": self.generated}
        fields = {
            "features": ArrayField(
                shape=(self.regions, self.dim),
                dtype=self.dtype,
                column=self.column,
                file=self.file,
                optional=self.optional,
                **same,
            )
        }
        column = self.column if self.boxes_file else self.boxes
        if column:
            fields["boxes"] = ArrayField(
                shape=(self.regions, 4), column=column, file=self.boxes_file, **same
            )
        return fields

    def build(self, tools: Tools) -> "RegionReader":
        reader_types = {"features": ArrayReader, "boxes": BoxReader}
        parts = self.arrays().items()
        return RegionReader(self, {name: reader_types[name](field) for name, field in parts})

    def shapes(self) -> Shapes:
        return {
            "features": ((self.regions, self.dim), self.dtype),
            "boxes": ((self.regions, 4), "float32"),
        }

    def inputs(self, arrays: Mapping[str, Any], dtype: Any) -> tuple[Any, ...]:
        """Returns features [B, R, F] in the computation's type, and float32 boxes [B, R, 4]."""
        return arrays["features"].astype(dtype), arrays["boxes"]

    def record(self, value: Any) -> Mapping[str, Any]:
        """Returns the columns of a record with features, or with a pair of features and boxes."""
        if not self.boxes or not isinstance(value, tuple):
            return super().record(value)
        return dict(zip((self.column, self.boxes), value, strict=True))

    def runlocal(self) -> "RegionField":
        small: Any = self.shrunk()
        return dataclasses.replace(
            small,
            regions=min(self.regions, 6),
            dim=min(self.dim, 32),
            file="",
            boxes_file="",
            boxes=self.boxes or ("boxes" if self.boxes_file else ""),
            generated=True,
        )


@dataclass(frozen=True)
class RegionReader(FieldReader):
    """Reads regions with a reader for "features" and, if the field has boxes, one for "boxes"."""

    field: RegionField
    readers: Mapping[str, ArrayReader]

    def check_files(self, path: str, source: RecordSource) -> None:
        keys = {
            "features": ("file", "regions and dim to what it holds"),
            "boxes": ("boxes_file", "regions to the number of boxes in a row"),
        }
        for name, reader in self.readers.items():
            reader.check_store(f"{path}.{keys[name][0]}", f"{path}.{keys[name][1]}")

    def fingerprint(self) -> str:
        return "".join(reader.fingerprint() for reader in self.readers.values())

    def lacks(self, record: Record) -> bool:
        return self.readers["features"].lacks(record)

    def draw(self, name: str, record: Record, drawing: Drawing) -> dict[str, Any]:
        return {key: x.draw(name, record, drawing) for key, x in self.readers.items()}

    def stack(self, values: Sequence[Any]) -> dict[str, np.ndarray]:
        """Returns {"features": [n, R, F], "boxes": [n, R, 4]}; 0 for None and without boxes."""
        out = {
            key: np.zeros((len(values), *shape), dtype)  # [n, R, F or 4]
            for key, (shape, dtype) in self.field.shapes().items()
        }
        for row, value in enumerate(values):
            for key, array in (value or {}).items():
                out[key][row] = array
        return out

    def value(self, source: RecordSource, index: int, number: int) -> dict[str, Any] | None:
        values = {}
        for key, reader in self.readers.items():  # the features first
            values[key] = reader.value(source, index, number)
            if values[key] is None:
                return None
        return values


class BoxReader(ArrayReader):
    """Reads boxes [R, 4]: x1, y1, x2, y2, divided by the width and the height of the image."""

    def generate(self, index: int, text_index: int) -> np.ndarray:
        corners = np.random.default_rng((index, text_index, 4)).random((self.field.shape[0], 2, 2))
        return np.sort(corners, axis=1).reshape(self.field.shape).astype(np.float32)  # [R, 4]

    def array(self, value: Any, index: int, text_index: int, count: int, place: str) -> np.ndarray:
        boxes = super().array(value, index, text_index, count, place)
        if boxes.min() < -ROUNDING or boxes.max() > 1 + ROUNDING:
            raise Damaged(
                place,
                f"{self.field.column!r} holds boxes from {boxes.min():g} to {boxes.max():g}: "
                "divide them by the width and the height of the image",
            )
        return boxes
