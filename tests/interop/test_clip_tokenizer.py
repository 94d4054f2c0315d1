"""CLIP's byte pairs have the ids of open_clip's SimpleTokenizer and of transformers.

The ids of open_clip are in data/clip_tokenizer, written by `python -m tests.interop.generate`.
"""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from big_retrieval.data.text.tokenizer import FixedLengthTokenizer, clip_text
from big_retrieval.data.text.tokenizers import CLIP_END, clip_tokenizer, load_tokenizer
from tests.interop.folders import DATA
from tests.interop.hard_texts import BROKEN, TEXTS

FILE = DATA / "clip_tokenizer" / "merges.txt.gz"
LINES = gzip.decompress(FILE.read_bytes()).decode().split("\n")
FULL = os.environ.get("BIG_RETRIEVAL_CLIP_BPE")


def small() -> FixedLengthTokenizer:
    return clip_tokenizer(FILE, merges=len(LINES) - 1)


def compare(tokenizer: FixedLengthTokenizer, name: str, length: int) -> None:
    """Compares rows, including padding, with open_clip's."""
    with np.load(DATA / "clip_tokenizer" / "expected.npz") as file:
        expected = file[f"{name}_{length}"]
    ids, mask = tokenizer.encode(TEXTS + BROKEN, length)
    for text, found, wanted in zip(TEXTS + BROKEN, ids, expected, strict=True):
        assert found.tolist() == wanted.tolist(), repr(text)
    ends = mask.sum(1) - 1
    end = tokenizer.vocab_size - 1
    assert (ids[np.arange(len(ids)), ends] == end).all()  # the cut ones too
    assert (ids == end).sum() == len(ids)


@pytest.mark.parametrize("length", [77, 9])
def test_clip_tokenizer_gives_the_ids_of_open_clip(length: int) -> None:
    compare(small(), "small", length)


def test_saved_clip_tokenizer_gives_the_same_ids(tmp_path: Path) -> None:
    small().save(tmp_path / "tokenizer.json")
    compare(load_tokenizer("auto", str(tmp_path)), "small", 77)


@pytest.mark.skipif(not FULL, reason="BIG_RETRIEVAL_CLIP_BPE names no bpe_simple_vocab_16e6.txt.gz")
@pytest.mark.parametrize("length", [77, 9])
def test_published_file_gives_the_ids_of_open_clip(length: int) -> None:
    compare(load_tokenizer("auto", str(FULL)), "full", length)


def test_clip_tokenizer_repairs_mojibake_and_stops_at_the_end_token() -> None:
    assert clip_text("cafÃ© itâ€™s") == "café it's"
    ids, mask = small().encode([f"a {CLIP_END} b", "a <end_of_text> b"], 30)
    assert mask[0].sum() == 3
    assert (ids == small().vocab_size - 1).sum(1).tolist() == [1, 1]  # cut at the first end
