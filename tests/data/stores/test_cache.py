"""The cache of stores: what is listed, what is deleted, and what is repeated at each open."""

import os
import time
from pathlib import Path

import pytest

from big_retrieval.data.stores import ingest
from big_retrieval.data.stores.cache import DAY, cached_stores
from big_retrieval.data.stores.delimited import delimited
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.data.stores.store import INFO
from tests.helpers import in_process


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIG_RETRIEVAL_STORES", str(tmp_path / "stores"))
    return tmp_path / "stores"


def make_store(tmp_path: Path, name: str, days: float) -> Path:
    """Returns the table of a store that was used some days ago."""
    path = tmp_path / f"{name}.csv"
    path.write_text(f"a,b\n1,{name}\n2\n")
    with_info = open_store([path], delimited(",")).folder / INFO
    os.utime(with_info, (0, time.time() - days * DAY))
    return path


def test_command_lists_stores_and_deletes_those_not_needed(cache: Path, tmp_path: Path) -> None:
    for name, days in (("new", 0), ("just_gone", 5), ("gone", 8), ("changed", 8), ("old", 31)):
        path = make_store(tmp_path, name, days)
        if name.endswith("gone"):
            path.unlink()
        elif name == "changed":
            path.write_text("a,b\n3,4\n")
    (cache / f"killed-{'0' * 20}.partial").mkdir()
    (cache / "thesis").mkdir()  # not ours, and older than a day
    os.utime(cache / "thesis", (0, time.time() - 40 * DAY))
    reasons = {x.folder.name.partition("-")[0]: x.reason for x in cached_stores(cache)}
    assert {name for name, reason in reasons.items() if reason} == {"gone", "changed", "old"}
    listed = in_process("data", "stores").stdout
    assert listed.startswith(f"6 stores (0.0 MiB) in {cache}")
    assert f"{tmp_path}/gone.csv; 1 damaged rows; not needed: {tmp_path}/gone.csv is gone" in listed
    assert "old.csv; 1 damaged rows; not needed: not used for 30 days" in listed
    assert "--delete deletes 3 stores (0.0 MiB)" in listed
    assert in_process("data", "stores", "--delete").stdout.startswith("deleted 3 stores")
    names = {path.name.partition("-")[0] for path in cache.iterdir()}
    assert names == {"new", "just_gone", "killed", "thesis"}
    in_process("data", "stores", "--delete", "--all")
    assert in_process("data", "stores").stdout == f"0 stores (0.0 MiB) in {cache}\n"
    assert {path.name for path in cache.iterdir()} == {"thesis"}


def test_every_process_prints_notes_and_renews_the_last_use(
    cache: Path, tmp_path: Path, said: list[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("a\nGrüße\n".encode("cp1252"))
    for _ in range(2):
        ingest._warn.cache_clear()  # as in another process
        open_store([path], delimited(","))
    assert sum(f"{path} is not UTF-8; it is read as Windows-1252" in x for x in said) == 2
    (store,) = cached_stores(cache)
    assert time.time() - store.used < DAY


def test_all_flag_needs_delete(cache: Path) -> None:
    assert "--all needs --delete" in in_process("data", "stores", "--all").stderr
