"""Folders of indexes: complete or missing, with an error that names the damage."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import big_retrieval
from big_retrieval.data.stores.writer import StoreWriter
from big_retrieval.io import manifest
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval import open_index
from big_retrieval.retrieval.files import IndexStore, StoredTexts, open_array
from big_retrieval.retrieval.folder import About
from big_retrieval.runtime import atomic_folder, locks
from tests.helpers import user_error
from tests.retrieval.index_cases import assert_equal, make_dense, make_inverted, random_rows

STORE = "store-00000.arrow"


@pytest.fixture(scope="module")
def shared_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that no test changes."""
    folder = tmp_path_factory.mktemp("built") / "index"
    make_inverted(folder, random_rows(200, 30, 0.4, 0))
    return folder


@pytest.fixture
def folder(shared_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of an index, whose arrays count as large."""
    shutil.copytree(shared_index, tmp_path / "index")
    monkeypatch.setattr(folders, "SMALL", 2000)
    assert (tmp_path / "index" / "documents.npy").stat().st_size > 2000
    return tmp_path / "index"


def flip(path: Path, index: int) -> None:
    content = bytearray(path.read_bytes())
    content[index] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["documents.npy", "values.npy", "pointers.npy", STORE])
def test_open_rejects_cut_and_missing_file(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-4])
    with user_error(f"is damaged ({name} has ", "bytes instead of"):
        open_index(folder)
    (folder / name).unlink()
    with user_error(f"is damaged ({name} is missing)"):
        open_index(folder)


def test_open_rejects_flipped_bit(folder: Path) -> None:
    """At once in small files, with `verify` in large ones."""
    flip(folder / "values.npy", 1500)
    open_index(folder)
    with user_error("values.npy has another checksum"):
        open_index(folder, verify=True)
    flip(folder / "values.npy", 1500)
    open_index(folder, verify=True)
    flip(folder / "pointers.npy", 200)
    with user_error("pointers.npy has another checksum"):
        open_index(folder)


def test_opened_index_answers_after_replacement(folder: Path) -> None:
    queries, index = random_rows(5, 30, 0.3, 9), open_index(folder)
    hits = index.search(queries, 20)
    folder.rename(folder.with_name("old"))
    make_inverted(folder, random_rows(150, 30, 0.4, 1))
    shutil.rmtree(folder.with_name("old"))
    assert_equal(index.search(queries, 20), hits)
    assert (index.ids[199], index.store.row(199)["shown"]) == ("d199", "text 199")


@pytest.mark.slow
def test_open_rejects_index_that_is_replaced_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path: Path, **options: bool) -> About:
        about = open_folder(path, **options)
        path.rename(path.with_name("old"))
        monkeypatch.undo()  # `make_inverted` opens the index, too
        make_inverted(path, random_rows(200, 30, 0.4, 0)[::-1])  # with files of the same sizes
        return about

    open_folder = folders.open_folder
    monkeypatch.setattr(folders, "open_folder", opened)
    with user_error("was replaced or removed while in use"):
        open_index(folder)


@pytest.mark.parametrize("name", ["documents.npy", "values.npy", STORE])
def test_read_of_changed_file_is_an_error(folder: Path, name: str) -> None:
    """A read of a part that was cut would kill the process."""
    index, queries = open_index(folder), random_rows(5, 30, 0.3, 9)
    index.search(queries, 20)
    if name == "values.npy":
        flip(folder / name, 1500)
    else:
        os.truncate(folder / name, 128)
    reads = [lambda: index.ids.many([199]), lambda: index.ids[199]]
    if name != STORE:
        reads = [
            lambda: index.search(queries, 20),
            lambda: index.search_one(queries[[0]].indices, None, 3),
            lambda: index.explain(queries[[0]].indices, queries[[0]].data, 0),
            lambda: index.row(0),
        ]
    for read in reads:
        with user_error(f"{name} was changed while it was in use"):
            read()


def test_read_of_cut_embeddings_is_an_error(tmp_path: Path) -> None:
    rows = np.ones((3000, 1, 8), np.float32)
    index = make_dense(tmp_path / "index", rows, "inner")
    index.search(rows[:1], 3)
    os.truncate(tmp_path / "index" / "embeddings.npy", 128)
    for read in (lambda: index.search(rows[:1], 3), lambda: index.embeddings[2999]):
        with user_error("embeddings.npy was changed while it was in use"):
            read()


def test_open_rejects_other_folders(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with user_error("No index"):
        open_index(tmp_path / "nothing")
    with user_error("Not an index", "no manifest.json or index.json"):
        open_index(tmp_path / "empty")
    with user_error("is an index, not a model"):
        big_retrieval.load(folder)
    (folder / "manifest.json").unlink()
    with user_error("Not an index"):
        open_index(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 1}, "has format 1, but"),
        ({"kind": "graph"}, "does not describe an index"),
        ({"entries": 7}, "do not fit together"),
        ({"documents": 7}, "do not fit together"),
        ({"values": "float16"}, "has type float32 and 1 dimensions instead of float16"),
        ({"values": None, "version": None}, "has format None"),
        ("{", "does not describe an index"),
        ("[]", "does not describe an index"),
    ],
)
def test_open_rejects_wrong_description(folder: Path, changes: Any, words: str) -> None:
    about = json.loads((folder / "index.json").read_text())
    content = changes if isinstance(changes, str) else json.dumps(about | changes)
    (folder / "index.json").write_text(content)
    manifest.write_manifest(folder)
    with user_error(words):
        open_index(folder)


def test_begin_replaces_interrupted_build_only(tmp_path: Path) -> None:
    out = tmp_path / "index"
    partial = folders.begin(out)
    (partial / "old").write_text("content")
    assert not out.exists()
    folders.begin(out)
    assert not (partial / "old").exists()
    (partial / atomic_folder.MARK).unlink()  # as `finish` does before it computes checksums
    (partial / folders.ABOUT).write_text("{}")
    assert not (folders.begin(out) / folders.ABOUT).exists()
    shutil.rmtree(partial)
    partial.mkdir()
    with user_error("index.partial exists and is needed to build"):
        folders.begin(out)  # a folder of the user
    partial.rmdir()
    out.mkdir()
    shutil.rmtree(folders.begin(out))  # `out` may be an empty folder
    (out / "file").write_text("something")
    with user_error("exists and is not empty"):
        folders.begin(out)


def test_index_folder_may_be_link_to_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "disk" / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "real")
    make_inverted(tmp_path / "link", random_rows(3, 4, 0.5, 0))
    assert (tmp_path / "link").is_symlink()
    assert folders.open_folder(tmp_path / "disk" / "real").documents == 3
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["real"]
    assert locks.beside(tmp_path / "link") == tmp_path / "disk" / "real.lock"


def test_stored_texts_by_document(tmp_path: Path) -> None:
    names = ["a", "", "ä b", "漢字", "x" * 1000]
    with StoreWriter(tmp_path, "document") as writer:
        writer.append({"id": name, "row": 0} for name in names)
    texts = StoredTexts(IndexStore(tmp_path), "id")
    assert list(texts) == names
    assert texts.many(np.array([4, 0, -1, 2])) == [names[4], "a", "ä b"]
    assert list(StoredTexts(IndexStore(tmp_path), "shown")) == [""] * 5
    for wrong in (-1, 5):
        with pytest.raises(IndexError):
            texts[wrong]


def test_open_array_rejects_damage_and_objects(tmp_path: Path) -> None:
    (tmp_path / "b.npy").write_bytes(b"no array")
    np.save(tmp_path / "c.npy", np.array([{}], object), allow_pickle=True)
    for name in ("b", "c"):
        with user_error("Cannot read array"):
            open_array(tmp_path / f"{name}.npy", np.float32)
