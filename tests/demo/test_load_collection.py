"""Documents and search modes of runs and indexes."""

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
from big_retrieval.demo.load_collection import Demo, DemoOptions, open_demo
from big_retrieval.demo.search_modes import ModelMode
from big_retrieval.errors import Damaged
from big_retrieval.retrieval.build_index import IndexOptions, make
from tests.demo.conftest import COUNT
from tests.helpers import user_error

pytestmark = pytest.mark.slow  # compiles models
TEXTS = ["a small red circle", "a big blue star left of a green heart"]


def test_modes_equal_scores_of_models(demo: Demo, runs: tuple[str, str]) -> None:
    assert [mode.key for mode in demo.modes] == ["sparse", "bag", "dense"]
    assert len(demo.collection) == COUNT
    images = [SceneRecords("test", size=32, count=COUNT)[i]["image"] for i in range(COUNT)]
    for mode, run in zip((demo.modes[0], demo.modes[2]), runs, strict=True):
        model = load(run)
        batch = model.score(model.encode_texts(TEXTS), model.encode_images(images))
        for text, scores in zip(TEXTS, batch, strict=True):
            documents, values = mode.search(mode.encode("text", text), 5)
            np.testing.assert_allclose(values, scores[documents], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(values, -np.sort(-scores)[:5], rtol=1e-4, atol=1e-5)


def test_terms_add_up_to_score(demo: Demo) -> None:
    for mode in demo.modes[:2]:
        row = mode.encode("text", TEXTS[0])
        documents, scores = mode.search(row, 3)
        terms = mode.terms(row, int(documents[0]))
        assert sum(value for _, value in terms) == pytest.approx(scores[0], rel=1e-4)


def test_row_of_document_is_its_encoded_image(demo: Demo) -> None:
    for mode in (demo.modes[0], demo.modes[2]):
        assert isinstance(mode, ModelMode)
        stored = mode.encode("like", 3)
        encoded = mode.encode("image", demo.collection.image(3))
        assert mode.search(stored, 1)[0].tolist() == [3]
        if mode.lexical:
            stored, encoded = stored.toarray(), encoded.toarray()
        np.testing.assert_allclose(stored, encoded, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten pictures with captions; the third picture is damaged."""
    folder, scenes = tmp_path_factory.mktemp("files"), SceneRecords("test", size=32, count=10)
    lines = []
    for number in range(10):
        Image.fromarray(scenes[number]["image"]).save(folder / f"{number}.png")
        row = {"id": f"d{number}", "image": f"{number}.png", "caption": f"<b>picture {number}"}
        lines.append(json.dumps(row))
    (folder / "2.png").write_bytes(b"no image")
    (folder / "pictures.jsonl").write_text("\n".join(lines))
    return folder / "pictures.jsonl"


def test_index_shows_documents_of_deleted_file(
    runs: tuple[str, str], files: Path, tmp_path: Path
) -> None:
    for path in files.parent.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    table = tmp_path / files.name
    index = make(IndexOptions(Path(runs[0]), str(table), tmp_path / "index", show="caption"))
    table.unlink()
    options = DemoOptions(index=(str(index),))
    demo = open_demo(options, tmp_path)
    assert [mode.key for mode in demo.modes] == ["sparse", "bag"]
    collection = demo.collection
    assert len(collection) == 9  # without the damaged picture
    assert collection.ids[2] == "d3"
    assert collection.shown[2] == collection.text(2) == "<b>picture 3"
    media_type, data = collection.picture(2) or ("", b"")
    assert media_type in ("image/png", "image/jpeg")
    assert len(data) > 100
    (tmp_path / "3.png").unlink()
    with pytest.raises(Damaged, match=r"document d3: the image '\S*3\.png' cannot be read"):
        open_demo(options, tmp_path).collection.image(2)
    with user_error("--data is for documents that are encoded at the start"):
        open_demo(dataclasses.replace(options, data="others.jsonl"), tmp_path)


def test_pictures_of_changed_table_are_not_shown(
    runs: tuple[str, str], files: Path, tmp_path: Path, said: list[str]
) -> None:
    table = tmp_path / "table.parquet"

    def write(numbers: list[int]) -> None:
        pictures = [files.with_name(f"{number}.png").read_bytes() for number in numbers]
        pq.write_table(pa.table({"image": pictures, "caption": list(map(str, numbers))}), table)

    write([5, 3, 4])
    index = make(IndexOptions(Path(runs[1]), str(table), tmp_path / "index", show="caption"))
    options = DemoOptions(index=(str(index),))
    collection = open_demo(options, tmp_path).collection
    assert (collection.shown[1], collection.image(1).data) == (
        "3", files.with_name("3.png").read_bytes()
    )  # fmt: skip
    write([3, 4, 5])
    assert not open_demo(options, tmp_path).collection.has_pictures
    (warning,) = (line for line in said if "no pictures: the files that" in line)
    assert f"have changed: {table}" in warning


def test_files_are_encoded_up_to_limit(runs: tuple[str, str], files: Path, tmp_path: Path) -> None:
    options = DemoOptions(run=runs[1:], data=str(files), show="caption", limit=4)
    demo = open_demo(options, tmp_path)
    assert [mode.key for mode in demo.modes] == ["dense"]
    assert list(demo.collection.ids) == ["d0", "d1", "d3"]


def test_open_demo_rejects_wrong_flags(runs: tuple[str, str], tmp_path: Path) -> None:
    for options, words in (
        (DemoOptions(), "--run is missing"),
        (DemoOptions(run=runs, data="evals.other"), "the run has evals.test"),
        (DemoOptions(run=runs, index=("index",)), "one run for each index"),
    ):
        with user_error(words):
            open_demo(options, tmp_path / "none")
