"""Tokenizers and pixels of a model are those of its library."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from PIL import Image

from big_retrieval.config import ImageField
from big_retrieval.data.images.transforms import evaluation_view
from big_retrieval.data.text.tokenizers import load_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from tests.interop.folders import minilm
from tests.interop.hard_texts import TEXTS

LENGTH = 24
TRAINING = TEXTS * 3 + ["a ball and two dogs", "the weather is good today", "text and tabs"] * 20


def wordpiece(folder: Path, *, lowercase: bool) -> None:
    words = learn_wordpiece(TRAINING, 400)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": lowercase, "tokenizer_class": "BertTokenizer"})
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))


def roberta(folder: Path) -> None:
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore
    inner.train_from_iterator(TRAINING, trainer)
    model = json.loads(inner.to_str())["model"]
    merges = [tuple(each) for each in model["merges"]]
    made = transformers.RobertaTokenizer(vocab=model["vocab"], merges=merges)
    made.save_pretrained(folder)


def xlm_roberta(folder: Path) -> None:
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        unk_token="<unk>",
    )  # fmt: skip
    inner = tokenizers.Tokenizer(tokenizers.models.Unigram())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()  # type: ignore
    inner.train_from_iterator(TRAINING, trainer)
    vocab = [tuple(each) for each in json.loads(inner.to_str())["model"]["vocab"]]
    transformers.XLMRobertaTokenizer(vocab=vocab).save_pretrained(folder)


KINDS: dict[str, Callable[[Path], None]] = {
    "BERT": lambda folder: wordpiece(folder, lowercase=True),
    "multilingual BERT, cased": lambda folder: wordpiece(folder, lowercase=False),
    "RoBERTa": roberta,
    "XLM-RoBERTa": xlm_roberta,
}


def compare(folder: Path) -> None:
    """Compares the tokenizer of a folder with that of transformers."""
    library: Any = transformers.AutoTokenizer.from_pretrained(folder)
    expected = library(TEXTS, padding="max_length", truncation=True, max_length=LENGTH)
    ids, mask = load_tokenizer("auto", str(folder)).encode(TEXTS, LENGTH)
    np.testing.assert_array_equal(mask, expected["attention_mask"])
    for text, row, used, row_expected in zip(TEXTS, ids, mask, expected["input_ids"], strict=True):
        assert row[used].tolist() == np.asarray(row_expected)[used].tolist(), repr(text)


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_give_the_ids_of_transformers(kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    compare(tmp_path)


def test_published_tokenizer_gives_the_ids_of_transformers() -> None:
    compare(Path(minilm()))


def picture(size: tuple[int, int]) -> Image.Image:
    coarse = np.random.default_rng(sum(size)).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


@pytest.mark.parametrize("size", [(300, 200), (97, 411), (224, 224), (31, 45), (640, 427)])
def test_evaluation_view_is_that_of_open_clip(size: tuple[int, int]) -> None:
    image = picture(size)
    short = min(size)
    width, height = (int(224 * side / short) for side in size)
    left, top = round((width - 224) / 2), round((height - 224) / 2)
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    expected = np.asarray(resized.crop((left, top, left + 224, top + 224)), float) / 255
    pixels = np.asarray(ImageField().normalised(evaluation_view(np.asarray(image), 224)[None]))[0]
    found = pixels * np.asarray(ImageField().std) + np.asarray(ImageField().mean)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("size", [(300, 200), (97, 411), (224, 224), (31, 45)])
def test_evaluation_view_is_that_of_transformers_for_even_margins(size: tuple[int, int]) -> None:
    image, library = picture(size), transformers.CLIPImageProcessor()
    expected = np.asarray(library(image, return_tensors="np")["pixel_values"][0])  # [3, 224, 224]
    pixels = evaluation_view(np.asarray(image), 224)
    found = np.asarray(ImageField().normalised(pixels[None]))[0].transpose(2, 0, 1)
    scale = np.asarray(ImageField().std)[:, None, None]
    np.testing.assert_allclose(found * scale, expected * scale, atol=1.001 / 255)
