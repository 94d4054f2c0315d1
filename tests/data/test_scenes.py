"""Generated scenes: held-out pairs, unique captions, and pure records."""

import pickle
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval.data.synthetic import scenes as scenes_module
from big_retrieval.data.synthetic import shapes
from big_retrieval.data.synthetic.scene_parameters import pairs_of
from big_retrieval.data.synthetic.scenes import (
    COLOURS,
    COUNTS,
    RELATIONS,
    SHAPES,
    SIZES,
    SceneRecords,
)
from big_retrieval.errors import UserError

PHRASE = rf"({'|'.join(SIZES)}) ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})"
CAPTION = re.compile(rf"^(.*?){PHRASE}(.*?){PHRASE}(.*)$")


def read(caption):
    """Parses a caption: (object, object, relation), from the left or upper object."""
    match = CAPTION.match(caption)
    assert match is not None, caption
    before, *rest = match.groups()
    first, between, second = tuple(rest[:3]), rest[3], tuple(rest[4:7])
    found = [r for r in RELATIONS if re.search(rf"\b{r}\b", before + between)]
    assert len(found) == 1, caption
    if found[0] in before:  # "left of the b is a a"
        first, second = second, first
    if found[0] in ("right of", "below"):
        return second, first, {"right of": "left of", "below": "above"}[found[0]]
    return first, second, found[0]


def shown(record):
    """Returns the result of `read` from the attribute columns."""
    objects = [
        (SIZES[record[f"{w}_size"]], COLOURS[record[f"{w}_colour"]], SHAPES[record[f"{w}_shape"]])
        for w in ("first", "second")
    ]
    relation = RELATIONS[record["relation"]]
    if relation in ("right of", "below"):
        return objects[1], objects[0], {"right of": "left of", "below": "above"}[relation]
    return objects[0], objects[1], relation


def pair(record):
    kinds = [
        record[f"{w}_shape"] * len(COLOURS) + record[f"{w}_colour"] for w in ("first", "second")
    ]
    return tuple(sorted(kinds))


@pytest.mark.parametrize("split", COUNTS)
def test_captions_describe_their_record(split):
    source = SceneRecords(split, count=100)
    for index in range(100):
        record = source[index]
        assert len(set(record["captions"])) == scenes_module.CAPTIONS
        assert {read(caption) for caption in record["captions"]} == {shown(record)}
        assert record["id"] == f"scenes-{split}-{index:06d}"


def test_captions_use_all_templates_and_both_points_of_view():
    captions = list(SceneRecords("train", count=300).captions())
    heads = Counter(re.sub("|".join(RELATIONS), "R", re.sub(PHRASE, "X", c)) for c in captions)
    assert len(heads) == len(scenes_module.TEMPLATES) >= 6
    assert min(heads.values()) > len(captions) / 16
    for index in range(50):
        said = " ".join(SceneRecords("train", count=300).texts(index, "captions"))
        words = {relation for relation in RELATIONS if relation in said}
        assert words in ({"left of", "right of"}, {"above", "below"})


def test_held_out_pairs_are_not_in_training():
    parts = {p: set(map(tuple, pairs_of(p).tolist())) for p in ("train", "validation", "test")}
    assert sum(map(len, parts.values())) == 64 * 65 // 2 == len(set.union(*parts.values()))
    assert 0.07 < len(parts["test"]) / 2080 < 0.13
    assert 0.015 < len(parts["validation"]) / 2080 < 0.045
    for split, part in (("train", "train"), ("validation", "validation"), ("test", "test")):
        source = SceneRecords(split, size=16, count=None if split != "train" else 2000)
        assert {pair(source[i]) for i in range(len(source))} <= parts[part]


@pytest.mark.parametrize("split", ["test", "validation"])
@pytest.mark.parametrize("seed", [0, 5])
def test_captions_of_evaluation_splits_belong_to_one_image(split, seed):
    source = SceneRecords(split, seed=seed)
    owners = {}
    meanings = set()
    for index in range(len(source)):
        texts = source.texts(index, "captions")
        meanings.add(read(texts[0]))
        for text in texts:
            assert owners.setdefault(text, index) == index
    assert len(meanings) == len(source) == COUNTS[split]


