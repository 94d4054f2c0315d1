"""What a demo searches: the ways of runs and indexes, and the records of documents."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from big_retrieval import load
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.demo.opening import Demo, DemoOptions, open_demo
from big_retrieval.demo.ways import ModelWay
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io.manifest import MANIFEST, write_manifest
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


def test_index_shows_its_documents_without_the_file_they_came_from(
    runs: tuple[str, str], files: Path, tmp_path: Path, said: list[str]
) -> None:
    for path in files.parent.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    table = tmp_path / files.name
    index = make(IndexOptions(Path(runs[0]), str(table), tmp_path / "index", show="caption"))
    table.unlink()
    options = DemoOptions(indexes=(str(index),))
    found = open_demo(options, tmp_path)
    assert [way.key for way in found.ways] == ["sparse", "bag"]
    collection = found.collection
    assert len(collection) == 9  # one picture is broken
    assert collection.ids[2] == "d3"
    assert collection.shown[2] == collection.text(2) == "<b>picture 3"
    kind, data = collection.picture(2) or ("", b"")
    assert kind in ("image/png", "image/jpeg")
    assert len(data) > 100
    (tmp_path / "3.png").unlink()
    with pytest.raises(Damaged, match=r"document d3: the image '\S*3\.png' cannot be read"):
        open_demo(options, tmp_path).collection.image(2)
    with pytest.raises(UserError, match="--data is for documents that are encoded at the start"):
        open_demo(dataclasses.replace(options, data="others.jsonl"), tmp_path)
    (index / "store.json").unlink()  # as of an older version
    (index / MANIFEST).unlink()
    write_manifest(index)
    bare = open_demo(options, tmp_path).collection
    assert not bare.has_pictures
    assert (bare.text(2), bare.picture(2)) == ("<b>picture 3", None)
    assert any("was built by an older version: no pictures" in line for line in said)


def test_pictures_in_a_changed_table_are_not_shown(
    runs: tuple[str, str], files: Path, tmp_path: Path, said: list[str]
) -> None:
    table = tmp_path / "table.parquet"

    def write(numbers: list[int]) -> None:
        pictures = [files.with_name(f"{number}.png").read_bytes() for number in numbers]
        pq.write_table(pa.table({"image": pictures, "caption": list(map(str, numbers))}), table)

    write([5, 3, 4])
    index = make(IndexOptions(Path(runs[1]), str(table), tmp_path / "index", show="caption"))
    options = DemoOptions(indexes=(str(index),))
    collection = open_demo(options, tmp_path).collection
    assert (collection.shown[1], collection.image(1).data) == (
        "3", files.with_name("3.png").read_bytes()
    )  # fmt: skip
    write([3, 4, 5])
    assert not open_demo(options, tmp_path).collection.has_pictures
    (warning,) = (line for line in said if "no pictures: the files that" in line)
    assert f"have changed: {table}. Put them back, or build the index again." in warning


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
