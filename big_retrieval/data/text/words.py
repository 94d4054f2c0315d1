"""Whole words as tokens: their vocabulary, and the tokenizer of the type "words"."""

from collections import Counter
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from big_retrieval.data.text.split_words import words_of
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer

SPECIALS = PAD, START, END, UNKNOWN = ("<pad>", "<start>", "<end>", "<unk>")  # ids 0 to 3


def learn_words(texts: Iterable[str], threshold: int = 0) -> list[str]:
    """Returns the vocabulary by id: four special entries, then words as they first occur.

    Words with fewer than `threshold` occurrences are left out.
    """
    counts: Counter[str] = Counter()  # keeps the order of first occurrence
    for text in texts:
        counts.update(words_of(text))
    return [*SPECIALS, *(x for x, n in counts.items() if n >= threshold)]


def words_tokenizer(vocab: Sequence[str]) -> FixedLengthTokenizer:
    """Returns the tokenizer of a `learn_words` vocabulary: <start> words <end>, or <unk>."""
    ids = {word: index for index, word in enumerate(vocab)}
    inner = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    inner.normalizer = normalizers.Sequence([])  # type: ignore[assignment]
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    inner.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=f"{START} $A {END}",
        pair=f"{START} $A $B:1 {END}:1",
        special_tokens=[(START, ids[START]), (END, ids[END])],
    )
    inner.add_special_tokens(list(SPECIALS))
    return FixedLengthTokenizer(inner, pad_id=ids[PAD], clean="words")
