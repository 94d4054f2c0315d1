"""Texts of training without some of their words."""

import numpy as np

from big_retrieval.data.text.tokenizer import FixedLengthTokenizer


def drop_words(
    text: str,
    dropout: float,
    deletion: float,
    tokenizer: FixedLengthTokenizer,
    rng: np.random.Generator,
) -> str:
    """A text some of whose words are the unknown token or missing; special tokens stay.

    Args:
      deletion: share of the words that are deleted afterwards; their number is rounded down.
      rng: random numbers; none is drawn for a share of 0.
    """
    words, special = tokenizer.words(text), tokenizer.special_tokens
    places = np.array([n for n, word in enumerate(words) if word not in special], int)
    gone = set()
    if dropout:
        for place in places[rng.random(len(places)) < dropout].tolist():
            words[place] = tokenizer.unknown_token
    if count := int(deletion * len(places)):
        gone = set(rng.choice(places, count, replace=False).tolist())
    return tokenizer.joined([word for n, word in enumerate(words) if n not in gone])
