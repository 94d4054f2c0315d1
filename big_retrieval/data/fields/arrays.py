"""Arrays as a field: precomputed embeddings and targets of losses."""

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from big_retrieval.config.fields import EncodedField, Shapes, Side
from big_retrieval.config.registry import register
from big_retrieval.data.fields.reader import Drawing, FieldReader, Tools
from big_retrieval.data.fields.stores import (
    hash_path_for,
    open_store,
    read_texts_sha256,
    texts_sha256,
)
from big_retrieval.data.fields.texts import all_texts
from big_retrieval.data.sources import (
    Record,
    RecordSource,
    column_of,
    is_absent,
    value_of,
)
from big_retrieval.errors import Damaged, UserError

if TYPE_CHECKING:
    from big_retrieval.config.run import Config

LARGEST = 2**24  # maximum number of values per array
FLOATS = ("float32", "float16")
HASHED = 2**28  # maximum bytes that `fingerprint` reads; from larger files, evenly spaced rows


@register("field")
@dataclass(frozen=True)
class ArrayField(EncodedField):
    """Arrays of a fixed shape, one for each record or for each of its texts.

    Batches contain {"values": `dtype` [B, *shape]}. The arrays are nested lists in a column, or
    rows of a memory-mapped .npy file. Record i has row i, or the row that a column selects.
    """

    type: Literal["array"] = "array"
    side: Side = "target"
    tower: str = ""  # tower that reads arrays; empty for a target
    shape: tuple[int, ...] = ()  # shape of one array, such as (36, 2048); () for a number
    dtype: Literal["float32", "float16", "int32", "uint8", "bool"] = "float32"
    column: str = ""  # column of the arrays; with `file`, of row indices (empty for all in order)
    file: str = ""  # .npy file [rows, *shape]; empty for arrays in the column
    # text field with one array per text: the drawn text selects the array; empty for one per record
    aligned_with: str = ""
    generated: bool = False  # a record without the column gets random values, as in `:runlocal`

    def check(self, config: "Config", path: str) -> Iterator[str]:
        if any(size < 1 for size in self.shape) or math.prod(self.shape) > LARGEST:
            yield (
                f"{path}.shape is {self.shape}; its sizes must be at least 1 and their product at "
                f"most {LARGEST:,}."
            )
        if not self.column and not self.file and not self.generated:
            yield f"{path} has neither column nor file; set one of them."
        if self.file and self.generated:
            yield (
                f"{path}.file is {self.file!r}, but {path}.generated gives random values instead: "
                f"set {path}.generated=False (and give the data that the file belongs to)."
            )
        text = config.fields.get(self.aligned_with)
        if self.aligned_with and (text is None or text.modality != "text"):
            names = ", ".join(n for n, f in config.fields.items() if f.modality == "text") or "none"
            yield (
                f"{path}.aligned_with is {self.aligned_with!r}, not a text field (text fields: "
                f"{names})."
            )
        if not self.file or self.column or self.generated:
            return
        if self.side != "target":
            yield (
                f"{path} has a file and no column: its rows belong to training records, and "
                "evaluations have none; name a column with the row indices."
            )
        if self.optional:
            yield (
                f"{path}.optional: every record has a row of {self.file}; name a column with the "
                "row indices, which may be empty, or set it to False."
            )

    def columns(self) -> Mapping[str, str]:
        return {} if self.generated else super().columns()

    def build(self, tools: Tools) -> "ArrayReader":
        """Returns the reader; reads the texts of all records if rows of the file follow texts."""
        aligned = tools.fields[self.aligned_with].build(tools) if self.aligned_with else None
        if aligned is None or not self.file or self.column or tools.source is None:
            return ArrayReader(self, aligned)
        counts, texts = all_texts(tools.source, aligned)
        return ArrayReader(self, aligned, np.cumsum([0, *counts]), texts_sha256(texts))

    def shapes(self) -> Shapes:
        return {"values": (self.shape, self.dtype)}

    def inputs(self, arrays: Mapping[str, Any], dtype: Any) -> tuple[Any, ...]:
        """Returns the values [B, *shape]; floats in the type of the computation."""
        values = arrays["values"]
        return (values.astype(dtype) if self.dtype in FLOATS else values,)

    def runlocal(self) -> "ArrayField":
        small: Any = self.shrunk()
        return dataclasses.replace(small, file="", generated=True)


