"""A small merges file like CLIP's, and the ids of open_clip's tokenizer for hard texts."""

import gzip
import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests.interop.hard_texts import BROKEN, TEXTS
from tests.interop.torch_models import Arrays

MERGES = 400
STORY = """
A photo of two dogs on a beach. A photograph of the same dogs in the snow, with a red ball. People
who don't like dogs say they're too loud; we've heard it's the other way round. The weather is good
today, the light is better, and the best pictures are taken in the morning. She'll paint the old
house by the river, he'd rather photograph the bridge. Three women are playing cards at a wooden
table in a small kitchen. A yellow train stops at the station in the rain. El niño comió piñones,
der Käse schmeckt köstlich, le garçon a reçu une pièce, São João é em junho. 日本の日本語 中文
中国 한국 한국어 привет мир שלום עולם مرحبا 😀 😀 😀 👩‍👩‍👧 ❤️ ... ... !! ?? -- 's 's 't 're
"""


def clip_tokenizer(folder: Path) -> Arrays:
    """The merges file, and [texts, length] ids by it and by CLIP's own file, at two lengths."""
    from open_clip import tokenizer

    tool = tokenizer.SimpleTokenizer()
    words = [
        tuple(tool.byte_encoder[byte] for byte in word.encode())
        for text in [STORY, *TEXTS]
        for word in tool.pat.findall(tool.clean_fn(text))
        if len(word) <= 20
    ]
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["#version: 0.2", *(f"{a} {b}" for a, b in learn(words, MERGES))]
    path = folder / "merges.txt.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    small = tokenizer.SimpleTokenizer(str(path))
    return {
        f"{name}_{length}": each(TEXTS + BROKEN, length).numpy().astype(np.int32)
        for name, each in (("small", small), ("full", tool))
        for length in (77, 9)
    }


def learn(words: Iterable[tuple[str, ...]], count: int) -> list[tuple[str, str]]:
    """The most frequent pairs of neighbours, merged one after the other; the first of equals."""
    known = Counter((*word[:-1], word[-1] + "</w>") for word in words)
    merges = []
    for _ in range(count):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, often in known.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += often
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        known = Counter({merged(word, best): often for word, often in known.items()})
    return merges


def merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """A word with all occurrences of a pair merged, from the left."""
    found: list[str] = []
    for letter in word:
        if found and (found[-1], letter) == pair:
            found[-1] += letter
        else:
            found.append(letter)
    return tuple(found)
