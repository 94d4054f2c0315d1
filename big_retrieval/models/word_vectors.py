"""Word vectors of a file, such as GloVe's, for the table of a text tower."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from big_retrieval.config.towers import Fitted
from big_retrieval.errors import UserError


def fit_words(path: str, name: str, table: np.ndarray, tokenizer: Any) -> Fitted:
    """A table of words that starts from a file where the file has the word.

    A word that the file lacks takes the vector of its bare spelling: without hyphens, full stops
    and apostrophes, up to a slash.

    Args:
      path: see `read_vectors`.
      name: of the parameter below its tower.
      table: its drawn values [V, words].
      tokenizer: of the run.

    Raises:
      UserError: see `read_vectors`.
    """
    table, wanted = table.copy(), ids_of_words(tokenizer)
    spelled = {spelling for word in wanted for spelling in _spellings(word)}
    vectors, found = read_vectors(path, spelled, table.shape[1]), 0
    for word, ids in wanted.items():
        known = next((vectors[each] for each in _spellings(word) if each in vectors), None)
        if known is not None:
            table[ids] = known
            found += 1
    note = f"{found:,} of {len(wanted):,} words start from {path}, the others are random"
    return Fitted({name: table}, [note])


def _spellings(word: str) -> Iterator[str]:
    """The word, then its bare spelling if that is another."""
    yield word
    bare = word.replace("-", "").replace(".", "").replace("'", "").partition("/")[0]
    if bare and bare != word:
        yield bare


def ids_of_words(tokenizer: Any) -> dict[str, list[int]]:
    """Whole word -> its ids. "##ing" is a piece of a word; CLIP's "cat</w>" is "cat"."""
    found: dict[str, list[int]] = {}
    for number in range(tokenizer.vocab_size):
        token = tokenizer.id_to_token(number)
        if number not in tokenizer.special_ids and not token.startswith("##"):
            found.setdefault(token.removesuffix("</w>"), []).append(number)
    return found


def read_vectors(path: str, wanted: Container[str], width: int) -> Mapping[str, np.ndarray]:
    """The vectors of some words; the file is read once, and only these are held in memory.

    Args:
      path: a text file with a word and its numbers a line, separated by single spaces.
      wanted: words.
      width: how many numbers a word has.

    Raises:
      UserError: there is no such file, a line of a wanted word is another, or it has none of them.
    """
    found: dict[str, np.ndarray] = {}
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(file, 1):
                word, _, rest = line.partition(" ")
                if word not in wanted or word in found:
                    continue
                values = rest.split()
                if number == 1 and len(values) == 1:  # word2vec's first line: how many, how wide
                    continue
                if len(values) > width and _is_word(values[0]):
                    continue  # a word with spaces in it, of which this is the beginning
                found[word] = _vector(values, width, f"{path}, line {number}")
    except OSError as problem:
        raise UserError(f"the word vectors {path} cannot be read: {problem.strerror}.") from None
    if not found:
        raise UserError(f"{path} has none of the tokenizer's words; each line is `word v1 v2 ...`.")
    return found


def _is_word(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return True
    return False


def _vector(values: Sequence[str], width: int, place: str) -> np.ndarray:
    try:
        vector = np.array(values, np.float32)
    except ValueError:
        raise UserError(f"{place}: not a word and {width} numbers.") from None
    if len(vector) != width:
        raise UserError(
            f"{place}: {len(vector)} numbers, but the tower's key words is {width}: set it to "
            f"{len(vector)}."
        )
    return vector
