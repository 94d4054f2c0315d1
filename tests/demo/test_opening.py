"""What a demo searches: the ways of runs and indexes, and the records of documents."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from big_retrieval import load
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.demo.opening import Demo, DemoOptions, open_demo
from big_retrieval.demo.ways import ModelWay
from big_retrieval.errors import UserError
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.making import IndexOptions, make
from tests.demo.conftest import COUNT

pytestmark = pytest.mark.slow  # for what is compiled
TEXTS = ["a small red circle", "a big blue star left of a green heart"]


def test_ways_of_two_runs_find_what_their_models_score_best(
    demo: Demo, runs: tuple[str, str]
) -> None:
    assert [way.key for way in demo.ways] == ["sparse", "bag", "dense"]
    assert len(demo.collection) == COUNT
    images = [SceneRecords("test", size=32, count=COUNT)[i]["image"] for i in range(COUNT)]
    for way, run in zip((demo.ways[0], demo.ways[2]), runs, strict=True):
        model = load(run)
        scores = model.score(model.encode_texts(TEXTS), model.encode_images(images))
        rows = way.encode("text", TEXTS)
        numbers, values = way.search(rows, 5)
        best = np.take_along_axis(scores, numbers, axis=1)
        np.testing.assert_allclose(values, best, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(values, -np.sort(-scores, axis=1)[:, :5], rtol=1e-4, atol=1e-5)


def test_terms_of_a_way_add_up_to_the_score(demo: Demo) -> None:
    for way in demo.ways[:2]:
        row = way.encode("text", TEXTS[:1])
        numbers, scores = way.search(row, 3)
        terms = way.terms(row[[0]], int(numbers[0, 0]))
        assert sum(value for _, value in terms) == pytest.approx(scores[0, 0], rel=1e-4)


def test_the_row_of_a_document_is_what_its_image_gives(demo: Demo) -> None:
    for way in (demo.ways[0], demo.ways[2]):
        assert isinstance(way, ModelWay)
        image = demo.collection.image(3)
        stored, encoded = way.encode("like", [3]), way.encode("image", [image])
        if way.lexical:
            stored, encoded = stored.toarray(), encoded.toarray()
        np.testing.assert_allclose(stored, encoded, rtol=1e-4, atol=1e-5)
        assert way.search(way.encode("like", [3]), 1)[0].tolist() == [[3]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten pictures with captions, the third of which is broken."""
    folder, scenes = tmp_path_factory.mktemp("files"), SceneRecords("test", size=32, count=10)
    lines = []
    for number in range(10):
        Image.fromarray(scenes[number]["image"]).save(folder / f"{number}.png")
        row = {"id": f"d{number}", "image": f"{number}.png", "caption": f"<b>picture {number}"}
        lines.append(json.dumps(row))
    (folder / "2.png").write_bytes(b"no image")
    (folder / "pictures.jsonl").write_text("\n".join(lines))
    return folder / "pictures.jsonl"


def test_an_index_finds_its_pictures_behind_a_broken_one(
    runs: tuple[str, str], files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = make(IndexOptions(Path(runs[0]), str(files), tmp_path / "index", show="caption"))
    options: dict[str, Any] = {"indexes": (str(index),), "show": "caption"}
    found = open_demo(DemoOptions(data=str(files), **options), tmp_path)
    assert [way.key for way in found.ways] == ["sparse", "bag"]
    collection = found.collection
    assert len(collection) == 9
    assert collection.ids[2] == "d3"
    assert collection.shown[2] == "<b>picture 3"
    kind, data = collection.picture(2) or ("", b"")
    assert kind in ("image/png", "image/jpeg")
    assert len(data) > 100
    alone = open_demo(DemoOptions(indexes=(str(index),)), tmp_path).collection
    assert alone.picture(2) == collection.picture(2)  # the index says where its files are
    files.write_text(files.read_text() + "\n")
    bare = open_demo(DemoOptions(**options), tmp_path)
    assert not bare.collection.has_pictures  # they are others now
    assert bare.collection.text(2) == "<b>picture 3"
    assert bare.collection.picture(2) is None
    others = DemoOptions(data=str(_others(files)), **options)
    with pytest.raises(UserError, match=r"--data=.*others.jsonl has other rows than the index"):
        open_demo(others, tmp_path)
    monkeypatch.setattr(folders, "made_from", lambda folder: None)  # such as of an older index
    with pytest.raises(UserError, match="--data has no record with the id 'd0'"):
        open_demo(others, tmp_path)


def test_a_table_that_was_sorted_anew_gives_no_pictures(
    runs: tuple[str, str], files: Path, tmp_path: Path, said: list[str]
) -> None:
    """Ids are numbers of rows here, and the file keeps its name and size."""
    names = ("5.png", "3.png", "4.png")
    table, pictures = tmp_path / "table.csv", [files.with_name(name) for name in names]
    lines = [f"{path},picture of {path.stem}" for path in pictures]
    table.write_text("\n".join(["image,caption", *lines]) + "\n")
    index = make(IndexOptions(Path(runs[1]), str(table), tmp_path / "index", show="caption"))
    options = DemoOptions(indexes=(str(index),))
    assert open_demo(options, tmp_path).collection.has_pictures
    named = dataclasses.replace(options, data=str(table))  # and shows another column
    assert open_demo(named, tmp_path).collection.has_pictures
    table.write_text("\n".join(["image,caption", *sorted(lines)]) + "\n")
    assert not open_demo(options, tmp_path).collection.has_pictures
    assert any("have changed: no pictures" in line for line in said)
    with pytest.raises(UserError, match="has other rows than the index"):
        open_demo(named, tmp_path)


def _others(files: Path) -> Path:
    """The same pictures under other ids."""
    other = files.with_name("others.jsonl")
    other.write_text(files.read_text().replace('"d', '"e'))
    return other


def test_own_files_are_encoded_as_many_as_wanted(
    runs: tuple[str, str], files: Path, tmp_path: Path
) -> None:
    options = DemoOptions(runs=runs[1:], data=str(files), show="caption", limit=4)
    found = open_demo(options, tmp_path)
    assert [way.key for way in found.ways] == ["dense"]
    assert list(found.collection.ids) == ["d0", "d1", "d3"]


def test_mistakes_are_one_sentence(runs: tuple[str, str], tmp_path: Path) -> None:
    for options, sentence in (
        (DemoOptions(), "--run is missing"),
        (DemoOptions(runs=runs, data="evals.other"), "the run has evals.test"),
        (DemoOptions(runs=runs, indexes=("index",)), "name a run for each index"),
    ):
        with pytest.raises(UserError, match=sentence):
            open_demo(options, tmp_path / "none")
