"""Sources: the base class and its helpers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from big_retrieval.data.images.decoding import as_array
from big_retrieval.data.sources import (
    RecordSource,
    TextRecords,
    as_texts,
    column_of,
    evenly_spaced,
    texts_of,
    value_of,
)
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.errors import Damaged, UserError


class Plain(RecordSource):
    name = "plain"

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return {"captions": [f"text {index}", "more"], "image": np.zeros((2, 2, 3), np.uint8)}


def test_text_records_are_a_source():
    texts = TextRecords(["a", "b"], column="query")
    assert len(texts) == 2
    assert texts[1] == {"query": ("b",)}
    assert list(texts.captions()) == ["a", "b"]


def test_texts_of_reads_records_or_texts():
    scenes = SceneRecords("test", count=2)
    assert texts_of(Plain(), 1, "captions") == ("text 1", "more")
    assert texts_of(scenes, 1, "captions") == scenes[1]["captions"]
    assert texts_of(scenes, 1, "id") == ("scenes-test-000001",)


@pytest.mark.parametrize("value", [3, [], ["a", 3], None, {"a": 1}, "", " \n", ["", None], 0.5])
def test_as_texts_rejects_other_values(value):
    with pytest.raises(Damaged, match="here: 'title'"):
        as_texts(value, "title", "here")


def test_as_texts_converts_values():
    assert as_texts(["a", "", None, "b"], "t", "here") == ("a", "b")
    assert as_texts(np.array(["a", "b"]), "t", "here") == ("a", "b")
    assert as_texts("caf\u00e9 \U0001f415".encode(), "t", "here") == ("caf\u00e9 \U0001f415",)
    assert as_texts(["\ud83d alone", b"\xff wrong"], "t", "here") == ("? alone", "\ufffd wrong")


@pytest.mark.parametrize(
    "value",
    ["a", np.zeros((2, 2, 3)), np.zeros((2, 2, 5), np.uint8), np.zeros((0, 2), np.uint8)],
)
def test_as_array_rejects_other_values(value):
    with pytest.raises(Damaged, match="here: the image"):
        as_array(value, "here")


def test_as_array_converts_to_rgb():
    grey = np.full((2, 3), 7, np.uint8)
    assert as_array(grey, "here").tolist() == as_array(grey[..., None], "here").tolist()
    assert as_array(grey, "here").shape == (2, 3, 3)
    clear = np.zeros((2, 3, 4), np.uint8)
    assert as_array(clear, "here").min() == 255


def test_column_of_names_columns():
    with pytest.raises(UserError, match="no column 'c'; they have a, b"):
        column_of({"b": 1, "a": 2}, "c", "here")


def test_value_of_reads_value_or_record():
    class Cheap(TextRecords):
        def value(self, index, column):
            return f"{column}{index}"

    assert value_of(Cheap(["a"]), 0, "label") == "label0"
    assert value_of(TextRecords(["a", "b"]), 1, "captions") == ("b",)
    with pytest.raises(UserError, match="no column 'label'; they have captions"):
        value_of(TextRecords(["a"]), 0, "label")


@given(count=st.integers(0, 400), most=st.integers(1, 40))
def test_evenly_spaced_is_sorted_and_even(count: int, most: int) -> None:
    places = evenly_spaced(count, most)
    assert places.tolist() == sorted(set(places.tolist()))
    assert len(places) == min(count, most)
    if not count:
        return
    assert places[0] == 0
    assert most == 1 or places[-1] == count - 1
    gaps = np.diff(places)
    assert gaps.max(initial=1) - gaps.min(initial=count) <= 1
    if most > 1:  # the form in which digests of runs and indexes were stored first
        np.testing.assert_array_equal(
            places, np.unique(np.linspace(0, count - 1, most).astype(int))
        )