def test_seeds_and_splits_have_different_scenes():
    sources = (
        SceneRecords(split, seed=s) for split, s in (("train", 0), ("train", 1), ("test", 0))
    )
    assert len({source[0]["image"].tobytes() for source in sources}) == 3


@pytest.mark.parametrize(("split", "label"), [("colours", "colour"), ("shapes", "shape")])
def test_zero_shot_splits(split, label):
    source = SceneRecords(split, size=16)
    counts = Counter()
    held_out = set(map(tuple, pairs_of("test").tolist()))
    for index in range(len(source)):
        record = source[index]
        assert record[f"first_{label}"] == record[f"second_{label}"] == record[label]
        assert pair(record) in held_out
        counts[record[label]] += 1
    assert counts == dict.fromkeys(range(8), 50)
    assert source.classes == {label: COLOURS if label == "colour" else SHAPES}
    prompts = source.prompts[label]
    assert len(set(prompts)) == 16
    for name in source.classes[label]:
        for prompt in prompts:
            first, second, _ = read(prompt.replace("{}", name))
            assert name in first
            assert name in second
    assert SceneRecords("test").classes == SceneRecords("test").prompts == {}


@settings(max_examples=15, deadline=None)
@given(
    split=st.sampled_from(list(COUNTS)),
    seed=st.integers(0, 2**32),
    counts=st.tuples(st.integers(1, 400), st.integers(1, 400)),
    data=st.data(),
)
def test_record_does_not_depend_on_the_count(split, seed, counts, data):
    index = data.draw(st.integers(0, min(counts) - 1))
    a, b = (SceneRecords(split, size=16, count=count, seed=seed)[index] for count in counts)
    np.testing.assert_array_equal(a.pop("image"), b.pop("image"))
    assert a == b


def test_records_are_equal_across_blocks_threads_and_pickling():
    source = SceneRecords("train", count=1500)
    again = pickle.loads(pickle.dumps(source))
    assert len(again) == 1500
    assert again.name == source.name
    indices = [1023, 1024, 1499, 3]
    with ThreadPoolExecutor(4) as pool:
        threaded = list(pool.map(lambda i: source[i]["image"], indices * 5))
    for index, image in zip(indices * 5, threaded, strict=True):
        np.testing.assert_array_equal(image, again[index]["image"])


@pytest.mark.parametrize("size", [16, 17, 32, 50, 224])
def test_any_size_shows_both_objects(size):
    source = SceneRecords("test", size=size, count=24)
    for index in range(24):
        record = source[index]
        image = record["image"].astype(int)
        assert record["image"].dtype == np.uint8
        assert image.shape == (size, size, 3)
        coloured = np.ptp(image, axis=-1) > 60  # backgrounds are grey
        halves = (
            (coloured[:, : size // 2], coloured[:, (size + 1) // 2 :])
            if record["relation"] < 2
            else (coloured[: size // 2], coloured[(size + 1) // 2 :])
        )
        assert min(half.sum() for half in halves) > 0.008 * size**2


def test_objects_match_their_columns():
    for record in map(SceneRecords("test").__getitem__, range(40)):
        upper_left, lower_right, relation = shown(record)
        image = record["image"].astype(int)
        part = image[:16] if relation == "above" else image[:, :16]
        paints = np.array(list(shapes.COLOURS.values()))
        near = np.abs(part[:, :, None] - paints).max(-1) <= 14  # within the noise
        assert COLOURS[near.sum((0, 1)).argmax()] == upper_left[1]
        rest = image[16:] if relation == "above" else image[:, 16:]
        near = np.abs(rest[:, :, None] - paints).max(-1) <= 14
        assert COLOURS[near.sum((0, 1)).argmax()] == lower_right[1]


def test_scenes_rejects_a_count_above_the_unique_scenes():
    with pytest.raises(UserError, match="unique scenes"):
        SceneRecords("test", count=100_000)
