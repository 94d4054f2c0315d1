"""Pictures and pages of explanations, with and without the extra."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.explain import listings, pages, pictures
from big_retrieval.explain.examples import ExampleOptions, examples
from big_retrieval.explain.pages import Listing
from big_retrieval.explain.vocabulary import box, vocabulary
from big_retrieval.inference.load import TrainedModel
from big_retrieval.report import heat_maps
from big_retrieval.report.examples import matched
from tests.helpers import tiny, user_error
from tests.report.test_report import check

PICTURE = np.full((8, 8, 3), 100, np.uint8)
ATTACK = "<script>&\"'"


def test_bars_have_lengths_of_values() -> None:
    rows = [("a" * 40, 2.0, "2"), (ATTACK, 1.0, "1"), ("none", 0.0, "0")]
    assert re.findall(r"--s: ([\d.]+)%", pages.value_bars(rows)) == ["100.0", "50.0", "0.0"]


def test_heat_map_is_red_at_large_values() -> None:
    values = np.array([[0.0, 1.0], [0.5, 0.0]])
    image = np.asarray(heat_maps.heat(PICTURE, values, 1.0), np.int32)
    assert image.shape == (224, 224, 3)
    red = image[..., 0] - image[..., 1]
    quarters = [red[:112, :112], red[:112, 112:], red[112:, :112], red[112:, 112:]]
    assert [len(np.unique(quarter)) for quarter in quarters] == [1, 1, 1, 1]
    means = [quarter.mean() for quarter in quarters]
    assert means[1] > means[2] > means[0] == means[3] == 0
    pale = np.asarray(heat_maps.heat(PICTURE, values, 10.0), np.int32)
    assert 0 < (pale[..., 0] - pale[..., 1]).max() < red.max() / 5
    grey = np.asarray(heat_maps.heat(PICTURE, np.zeros((2, 2)), 0.0))
    assert (grey == 100).all()


def test_marked_patches_keep_their_colors() -> None:
    mask = np.array([[True, False], [False, False]])
    image = np.asarray(pictures.marked(PICTURE, mask))
    assert image[50, 50].tolist() == [100, 100, 100]
    assert image[150, 150, 0] > 150
    assert image[0, 50].tolist() == [214, 40, 40]
    assert heat_maps.enlarged(np.zeros((300, 300, 3), np.uint8)).shape == (300, 300, 3)


def test_cloud_is_deterministic() -> None:
    pytest.importorskip("wordcloud")
    words = [("big", 3.0), ("small", 1.0), ("none", 0.0)]
    one, two = (np.asarray(pictures.cloud(words, log=True)) for _ in range(2))
    assert one.shape == (800, 800, 4)
    assert one[..., 3].min() == 0  # on any background
    np.testing.assert_array_equal(one, two)
    assert len(np.unique(one)) > 2
    strong = box(np.array([1.0, 1.1, 1.2, 1.3, 90.0]))
    assert pictures.box_plot("a $x", strong, ["$a", "b", "c", "d", "e$$"]).size[0] > 300


def test_labels_do_not_overlap() -> None:
    assert pictures.apart([5.0, 4.9, 4.8, 1.0], 0.5) == [5.0, 4.5, 4.0, 1.0]
    assert pictures.apart([], 0.5) == []


PARTS = [
    Listing("text", f"text: {ATTACK}", [("dog", 0.5), (ATTACK, 0.25)], note="a note"),
    Listing("shared", "shared", [("dog", 0.1)], [0.9]),
    Listing("none", "nothing", []),
]


def test_tables_are_aligned() -> None:
    assert pages.listing_table(PARTS[0], 1) == (
        f"text: {ATTACK}\n  a note\n    1  dog  0.5000\n  and 1 more"
    )
    lines = pages.listing_table(PARTS[0], 5).split("\n")
    assert len(lines[2]) == len(lines[3])
    assert pages.listing_table(PARTS[1], 5).endswith("0.1000   90.0%")
    assert pages.listing_table(PARTS[2], 5) == "nothing\n  none"


def test_page_without_extra_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "EXTRA", "no_such_library")
    assert "no_such_library: pip install 'big_retrieval[explain]'" in pictures.missing()
    words = " ".join(check(pages.write_listings(PARTS, 10, tmp_path, "Title")).words)
    assert "no_such_library" in words
    assert "a note" in words
    assert [path.name for path in tmp_path.iterdir()] == ["explain.html"]


def test_listings_of_image_and_text(
    model: TrainedModel, scenes: SceneRecords, scene: Path, tmp_path: Path
) -> None:
    file = str(scene)
    item = listings.make_item(model, file, "image", None)
    other = listings.partner(model, scenes[0]["captions"][0], None, item)
    assert (item.field, other.field, other.modality) == ("image", "text", "text")
    assert listings.partner(model, file, None, other).modality == "image"
    parts = list(listings.explain(model, [item], other, patches=["0:2,0:2"], draw=True))
    assert [part.name for part in parts] == ["image", "patches", "text", "shared"]
    names = [name for name, *_ in parts[0].drawings]
    assert names == ["picture", *(f"heat-{word}" for word, _ in parts[0].words[:4])]
    both = [name for name, *_ in parts[3].drawings]
    assert both == [f"heat-{word}" for word, _ in parts[3].words[:4]]
    page = check(pages.write_listings(parts, 5, tmp_path / "out", "Explanations", "how to read"))
    drawn = len(names) + 1 + len(both)
    assert len(names) == 5
    assert "how to read" in page.words
    again = listings.partner(model, file, None, item)
    *_, images = listings.explain(model, [item], again, draw=True)
    assert len({name for name, *_ in images.drawings}) == 2 * min(4, len(images.words))
    twice = listings.explain(model, [other, other], item)
    assert [part.name for part in twice] == ["text", "image", "shared", "text", "shared"]
    assert page.pictures == (drawn if pictures.missing() else drawn + len(parts))
    (mapped,) = listings.explain(model, [item], maps=["a"])
    assert len(mapped.lines) == 5
    with user_error("No term 'zebra'"):
        list(listings.explain(model, [item], maps=["zebra"]))
    with user_error("no lexical image field 'text'"):
        listings.make_item(model, file, "image", "text")
    with user_error("no such file exists"):
        listings.partner(model, "nowhere.PNG", None, item)
    assert listings.partner(model, "nowhere.PNG", "text", item).modality == "text"


def test_dense_model_has_no_words(model: TrainedModel) -> None:
    dense = dataclasses.replace(model, config=tiny())
    for call in (
        lambda: listings.make_item(dense, "a text", "text", None),
        lambda: listings.make_item(dense, "a text", "text", "text"),
        lambda: vocabulary(dense, "data", None, 3, draw=False),
        lambda: examples(dense, ExampleOptions("evals.test")),
    ):
        with user_error("The model has no lexical head"):
            call()


def test_vocabulary_lists_averages(model: TrainedModel) -> None:
    averages, outside = vocabulary(model, "evals.test", "image", 6, draw=True)
    assert "6 images" in averages.note
    values = [value for _, value in averages.words]
    assert values == sorted(values, reverse=True)
    assert len(averages.drawings) == (0 if pictures.missing() else 1)
    assert "quartile" in outside.note


@pytest.mark.parametrize(("field", "words"), [("image", "3 images"), ("text", "texts")])
def test_vocabulary_skips_damaged_records(
    model: TrainedModel, some_damaged: str, field: str, words: str
) -> None:
    note = vocabulary(model, some_damaged, field, None, False)[0].note
    assert words in note
    assert "; 1 record skipped" in note


def test_bars_of_matched_words() -> None:
    assert matched([]) is None
    html = matched([[ATTACK, 0.5], ["cat", 7.0]])
    assert html is not None
    assert "<script" not in html
    assert "--s: 50.0%" in html
    assert "--s: 100.0%" in html
