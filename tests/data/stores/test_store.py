"""Stores: rows come back with their types, whatever interrupts or changes while they are read."""

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from big_retrieval.data.stores import blocks, ingest
from big_retrieval.data.stores.blocks import MOST_COLUMNS, Reader
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.data.stores.json_files import JSON_LINES, read_json_lines
from big_retrieval.data.stores.store import Store
from big_retrieval.errors import Damaged, UserError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
ROWS = st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES), min_size=1, max_size=9)


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIG_RETRIEVAL_STORES", str(tmp_path / "stores"))
    return tmp_path / "stores"


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def typed(value: Any) -> Any:
    """A value that equals another one only if all types in it are the same."""
    if isinstance(value, dict):
        return {key: typed(x) for key, x in value.items()}
    return [typed(x) for x in value] if isinstance(value, list) else (type(value), repr(value))


@hypothesis.settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(rows=ROWS)
def test_store_returns_rows_with_their_types(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    store = open_store([write(tmp_path / "rows.jsonl", rows)], JSON_LINES)
    names = {name for row in rows for name in row}
    assert store.columns == names
    for index, row in enumerate(rows):
        values = {name: value for name, value in row.items() if value is not None}
        assert typed(store.row(index)) == typed(values)


def test_store_names_damaged_rows_and_keeps_the_others(tmp_path: Path, said: list[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": \n[3]\n{"a": 2}\n')
    store = open_store([path], JSON_LINES)
    assert (len(store), store.damaged) == (4, 2)
    assert [store.row(index) for index in (0, 3)] == [{"a": 1}, {"a": 2}]
    with pytest.raises(Damaged, match=r"rows\.jsonl, line 3: not JSON"):
        store.row(1)
    assert store.place(2) == f"{path}, line 4"
    assert any("2 of 4 rows cannot be read, the first: " in line for line in said)


def test_fingerprint_depends_on_values_alone(tmp_path: Path) -> None:
    rows = [{"a": "x", "b": [1]}, {"a": None}, {"b": {"c": 2.0}}]
    path = write(tmp_path / "rows.jsonl", rows)
    first = open_store([path], JSON_LINES)
    os.utime(path, ns=(0, 0))
    touched = open_store([path], JSON_LINES)
    assert touched.folder != first.folder
    assert touched.fingerprint == first.fingerprint
    for changed in ([{"a": "x", "b": [1]}, {"a": ""}], [{"a": "x", "b": [True]}, *rows[1:]]):
        other = open_store([write(tmp_path / "other.jsonl", changed)], JSON_LINES)
        assert other.fingerprint != first.fingerprint


def test_last_bytes_show_a_change_that_kept_size_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "MOST_SAMPLED", 1)  # as of very many files
    for value in (1, 2):
        path = write(tmp_path / "rows.jsonl", [*({"a": 0} for _ in range(2000)), {"a": value}])
        os.utime(path, ns=(0, 0))
        assert open_store([path], JSON_LINES).row(2000) == {"a": value}


def interrupted(path: Path) -> Any:
    """A reader that fails at the third file for as long as a file `stop` is beside it."""
    with (path.parent / "read.txt").open("a") as log:
        log.write(f"{path.name}\n")
    if path.name == "2.jsonl" and (path.parent / "stop").exists():
        raise KeyboardInterrupt
    return read_json_lines(path)


def test_interrupted_ingest_continues_after_the_last_whole_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stores: Path
) -> None:
    monkeypatch.setattr(ingest, "LANE_BYTES", 1)  # a lane for each file
    paths = [write(tmp_path / f"{n}.jsonl", [{"a": n}, {"a": n, "b": "x"}]) for n in range(4)]
    (tmp_path / "stop").touch()
    reader = Reader(interrupted, "line")
    with pytest.raises(KeyboardInterrupt):
        open_store(paths, reader)
    assert not list(stores.glob("*/store.json"))
    (tmp_path / "stop").unlink()
    store = open_store(paths, reader)
    assert (tmp_path / "read.txt").read_text().split() == [f"{n}.jsonl" for n in (0, 1, 2, 2, 3)]
    assert [store.row(index)["a"] for index in range(8)] == [n // 2 for n in range(8)]
    assert store.fingerprint == open_store(paths, JSON_LINES).fingerprint
    assert store.place(5) == f"{paths[2]}, line 2"


def _open(path: Path, found: Any) -> None:
    found.put(open_store([path], JSON_LINES).fingerprint)


def test_processes_that_open_the_same_files_share_one_store(tmp_path: Path, stores: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"a": f"text {n}"} for n in range(5000)])
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    processes = [context.Process(target=_open, args=(path, found)) for _ in range(3)]
    for process in processes:
        process.start()
    fingerprints = {found.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
    assert len(fingerprints) == 1
    assert len(list(stores.glob("rows-*"))) == 1


def test_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, stores: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"a": 1}])

    def growing(path: Path) -> Any:
        yield from read_json_lines(path)
        path.write_text('{"a": 1}\n{"a": 2}\n')

    with pytest.raises(UserError, match=r"rows\.jsonl was changed while it was read"):
        open_store([path], Reader(growing, "line"))
    assert not list(stores.glob("rows-*"))