@dataclass(frozen=True)
class ArrayReader(FieldReader):
    """Reads arrays [*shape] of the field's type.

    Attributes:
      aligned: reader of the texts that the arrays belong to; None if they belong to records.
      starts: first row of each training record, and the number of rows, int64 [records + 1]; None
        if rows do not follow texts.
      texts: `texts_sha256` of all these texts.
    """

    field: ArrayField
    aligned: FieldReader | None = None
    starts: np.ndarray | None = None
    texts: str = ""

    def check_files(self, path: str, source: RecordSource) -> None:
        store = self.check_store(f"{path}.file", f"{path}.shape and dtype to what it holds")
        if store is None or self.field.column:
            return
        needed = len(source) if self.starts is None else int(self.starts[-1])
        if len(store) != needed:
            label = "records" if self.starts is None else f"texts of {self.field.aligned_with!r}"
            raise UserError(
                f"{path}.file {self.field.file} has {len(store):,} rows for {needed:,} {label} of "
                f"{source.name}; write one for each, or set {path}.column to a column with the row "
                "indices."
            )
        saved = "" if self.starts is None else read_texts_sha256(self.field.file)
        if saved not in ("", self.texts):
            raise UserError(
                f"Text hash mismatch: {path}.file {self.field.file} was not computed from "
                f"{self.field.aligned_with!r} of {source.name} "
                f"(see {hash_path_for(self.field.file)}). Recreate it with `big-retrieval targets`."
            )

    def check_store(self, key: str, remedy: str) -> np.ndarray | None:
        """Returns the file, with rows of the field's shape and type; None without a file.

        Messages name its key, and the keys to set if the file is correct (`remedy`).
        """
        if not self.field.file:
            return None
        store = open_store(self.field.file, again=True)
        shape, dtype = store.shape[1:], np.dtype(self.field.dtype)
        if store.ndim == 0 or shape != self.field.shape or not _casts(store.dtype, dtype):
            raise UserError(
                f"{key} {self.field.file} contains {store.dtype} {list(store.shape)} instead of "
                f"{dtype} [rows, {', '.join(map(str, self.field.shape))}]; set {remedy}, or write "
                "the file again."
            )
        return store

    def fingerprint(self) -> str:
        if not self.field.file:
            return ""
        store = open_store(self.field.file, again=True)
        step = -(-store.nbytes // HASHED) or 1
        digest = hashlib.sha256(f"{store.dtype} {store.shape} {self.texts}".encode())
        for start in range(0, len(store), 1024 * step):  # a chunk at a time in memory
            digest.update(np.ascontiguousarray(store[start : start + 1024 * step : step]).tobytes())
        if self.starts is not None:
            digest.update(self.starts.tobytes())
        return digest.hexdigest()

    def lacks(self, record: Record) -> bool:
        return bool(self.field.column) and not self._is_generated(record) and super().lacks(record)

    def draw(self, name: str, record: Record, drawing: Drawing) -> np.ndarray | None:
        """Returns the array of the record, or of the drawn text."""
        text_index, count = 0, 1
        if self.aligned is not None:
            text = drawing.texts.get(self.field.aligned_with)
            if text is None and self.field.optional:
                return None
            if text is None:
                reason = (
                    f"it has an array for each text of {self.field.aligned_with!r}, but no text"
                )
                raise Damaged(drawing.place, reason)
            text_index, count = text.number, text.count
        if self._is_generated(record):
            return self.generate(drawing.index, text_index)
        value = None
        if self.field.column:
            value = column_of(record, self.field.column, drawing.source)
        return self.array(value, drawing.index, text_index, count, drawing.place)

    def stack(self, values: Sequence[np.ndarray | None]) -> dict[str, np.ndarray]:
        """Returns {"values": [n, *shape]}; None becomes 0."""
        out = np.zeros((len(values), *self.field.shape), self.field.dtype)  # [n, *shape]
        for row, value in enumerate(values):
            if value is not None:
                out[row] = value
        return {"values": out}

    def count(self, source: RecordSource, index: int) -> int:
        return 1 if self.aligned is None else self.aligned.count(source, index)

    def value(self, source: RecordSource, index: int, number: int) -> np.ndarray | None:
        value, column = None, self.field.column
        if self.field.generated and (not column or source[index].get(column) is None):
            return self.generate(index, number)
        if column:
            value = value_of(source, index, column)
            if self.field.optional and is_absent(value):
                return None
        return self.array(value, index, number, self.count(source, index), source.place(index))

    def _is_generated(self, record: Record) -> bool:
        return self.field.generated and record.get(self.field.column) is None

    def generate(self, index: int, text_index: int) -> np.ndarray:
        """Returns random values that depend on the indices of record and text alone."""
        rng, dtype = np.random.default_rng((index, text_index)), np.dtype(self.field.dtype)
        if dtype.kind == "f":
            return rng.standard_normal(self.field.shape).astype(dtype)
        return rng.integers(0, 2, self.field.shape).astype(dtype)

    def array(self, value: Any, index: int, text_index: int, count: int, place: str) -> np.ndarray:
        """Returns the array of a text, or of the record, from the value of the column."""
        column = self.field.column
        if not column:
            row = index if self.starts is None else int(self.starts[index]) + text_index
            return self._row(row, place)
        if self.aligned is not None:
            length = len(value) if isinstance(value, list | tuple | np.ndarray) else 1
            if length != count or not isinstance(value, list | tuple | np.ndarray):
                reason = f"{column!r} has not one array for each text, but {length} for {count}"
                raise Damaged(place, reason)
            value = value[text_index]
        if self.field.file and np.ndim(value) == 0:
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise Damaged(place, f"{column!r} is {value!r:.60}, not a row index")
            return self._row(int(value), place)
        return as_values(value, self.field, repr(column), place)

    def _row(self, row: int, place: str) -> np.ndarray:
        store = open_store(self.field.file)
        if not 0 <= row < len(store):
            raise Damaged(place, f"{self.field.file} has no row {row}, only {len(store):,} rows")
        return as_values(store[row], self.field, f"{self.field.file}, row {row},", place)


def as_values(value: Any, field: ArrayField, label: str, place: str) -> np.ndarray:
    """Returns nested lists or an array as an array [*shape] of the field's type.

    Raises:
      Damaged: another shape or type, values outside of the type's range, or not finite.
    """
    dtype = np.dtype(field.dtype)
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        raise Damaged(place, f"{label} has lists of different lengths") from None
    if array.dtype.kind not in "fiub":
        raise Damaged(place, f"{label} holds something else than numbers, {value!r:.60}")
    if array.shape != field.shape:
        reason = f"{label} has the wrong shape, {array.shape} instead of {field.shape}"
        raise Damaged(place, reason)
    if not _casts(array.dtype, dtype):
        raise Damaged(place, f"{label} holds {array.dtype} instead of {dtype}")
    with np.errstate(over="ignore"):
        out = array.astype(dtype)
    if dtype.kind == "f" and not np.isfinite(out).all():
        raise Damaged(place, f"{label} holds a number that is not finite in {dtype}")
    if dtype.kind in "iu" and not np.array_equal(out, array):
        raise Damaged(place, f"{label} holds numbers that do not fit into {dtype}")
    return out


def _casts(source: np.dtype, target: np.dtype) -> bool:
    """Returns True if values of a type may be converted; `as_values` checks that they fit."""
    allowed = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}
    return source.kind in allowed[target.kind]
