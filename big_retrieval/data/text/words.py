"""Whole words as tokens: their vocabulary, and the tokenizer of the type "words"."""

from collections import Counter
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from big_retrieval.data.text.split_words import words_of
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer

SPECIALS = PAD, START, END, UNKNOWN = ("<pad>", "<start>", "<end>", "<unk>")  # ids 0 to 3


def learn_words(texts: Iterable[str], threshold: int = 0) -> list[str]:
    """The vocabulary of texts: four special entries, then the words as they first occur.

    Args:
      threshold: words that occur less often are left out.

    Returns:
      The entries; id = place.
    """
    counts: Counter[str] = Counter()  # which keeps the order of first occurrence
    for text in texts:
        counts.update(words_of(text))
    return [*SPECIALS, *(x for x, n in counts.items() if n >= threshold)]


def words_tokenizer(vocab: Sequence[str]) -> FixedLengthTokenizer:
    """<start> words <end>, where a word that the vocabulary lacks is <unk>.

    Args:
      vocab: of `learn_words`; id = place.
    """
    ids = {word: number for number, word in enumerate(vocab)}
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