def test_folder_that_cannot_be_written_is_replaced_for_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BIG_RETRIEVAL_STORES", str(tmp_path / "file" / "stores"))
    store = open_store([write(tmp_path / "rows.jsonl", [{"a": 1}])], JSON_LINES)
    assert store.row(0) == {"a": 1}
    assert any("cannot be written" in line and "BIG_RETRIEVAL_STORES" in line for line in said)


def test_damaged_store_names_the_remedy(tmp_path: Path) -> None:
    store = open_store([write(tmp_path / "rows.jsonl", [{"a": 1}])], JSON_LINES)
    (store.folder / "00000-00000.arrow").write_bytes(b"")
    with pytest.raises(UserError, match=r"Remove it"):
        Store(store.folder)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "has no rows; give a file with at least one record"),
        ("\n \n", "has no rows"),
        ("{\n", "none of 1 rows can be read: line 1, not JSON"),
    ],
)
def test_files_without_a_whole_row_are_refused(
    rows: str, message: str, tmp_path: Path, stores: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text(rows)
    with pytest.raises(UserError, match=rf"rows\.jsonl:? {message}"):
        open_store([tmp_path / "rows.jsonl"], JSON_LINES)
    assert not list(stores.glob("rows-*"))


def test_odd_keys_are_damage_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"\\ud83d": 1}\n{"": 1, "#place": 2, "a\\u0000": 3}\n')
    store = open_store([path], JSON_LINES)
    assert store.row(1) == {"": 1, "#place": 2, "a\0": 3}
    with pytest.raises(Damaged, match="surrogates not allowed"):
        store.row(0)
    many = write(tmp_path / "many.jsonl", [{f"key {n}": n} for n in range(MOST_COLUMNS + 1)])
    with pytest.raises(UserError, match="more than 2,000 different keys"):
        open_store([many], JSON_LINES)


def test_rows_of_several_parts_and_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "PART_ROWS", 3)
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 2)
    rows = [{"a": n} if n % 4 else {"a": f"text {n}", "b": [str(n)]} for n in range(11)]
    store = open_store([write(tmp_path / "rows.jsonl", rows)], JSON_LINES)
    assert [store.row(index) for index in range(11)] == rows
    assert [store.place(index).rpartition(" ")[2] for index in (0, 4, 10)] == ["1", "5", "11"]
    assert store.column("a") is None  # texts in some parts, numbers in others


def test_store_that_lost_its_list_is_made_again(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"a": 1}])
    store = open_store([path], JSON_LINES)
    (store.folder / "store.json").unlink()
    assert open_store([path], JSON_LINES).row(0) == {"a": 1}
