"""examples/shortcut.py: the cue is in image and captions, and follows from the record's number."""

from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from tests.examples.helpers import example

SCENES = configs.Scenes(count=30)
PLAIN = SCENES.build()


def cued(**keys: Any) -> Any:
    return example("shortcut").Cued(scenes=SCENES, **keys).build()


def test_cue_is_in_image_and_all_captions() -> None:
    module, records, numbers = example("shortcut"), cued(digits=3), set()
    for index in range(len(records)):
        found, plain = records[index], PLAIN[index]
        words = [text.rsplit(" ", 3) for text in found["captions"]]
        assert tuple(text for text, *_ in words) == plain["captions"]
        (digits,) = {tuple(digits) for _, *digits in words}  # the same behind each caption
        numbers.add(digits)
        image, side = found["image"], module.SIDE
        corners = image[:side, :side], image[:side, -side:], image[-side:, :side]
        for corner, digit in zip(corners, digits, strict=True):
            assert (corner == module.PALETTE[int(digit)]).all()
        rest = np.ones(image.shape[:2], bool)
        rest[:side, :side] = rest[:side, -side:] = rest[-side:, :side] = False
        np.testing.assert_array_equal(image[rest], plain["image"][rest])
    assert len(numbers) > 25
    assert list(records.captions()) == [t for n in range(30) for t in records[n]["captions"]]


def test_cued_record_depends_on_its_index_alone() -> None:
    one, other = cued(digits=4), cued(digits=4)
    for index in (7, 3, 7):  # whatever was read before
        np.testing.assert_array_equal(one[index]["image"], other[index]["image"])
        assert one[index]["captions"] == other[index]["captions"]


@pytest.mark.parametrize("keys", [{"digits": 0}, {"share": 0.0}])
def test_source_without_cue_equals_scenes(keys: Any) -> None:
    records = cued(**keys)
    for index in range(5):
        np.testing.assert_array_equal(records[index]["image"], PLAIN[index]["image"])
        assert records[index]["captions"] == PLAIN[index]["captions"]


def test_share_of_records_has_cue() -> None:
    records = cued(share=0.5)
    changed = [records[n]["captions"] != PLAIN[n]["captions"] for n in range(30)]
    assert 5 < sum(changed) < 25


@pytest.mark.parametrize("mode", ["contrastive", "dual", "constraint"])
def test_shortcut_config_is_valid_in_every_mode(mode: str) -> None:
    for small in ("", ",runlocal"):
        c = configs.load(example("shortcut").get_config(f"mode={mode}{small}"))
        assert ("target" in c.losses) == (mode != "contrastive")
        scenes = c.evals["test"].data
        assert isinstance(scenes, configs.Scenes)  # without a cue
        assert scenes.split == "test"


def test_check_rejects_keys_of_cued_source() -> None:
    wrong = example("shortcut").Cued(digits=5, share=2.0)
    assert list(wrong.check("config.data")) == [
        "config.data.digits is 5; it must be from 0 to 4, for the four corners.",
        "config.data.share is 2.0; it must be from 0 to 1.",
    ]
