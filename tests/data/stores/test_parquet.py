"""Parquet files in stores: values and types come back as Arrow has them."""

import datetime
import decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from big_retrieval.data.stores import ingest
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.data.stores.parquet import PARQUET
from big_retrieval.errors import Damaged, UserError

TYPES: list[tuple[pa.DataType, list[Any]]] = [
    *((kind, [1, None, 7]) for kind in (pa.int8(), pa.uint16(), pa.int32(), pa.uint64())),
    *((kind, [0.1, None, -0.0]) for kind in (pa.float32(), pa.float64())),
    (pa.float16(), [np.float16(0.1), None, np.float16(2)]),
    (pa.bool_(), [True, False, None]),
    *((kind, ["é", None, ""]) for kind in (pa.string(), pa.large_string())),
    *((kind, [b"\0", None, b""]) for kind in (pa.binary(), pa.large_binary())),
    (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"]),
    (pa.null(), [None, None, None]),
    (pa.date32(), [datetime.date(1969, 1, 2), None, datetime.date(2020, 1, 1)]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), None, None]),
    (pa.time64("ns"), [datetime.time(1, 2, 3), None, datetime.time(4)]),
    (pa.decimal128(9, 2), [decimal.Decimal("1.50"), None, decimal.Decimal("-2.00")]),
    (pa.list_(pa.string()), [["a", "b"], None, []]),
    (pa.list_(pa.string()), [["a", None], None, []]),
    (pa.list_(pa.list_(pa.uint8())), [[[1], []], None, [[255]]]),
    (pa.list_(pa.float32(), 2), [[0.5, 1], None, [2, 3]]),
    (pa.struct([("bytes", pa.binary()), ("path", pa.string())]), [{"bytes": b"x"}, None, {}]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, []]),
]


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=lambda x: str(x)[:20])
def test_store_returns_values_of_parquet(
    kind: pa.DataType, values: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "PART_ROWS", 4)
    column = pa.array(values * 3, kind)
    pq.write_table(pa.table({"a": column}), tmp_path / "a.parquet", row_group_size=5)
    store = open_store([tmp_path / "a.parquet"], PARQUET)
    rows = [store.row(index).get("a") for index in range(len(store))]
    assert repr(rows) == repr(column.to_pylist())
    (tmp_path / "other").mkdir()
    other = column.take(pa.array([2, 0, 1, *range(6)]))
    pq.write_table(pa.table({"a": other}), tmp_path / "other" / "a.parquet", row_group_size=5)
    again = open_store([tmp_path / "other" / "a.parquet"], PARQUET)
    assert (again.fingerprint == store.fingerprint) == (other.to_pylist() == column.to_pylist())


def test_files_of_other_types_are_one_store(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": ["1"]}), tmp_path / "1.parquet")
    store = open_store([tmp_path / "0.parquet", tmp_path / "1.parquet"], PARQUET)
    assert [store.row(n) for n in range(3)] == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": "1"}]
    assert store.place(2) == f"{tmp_path / '1.parquet'}, row 1"
    assert store.column("a") is store.column("b") is None


def test_columns_that_unpack_to_more_than_the_free_space_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": ["x" * 1000] * 5000}), path)
    assert path.stat().st_size < 2**16
    monkeypatch.setattr(ingest.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    with pytest.raises(UserError, match=r"has 1\.0 MiB of free space, not 4\.8 MiB"):
        open_store([path], PARQUET)


def test_contents_are_not_a_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [b"x"], "b": [1]}), tmp_path / "a.parquet")
    store = open_store([tmp_path / "a.parquet"], PARQUET)
    assert store.column("a") is None
    assert store.column("b") is not None


def test_date_out_of_range_damages_its_row(tmp_path: Path) -> None:
    column = pa.array([2**40, 1], pa.int64()).cast(pa.timestamp("s"))
    texts = pa.array(["x", "y"], pa.string_view())
    pq.write_table(pa.table({"a": column, "b": [1, 2], "c": texts}), tmp_path / "a.parquet")
    store = open_store([tmp_path / "a.parquet"], PARQUET)
    with pytest.raises(Damaged, match="a value that cannot be read"):
        store.row(0)
    assert store.row(0, ("b",)) == {"b": 1}
    assert store.row(1) == {"a": datetime.datetime(1970, 1, 1, 0, 0, 1), "b": 2, "c": "y"}
