"""Arrays as a field: region features, precomputed embeddings, targets of losses."""

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
from big_retrieval.data.fields.stores import beside, open_store, texts_of_store, texts_sha256
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

LARGEST = 2**24  # values of one array
FLOATS = ("float32", "float16")
HASHED = 2**28  # bytes that `fingerprint` reads; from larger files, evenly spaced rows


@register("field")
@dataclass(frozen=True)
class ArrayField(EncodedField):
    """Arrays of a fixed shape, one for each record or for each of its texts.

    Batches contain {"values": `dtype` [B, *shape]}. The arrays are in a column of the records
    (nested lists), or are rows of a memory-mapped .npy file. Row i belongs to record i, or a column
    holds the row indices.
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
      starts: row of the first text of each training record, and the number of rows, int64 [records
        + 1]; None if rows do not follow texts.
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
            what = "records" if self.starts is None else f"texts of {self.field.aligned_with!r}"
            raise UserError(
                f"{path}.file {self.field.file} has {len(store):,} rows for {needed:,} {what} of "
                f"{source.name}; write one for each, or name a column with the numbers of the rows "
                f"in {path}.column."
            )
        made_from = "" if self.starts is None else texts_of_store(self.field.file)
        if made_from not in ("", self.texts):
            raise UserError(
                f"{path}.file {self.field.file} was made from other texts than those of "
                f"{self.field.aligned_with!r} of {source.name} ({beside(self.field.file)} has "
                "their hash): make the file anew from these texts, in their order, as "
                "`big-retrieval targets` does."
            )

    def check_store(self, key: str, remedy: str) -> np.ndarray | None:
        """Returns the file after checking the shape and type of its rows; None without a file.

        Messages name the key of the file, and as a remedy the keys to set if the file is correct.

        Raises:
          UserError: the file is missing, or its rows differ.
        """
        if not self.field.file:
            return None
        store = open_store(self.field.file, again=True)
        shape, kind = store.shape[1:], np.dtype(self.field.dtype)
        if store.ndim == 0 or shape != self.field.shape or not _casts(store.dtype, kind):
            raise UserError(
                f"{key} {self.field.file} holds {store.dtype} {list(store.shape)}, but "
                f"{kind} [rows, {', '.join(map(str, self.field.shape))}] is wanted; set {remedy}, "
                "or write it anew."
            )
        return store

    def fingerprint(self) -> str:
        if not self.field.file:
            return ""
        store = open_store(self.field.file, again=True)
        step = -(-store.nbytes // HASHED) or 1
        digest = hashlib.sha256(f"{store.dtype} {store.shape} {self.texts}".encode())
        for start in range(0, len(store), 1024 * step):  # a part at a time in memory
            digest.update(np.ascontiguousarray(store[start : start + 1024 * step : step]).tobytes())
        if self.starts is not None:
            digest.update(self.starts.tobytes())
        return digest.hexdigest()

    def lacks(self, record: Record) -> bool:
        return bool(self.field.column) and not self._is_generated(record) and super().lacks(record)

    def draw(self, name: str, record: Record, drawing: Drawing) -> np.ndarray | None:
        """Returns the array of the record, or of the drawn text."""
        number, count = 0, 1
        if self.aligned is not None:
            text = drawing.texts.get(self.field.aligned_with)
            if text is None and self.field.optional:
                return None
            if text is None:
                why = f"it has an array for each text of {self.field.aligned_with!r}, but no text"
                raise Damaged(drawing.place, why)
            number, count = text.number, text.count
        if self._is_generated(record):
            return self.generate(drawing.index, number)
        given = None
        if self.field.column:
            given = column_of(record, self.field.column, drawing.source)
        return self.array(given, drawing.index, number, count, drawing.place)

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
        place, given = source.place(index), None
        if self.field.generated and not self.field.column:
            return self.generate(index, number)
        if self.field.column:
            if self.field.generated and source[index].get(self.field.column) is None:
                return self.generate(index, number)
            given = value_of(source, index, self.field.column)
            if self.field.optional and is_absent(given):
                return None
        return self.array(given, index, number, self.count(source, index), place)

    def _is_generated(self, record: Record) -> bool:
        """Returns True if the values of a record are random."""
        return self.field.generated and record.get(self.field.column) is None

    def generate(self, index: int, number: int) -> np.ndarray:
        """Returns random values that depend on the indices of record and text alone."""
        rng, kind = np.random.default_rng((index, number)), np.dtype(self.field.dtype)
        if kind.kind == "f":
            return rng.standard_normal(self.field.shape).astype(kind)
        return rng.integers(0, 2, self.field.shape).astype(kind)

    def array(self, given: Any, index: int, number: int, count: int, place: str) -> np.ndarray:
        """Returns the array of text `number` of `count`, or of the record.

        `given` is the value of the column; None if there is no column, and rows go in order.
        """
        column = self.field.column
        if not column:
            row = index if self.starts is None else int(self.starts[index]) + number
            return self._row(row, place)
        if self.aligned is not None:
            if not isinstance(given, list | tuple | np.ndarray) or len(given) != count:
                have = len(given) if isinstance(given, list | tuple | np.ndarray) else 1
                why = f"{column!r} has not one array for each text, but {have} for {count}"
                raise Damaged(place, why)
            given = given[number]
        if self.field.file and np.ndim(given) == 0:
            if isinstance(given, bool) or not isinstance(given, int | np.integer):
                raise Damaged(place, f"{column!r} has no number of a row, but {given!r:.60}")
            return self._row(int(given), place)
        return as_values(given, self.field, repr(column), place)

    def _row(self, row: int, place: str) -> np.ndarray:
        """Returns a row of the file."""
        store = open_store(self.field.file)
        if not 0 <= row < len(store):
            why = f"it asks for a row that {self.field.file} lacks, {row} of {len(store):,}"
            raise Damaged(place, why)
        return as_values(store[row], self.field, f"{self.field.file}, row {row},", place)


def as_values(given: Any, field: ArrayField, what: str, place: str) -> np.ndarray:
    """Returns nested lists or an array as an array [*shape] of the field's type.

    Raises:
      Damaged: it has another shape or type, does not fit the type, or is not finite.
    """
    kind = np.dtype(field.dtype)
    try:
        array = np.asarray(given)
    except ValueError:  # lists of different lengths
        raise Damaged(place, f"{what} has lists of different lengths") from None
    if array.dtype.kind not in "fiub":
        raise Damaged(place, f"{what} holds something else than numbers, {given!r:.60}")
    if array.shape != field.shape:
        why = f"{what} has the wrong shape, {array.shape} instead of {field.shape}"
        raise Damaged(place, why)
    if not _casts(array.dtype, kind):
        raise Damaged(place, f"{what} holds {array.dtype} instead of {kind}")
    with np.errstate(over="ignore"):
        out = array.astype(kind)
    if kind.kind == "f" and not np.isfinite(out).all():
        raise Damaged(place, f"{what} holds a number that is not finite in {kind}")
    if kind.kind in "iu" and not np.array_equal(out, array):
        raise Damaged(place, f"{what} holds numbers that do not fit into {kind}")
    return out


def _casts(given: np.dtype, wanted: np.dtype) -> bool:
    """Returns True if values of a type may be converted; `as_values` checks that they fit."""
    allowed = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}
    return given.kind in allowed[wanted.kind]
