"""How regions are taken from records, or from memory-mapped files beside them; see reader.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval.config import RegionField
from big_retrieval.data.fields.arrays import ArrayReader
from big_retrieval.data.fields.reader import Drawing, FieldReader
from big_retrieval.data.sources import Record, RecordSource
from big_retrieval.errors import Damaged

ROUNDING = 1e-3  # that a box may reach out of its image


def make_reader(field: RegionField) -> "RegionReader":
    """The reader of a field of regions, made of readers of its arrays."""
    kinds = {"features": ArrayReader, "boxes": BoxReader}
    parts = field.arrays().items()
    return RegionReader(field, {name: kinds[name](part) for name, part in parts})


@dataclass(frozen=True)
class RegionReader(FieldReader):
    """Regions as the arrays of `RegionField`.

    Attributes:
      field: the field's configuration.
      readers: "features" and perhaps "boxes" -> what reads the array.
    """

    field: RegionField
    readers: Mapping[str, ArrayReader]

    def check(self, path: str, source: RecordSource) -> None:
        """The files are there and hold rows of the field's shapes."""
        keys = {
            "features": ("file", "regions and dim to what it holds"),
            "boxes": ("boxes_file", "regions to as many boxes as a row has"),
        }
        for name, reader in self.readers.items():
            reader.check_store(f"{path}.{keys[name][0]}", f"{path}.{keys[name][1]}")

    def fingerprint(self) -> str:
        """Of the rows of both files."""
        return "".join(reader.fingerprint() for reader in self.readers.values())

    def lacks(self, record: Record) -> bool:
        """Whether a record has no features."""
        return self.readers["features"].lacks(record)

    def draw(self, name: str, record: Record, drawing: Drawing) -> dict[str, Any]:
        """The record's features and boxes."""
        return {key: each.draw(name, record, drawing) for key, each in self.readers.items()}

    def stack(self, values: Sequence[Any]) -> dict[str, np.ndarray]:
        """{"features": [n, R, F], "boxes": [n, R, 4]}; None, and boxes with no source, are 0."""
        out = {
            key: np.zeros((len(values), *shape), dtype)  # [n, R, F or 4]
            for key, (shape, dtype) in self.field.shapes().items()
        }
        for row, value in enumerate(values):
            for key, array in (value or {}).items():
                out[key][row] = array
        return out

    def value(self, source: RecordSource, index: int, number: int) -> dict[str, Any] | None:
        """The features and boxes of a record."""
        found = {}
        for key, each in self.readers.items():  # the features first
            found[key] = each.value(source, index, number)
            if found[key] is None:
                return None
        return found


class BoxReader(ArrayReader):
    """Boxes [R, 4]: x1, y1, x2, y2, divided by the width and the height of the image."""

    def generate(self, index: int, number: int) -> np.ndarray:
        """Boxes that follow from the number of the record alone."""
        corners = np.random.default_rng((index, number, 4)).random((self.field.shape[0], 2, 2))
        return np.sort(corners, axis=1).reshape(self.field.shape).astype(np.float32)  # [R, 4]

    def array(self, given: Any, index: int, number: int, count: int, place: str) -> np.ndarray:
        """The boxes of a record.

        Raises:
          Damaged: they reach out of the image.
        """
        found = super().array(given, index, number, count, place)
        if found.min() < -ROUNDING or found.max() > 1 + ROUNDING:
            raise Damaged(
                place,
                f"{self.field.column!r} holds boxes from {found.min():g} to {found.max():g}: "
                "divide them by the width and the height of the image",
            )
        return found
