"""Augmentation of texts and images: dropped and deleted words, erased rectangles."""

from typing import Any

import numpy as np
import pytest

from big_retrieval.config import ImageField, TextField
from big_retrieval.data.batches import try_record
from big_retrieval.data.fields.reader import Tools
from big_retrieval.data.fields.texts import drop_words
from big_retrieval.data.images import transforms
from big_retrieval.data.pipeline import eval_batches
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.words import learn_words, words_tokenizer
from big_retrieval.errors import UserError
from tests.readers import train_batch_of

SCENES = SceneRecords("train", count=64)
PIECES = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"])
WORDS = words_tokenizer(learn_words(SCENES.captions()))
LETTERS = "a b c d e f g h i j"


def readers(
    tokenizer: FixedLengthTokenizer = WORDS, erasing: float = 0.0, **text: Any
) -> dict[str, Any]:
    fields = {
        "image": ImageField(size=32, crop_scale=(0.5, 1), erasing=erasing),
        "text": TextField(length=40, **text),
    }
    return {name: field.build(Tools(tokenizer)) for name, field in fields.items()}


@pytest.mark.parametrize("tokenizer", [PIECES, WORDS], ids=["pieces", "words"])
def test_drop_words_drops_and_deletes_shares_of_words(tokenizer: FixedLengthTokenizer) -> None:
    rng = np.random.default_rng(0)
    unknown, dropped = tokenizer.unknown_token, 0
    for _ in range(1000):
        (ids,), _ = tokenizer.encode([drop_words(LETTERS, 0.3, 0.25, tokenizer, rng)], 20)
        assert np.count_nonzero(ids) == 8 + 2  # int(0.25 * 10) words fewer; the ends stay
        dropped += drop_words(LETTERS, 0.3, 0.25, tokenizer, rng).count(unknown)
    assert abs(dropped / 8000 - 0.3) < 0.02
    assert drop_words(LETTERS, 0, 0.09, tokenizer, rng) == tokenizer.joined(LETTERS.split())
    assert drop_words("", 0.5, 0.5, tokenizer, rng) == ""


def test_drop_words_keeps_special_tokens() -> None:
    rng = np.random.default_rng(0)
    assert drop_words("a [MASK] b", 1, 0, PIECES, rng) == "[UNK] [MASK] [UNK]"
    assert drop_words("[MASK] b [MASK] c", 0, 0.99, PIECES, rng).count("[MASK]") == 2


def test_augmentation_moves_no_other_draw() -> None:
    plain, dropped, erased = (
        train_batch_of(SCENES, readers(**keys))
        for keys in ({}, {"word_dropout": 0.5}, {"erasing": 1.0})
    )
    np.testing.assert_array_equal(plain["text"]["ids"], erased["text"]["ids"])
    changed = (plain["image"]["pixels"] != erased["image"]["pixels"]).any(axis=3)  # [b, S, S]
    shares = changed.mean(axis=(1, 2))
    assert (shares < 0.36).all()
    assert shares.mean() > 0.1
    other = plain["text"]["ids"] != dropped["text"]["ids"]
    assert (dropped["text"]["ids"][other] == 3).all()  # <unk>
    assert (dropped["text"]["ids"][:, 0] == 1).all()  # <start>
    assert 0.3 < other.sum() / (plain["text"]["mask"].sum() - 2 * len(other)) < 0.7


@pytest.mark.parametrize(("field", "key"), [("image", "pixels"), ("text", "ids")])
def test_evaluation_augments_nothing(field: str, key: str) -> None:
    plain, augmented = (
        next(eval_batches(SCENES, readers(**keys), field=field, batch_size=16))[field][key]
        for keys in ({}, {"erasing": 0.5, "word_dropout": 0.5, "word_deletion": 0.5})
    )
    np.testing.assert_array_equal(plain, augmented)


def test_erase_fills_rectangles_of_the_given_shares_and_ratios() -> None:
    rng, image = np.random.default_rng(0), np.full((40, 40, 3), 255, np.uint8)
    shares, ratios = [], []
    for _ in range(500):
        gone = (transforms.erase(image, (0.5, 0.25, 0.0), rng) == (128, 64, 0)).all(axis=2)
        rows, columns = np.flatnonzero(gone.any(axis=1)), np.flatnonzero(gone.any(axis=0))
        assert gone.sum() == len(rows) * len(columns)  # one rectangle
        shares.append(gone.mean())
        ratios.append(len(rows) / len(columns))
    assert image.min() == 255  # `erase` changes a copy
    assert 0.015 < min(shares) < 0.03
    assert 0.3 < max(shares) < 0.35
    assert 0.25 < min(ratios) < 0.4
    assert 2.5 < max(ratios) < 4.0
    pixels, mean = ImageField().normalised(np.round(np.multiply(ImageField().mean, 255))), 0.01
    assert abs(np.asarray(pixels)).max() < mean


def test_try_record_rejects_word_dropout_without_an_unknown_token() -> None:
    bare = FixedLengthTokenizer.from_json(
        WORDS.to_json().replace('"unk_token": "<unk>"', '"unk_token": "none"')
    )
    with pytest.raises(UserError, match=r"text\.word_dropout is 0\.1, but the tokenizer has no"):
        try_record(SCENES, readers(bare, word_dropout=0.1))
