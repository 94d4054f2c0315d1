"""Word vectors from a file, such as GloVe's, for the word table of a text tower."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from big_retrieval.config.towers import Fitted
from big_retrieval.errors import UserError


def fit_words(path: str, name: str, table: np.ndarray, tokenizer: Any) -> Fitted:
    """Returns a word table with the vectors of a file (`read_vectors`) for the words that it has.

    Words that the file lacks are looked up again without hyphens, full stops and apostrophes, and
    without the part from a slash on.

    Args:
      table: its random values [V, words].
    """
    table, ids_by_word = table.copy(), ids_of_words(tokenizer)
    spellings = {spelling for word in ids_by_word for spelling in _spellings(word)}
    vectors, count = read_vectors(path, spellings, table.shape[1]), 0
    for word, ids in ids_by_word.items():
        vector = next((vectors[x] for x in _spellings(word) if x in vectors), None)
        if vector is not None:
            table[ids] = vector
            count += 1
    message = f"{count:,} of {len(ids_by_word):,} words start from {path}, the others are random"
    return Fitted({name: table}, [message])


def _spellings(word: str) -> Iterator[str]:
    yield word
    bare = word.replace("-", "").replace(".", "").replace("'", "").partition("/")[0]
    if bare and bare != word:
        yield bare


def ids_of_words(tokenizer: Any) -> dict[str, list[int]]:
    """Returns full word -> ids. "##ing" is a piece of a word; CLIP's "cat</w>" is "cat"."""
    ids_by_word: dict[str, list[int]] = {}
    for index in range(tokenizer.vocab_size):
        token = tokenizer.id_to_token(index)
        if index not in tokenizer.special_ids and not token.startswith("##"):
            ids_by_word.setdefault(token.removesuffix("</w>"), []).append(index)
    return ids_by_word


def read_vectors(path: str, words: Container[str], width: int) -> Mapping[str, np.ndarray]:
    """Returns the vectors of some words from lines `word v1 v2 ...`, separated by single spaces.

    The file is read once. Raises a UserError if it cannot be read, a vector does not have `width`
    values, or no word has a vector.
    """
    vectors: dict[str, np.ndarray] = {}
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            for line_number, line in enumerate(file, 1):
                word, _, text = line.partition(" ")
                if word not in words or word in vectors:
                    continue
                values = text.split()
                if line_number == 1 and len(values) == 1:  # word2vec's first line: count and width
                    continue
                if len(values) > width and _is_word(values[0]):
                    continue  # the beginning of a word with spaces
                vectors[word] = _vector(values, width, f"{path}, line {line_number}")
    except OSError as error:
        raise UserError(f"the word vectors {path} cannot be read: {error.strerror}.") from None
    if not vectors:
        raise UserError(f"{path} has none of the tokenizer's words; each line is `word v1 v2 ...`.")
    return vectors


def _is_word(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return True
    return False


def _vector(values: Sequence[str], width: int, location: str) -> np.ndarray:
    try:
        vector = np.array(values, np.float32)
    except ValueError:
        raise UserError(f"{location}: not a word and {width} numbers.") from None
    if len(vector) != width:
        raise UserError(
            f"{location}: {len(vector)} numbers, but the tower's key words is {width}: set it to "
            f"{len(vector)}."
        )
    return vector
