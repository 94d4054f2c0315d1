"""An index folder is there whole or not at all, and says what is wrong with it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import big_retrieval
from big_retrieval.data.stores.writer import StoreWriter
from big_retrieval.errors import UserError
from big_retrieval.io import manifest
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval import open_index
from big_retrieval.retrieval.files import IndexStore, StoredTexts, open_array
from big_retrieval.retrieval.folder import About
from big_retrieval.runtime import building, locks
from tests.retrieval.index_cases import make_inverted, random_rows
from tests.retrieval.test_dense_index import make_dense

STORE = "store-00000.arrow"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that no test changes."""
    folder = tmp_path_factory.mktemp("built") / "index"
    make_inverted(folder, random_rows(200, 30, 0.4, 0))
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of an index, whose arrays count as large."""
    shutil.copytree(built, tmp_path / "index")
    monkeypatch.setattr(folders, "SMALL", 2000)
    assert (tmp_path / "index" / "documents.npy").stat().st_size > 2000
    return tmp_path / "index"


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def test_a_file_that_is_cut_short_is_noticed(folder: Path) -> None:
    for name in ("documents.npy", "values.npy", "pointers.npy", STORE):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-4])
        with pytest.raises(UserError, match=rf"is damaged \({name} has \d+ bytes instead of \d+\)"):
            open_index(folder)
        (folder / name).unlink()
        with pytest.raises(UserError, match=rf"is damaged \({name} is missing\)"):
            open_index(folder)
        (folder / name).write_bytes(whole)
    open_index(folder)


def test_a_flipped_bit_is_noticed(folder: Path) -> None:
    """At once in small files, on demand in large ones."""
    flip(folder / "values.npy", 1500)
    open_index(folder)
    with pytest.raises(UserError, match=r"values.npy has another checksum"):
        open_index(folder, verify=True)
    flip(folder / "values.npy", 1500)
    open_index(folder, verify=True)
    flip(folder / "pointers.npy", 200)
    with pytest.raises(UserError, match=r"pointers.npy has another checksum"):
        open_index(folder)


def replaced(folder: Path, seed: int) -> None:
    """Another index in the place of the one that is there."""
    folder.rename(folder.with_name(f"old{seed}"))
    make_inverted(folder, random_rows(150, 30, 0.4, seed))


def test_an_index_that_is_replaced_under_its_reader_keeps_its_answers(folder: Path) -> None:
    queries, index = random_rows(5, 30, 0.3, 9), open_index(folder)
    before = index.search(queries, 20)
    replaced(folder, 1)
    shutil.rmtree(folder.with_name("old1"))
    after = index.search(queries, 20)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (index.ids[199], index.store.row(199)["shown"]) == ("d199", "text 199")


@pytest.mark.slow
def test_an_index_that_is_replaced_while_it_is_opened_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same sizes, so that nothing else shows it."""

    def opened(path: Path, **options: bool) -> About:
        about = open_folder(path, **options)
        path.rename(path.with_name("old"))
        monkeypatch.undo()  # making an index opens it, too
        make_inverted(path, random_rows(200, 30, 0.4, 0)[::-1])
        return about

    open_folder = folders.open_folder
    monkeypatch.setattr(folders, "open_folder", opened)
    with pytest.raises(UserError, match="was replaced or removed while in use"):
        open_index(folder)


@pytest.mark.parametrize("name", ["documents.npy", "values.npy", STORE])
def test_file_that_changes_under_its_reader_is_an_error(folder: Path, name: str) -> None:
    """A read of a part that was cut would end the process."""
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
        with pytest.raises(UserError, match=rf"{name} was changed while it was in use. Run the"):
            read()


