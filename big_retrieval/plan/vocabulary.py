"""Size of the vocabulary that a plan assumes, without data and without the network."""

import re
from pathlib import Path
from typing import NamedTuple

from big_retrieval.config import Config
from big_retrieval.data.build import make_source, make_tokenizer
from big_retrieval.data.text.tokenizers import load_tokenizer

PUBLISHED = (  # pattern of a name on the hub -> ids of its tokenizer
    (r"xlm-roberta", 250_002),
    (r"multilingual-cased", 119_547),
    (r"multilingual-uncased", 105_879),
    (r"roberta", 50_265),
    (r"bert-(base|large)-cased", 28_996),
    (r"bert|minilm", 30_522),
    (r"clip", 49_408),
)


class VocabularySize(NamedTuple):
    size: int
    source: str


def vocabulary(config: Config) -> VocabularySize:
    """Returns the tokenizer's number of ids, as far as it is known before a run.

    Uses the first that is known: the tokenizer's file, a tokenizer learned on generated data, the
    tower's `vocab_size`, the published size for the tokenizer's name, the config's limit.
    """
    c = config.tokenizer
    towers = config.towers.values()
    sizes = [t.vocab_size for t in towers if t.vocab_size is not None]
    if c.path and Path(c.path).exists():
        return VocabularySize(load_tokenizer(c.type, c.path).vocab_size, f"read from {c.path}")
    if not c.path and config.data.generated:
        size = make_tokenizer(config, make_source(config.data)).vocab_size
        return VocabularySize(size, "learned from the generated captions")
    if sizes:
        return VocabularySize(min(sizes), "assumed from config.towers.<tower>.vocab_size")
    for pattern, size in PUBLISHED:
        if c.path and re.search(pattern, c.path, re.IGNORECASE):
            return VocabularySize(size, f"assumed: the published size for the name {c.path!r}")
    return VocabularySize(c.vocab_size, "assumed from config.tokenizer.vocab_size")
