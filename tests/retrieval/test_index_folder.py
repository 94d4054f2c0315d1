"""An index folder is there whole or not at all, and says what is wrong with it."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import big_retrieval
from big_retrieval.errors import UserError
from big_retrieval.io import manifest
from big_retrieval.io.npy import ArrayWriter
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval import open_index
from big_retrieval.retrieval.files import StoredTexts, TextsWriter, open_array
from big_retrieval.retrieval.folder import About
from big_retrieval.retrieval.searching import IndexSearcher
from big_retrieval.runtime import building, locks
from tests.retrieval.index_cases import make_inverted, random_rows
from tests.retrieval.test_dense_index import make_dense


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
    for name in ("documents.npy", "values.npy", "pointers.npy", "ids.npy", "ids_ends.npy"):
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
    assert index.ids[199] == "d199"


def test_texts_of_another_index_are_not_shown_beside_an_indexs_own_ids(folder: Path) -> None:
    for name in ("texts", "texts_ends"):
        shutil.copy(folder / f"ids{name[5:]}.npy", folder / f"{name}.npy")
    searcher = IndexSearcher(open_index(folder), "bag", "text", False, "text", lambda x: x)
    assert searcher.texts[3] == "d3"
    late = IndexSearcher(open_index(folder), "bag", "text", False, "text", lambda x: x)
    replaced(folder, 1)
    for name in ("texts", "texts_ends"):
        shutil.copy(folder / f"ids{name[5:]}.npy", folder / f"{name}.npy")
    assert searcher.texts[199] == "d199"
    with pytest.raises(UserError, match="was replaced or removed while it was in use; open it"):
        _ = late.texts


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
    with pytest.raises(UserError, match="was replaced or removed while it was in use"):
        open_index(folder)


@pytest.mark.parametrize("change", ["cut", "written"])
@pytest.mark.parametrize("name", ["documents.npy", "values.npy"])
def test_a_file_that_changes_under_its_reader_is_an_error(
    folder: Path, name: str, change: str
) -> None:
    """A read of a part that was cut would end the process."""
    index, queries = open_index(folder), random_rows(5, 30, 0.3, 9)
    index.search(queries, 20)
    if change == "cut":
        os.truncate(folder / name, 128)
    else:
        flip(folder / name, 1500)
    for read in (
        lambda: index.search(queries, 20),
        lambda: index.search_one(queries[[0]].indices, None, 3),
        lambda: index.explain(queries[[0]].indices, queries[[0]].data, 0),
        lambda: index.row(0),
    ):
        with pytest.raises(UserError, match=rf"{name} was changed while it was in use. Run the"):
            read()


def test_ids_that_are_cut_under_their_reader_are_an_error(folder: Path) -> None:
    for name in ("ids.npy", "ids_ends.npy"):
        index = open_index(folder)
        whole = (folder / name).read_bytes()
        os.truncate(folder / name, 128)
        with pytest.raises(UserError, match=rf"{name} was changed while it was in use"):
            index.ids.many([199])
        with pytest.raises(UserError, match=rf"{name} was changed while it was in use"):
            index.ids[199]
        (folder / name).write_bytes(whole)


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
    with pytest.raises(UserError, match="is damaged; build it again"):
        index.search_one(first, None, 3)  # type: ignore[union-attr]
    numbers, _ = index.search_one(first + 5, None, 200)  # type: ignore[union-attr]
    assert len(numbers) == len(set(numbers))  # nothing was left over of the first one


def test_what_is_no_index(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no index"):
        open_index(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"is no index: it lacks manifest.json or index.json"):
        open_index(tmp_path / "empty")
    with pytest.raises(UserError, match=r"is an index, not a model: open it with .*open_index"):
        big_retrieval.load(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match="is no index"):
        open_index(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 1}, "has format 1, and this version of big_retrieval reads 3"),
        ({"kind": "graph"}, "does not describe an index"),
        ({"entries": 7}, "do not fit together"),
        ({"documents": 7}, "do not fit together"),
        ({"values": "float16"}, "holds float32 of 1 dimensions where float16"),
        ({"values": None, "version": None}, "has format None"),
    ],
)
def test_what_an_index_says_of_itself(folder: Path, changes: dict, words: str) -> None:
    about = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(about | changes))
    manifest.write_manifest(folder)
    with pytest.raises(UserError, match=words):
        open_index(folder)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '"text"'])
def test_a_description_of_something_else(folder: Path, content: str) -> None:
    (folder / "index.json").write_text(content)
    manifest.write_manifest(folder)
    with pytest.raises(UserError, match=r"index.json does not describe an index"):
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
    writer = TextsWriter(tmp_path, "ids")
    names = ["a", "", "ä b", "漢字", "x" * 1000]
    writer.append(names[:2])
    writer.append([])
    writer.append(names[2:])
    writer.close()
    texts = StoredTexts(tmp_path, "ids")
    assert list(texts) == names
    assert texts.many(np.array([4, 0, -1, 2])) == [names[4], "a", "ä b"]
    for wrong in (-1, 5):
        with pytest.raises(IndexError):
            texts[wrong]
    np.save(tmp_path / "ids.npy", np.zeros(3, np.uint8))
    with pytest.raises(UserError, match="do not fit"):
        StoredTexts(tmp_path, "ids")


def test_arrays_that_grow(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path / "a.npy", np.float32, (2, 3)) as writer:
        for count in (1, 0, 100_000):
            writer.append(np.full((count, 2, 3), count))
        with pytest.raises(ValueError, match="rows of shape"):
            writer.append(np.zeros((1, 3, 2)))
    found = np.load(tmp_path / "a.npy", allow_pickle=False)
    assert found.shape == (100_001, 2, 3)
    assert found[0, 0, 0] == 1
    assert (found[1:] == 100_000).all()
    (tmp_path / "b.npy").write_bytes(b"no array")
    with pytest.raises(UserError, match=r"b.npy is no readable array"):
        open_array(tmp_path / "b.npy", np.float32)
    np.save(tmp_path / "c.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match=r"c.npy is no readable array"):
        open_array(tmp_path / "c.npy", np.float32)