def test_embeddings_that_are_cut_under_their_reader_are_an_error(tmp_path: Path) -> None:
    rows = np.ones((3000, 1, 8), np.float32)
    index = make_dense(tmp_path / "index", rows, "inner")
    index.search(rows[:1], 3)
    os.truncate(tmp_path / "index" / "embeddings.npy", 128)
    with pytest.raises(UserError, match=r"embeddings\.npy was changed while it was in use"):
        index.search(rows[:1], 3)
    with pytest.raises(UserError, match=r"embeddings\.npy was changed while it was in use"):
        _ = index.embeddings[2999]


def test_a_number_out_of_range_is_no_crash(folder: Path) -> None:
    flip(folder / "documents.npy", 128 + 2)  # document 4 * 65536 and more
    index = open_index(folder)
    first = np.arange(1)
    with pytest.raises(UserError, match=r"is damaged\. Build it again"):
        index.search_one(first, None, 3)  # type: ignore[union-attr]
    numbers, _ = index.search_one(first + 5, None, 200)  # type: ignore[union-attr]
    assert len(numbers) == len(set(numbers))  # nothing was left over of the first one


def test_what_is_no_index(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No index"):
        open_index(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"Not an index: .* has no manifest.json or index.json"):
        open_index(tmp_path / "empty")
    with pytest.raises(UserError, match=r"is an index, not a model"):
        big_retrieval.load(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match="Not an index"):
        open_index(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 1}, "has format 1, but this version of big_retrieval reads 4"),
        ({"kind": "graph"}, "does not describe an index"),
        ({"entries": 7}, "do not fit together"),
        ({"documents": 7}, "do not fit together"),
        ({"values": "float16"}, "has type float32 and 1 dimensions instead of float16"),
        ({"values": None, "version": None}, "has format None"),
        ("{", "does not describe an index"),
        ("[]", "does not describe an index"),
    ],
)
def test_index_description_is_checked(folder: Path, changes: Any, words: str) -> None:
    about = json.loads((folder / "index.json").read_text())
    content = changes if isinstance(changes, str) else json.dumps(about | changes)
    (folder / "index.json").write_text(content)
    manifest.write_manifest(folder)
    with pytest.raises(UserError, match=words):
        open_index(folder)


def test_a_name_that_is_taken_and_a_build_that_was_interrupted(tmp_path: Path) -> None:
    out = tmp_path / "index"
    partial = folders.begin(out)
    (partial / "left").write_text("over")
    assert not out.exists()
    folders.begin(out)
    assert not (partial / "left").exists()  # the next build begins anew
    shutil.rmtree(partial)
    partial.mkdir()
    with pytest.raises(UserError, match=r"index.partial exists and is needed to build"):
        folders.begin(out)  # it is not ours
    partial.rmdir()
    out.mkdir()
    shutil.rmtree(folders.begin(out))  # an empty folder may be there
    (out / "file").write_text("something")
    with pytest.raises(UserError, match="exists and is not empty"):
        folders.begin(out)


def test_out_may_be_a_link_to_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "disk" / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "real")
    make_inverted(tmp_path / "link", random_rows(3, 4, 0.5, 0))
    assert (tmp_path / "link").is_symlink()
    assert folders.open_folder(tmp_path / "disk" / "real").documents == 3
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["real"]
    assert locks.beside(tmp_path / "link") == tmp_path / "disk" / "real.lock"


def test_a_build_that_was_killed_at_its_very_end_is_begun_anew(tmp_path: Path) -> None:
    partial = folders.begin(tmp_path / "index")
    (partial / building.MARK).unlink()  # `finish` does so before it computes all checksums
    (partial / folders.ABOUT).write_text("{}")
    assert not (folders.begin(tmp_path / "index") / folders.ABOUT).exists()


def test_texts_by_number(tmp_path: Path) -> None:
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


def test_damaged_arrays_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "b.npy").write_bytes(b"no array")
    np.save(tmp_path / "c.npy", np.array([{}], object), allow_pickle=True)
    for name in ("b", "c"):
        with pytest.raises(UserError, match="Cannot read array"):
            open_array(tmp_path / f"{name}.npy", np.float32)
