"""Learning a WordPiece vocabulary, with the same result on every machine and in every process."""

import heapq
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tokenizers import normalizers, pre_tokenizers

from big_retrieval.runtime.progress import progress_bar

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"  # of a piece that does not start a word

_MAX_WORD = 100  # characters; longer words become [UNK]
_MIN_PAIRS = 2  # minimum count of a pair to merge
_BLOCK = 2**20  # characters to count before splitting them into words


def learn_wordpiece(texts: Iterable[str], vocab_size: int, *, lowercase: bool = True) -> list[str]:
    """Learns a vocabulary for `wordpiece_tokenizer` from texts.

    Words are split as in the tokenizer, and start as single characters (`##x` inside a word). Each
    step merges the most frequent pair of neighboring pieces. Ties go to the pair whose (left,
    right) strings come first in code-point order, so that the result depends on the multiset of
    texts alone. Memory is about 600 bytes per different short word, for any number of texts.

    Args:
      vocab_size: maximum number of entries, 5 to 1,114,111; there are fewer if no pair occurs twice
        any more.
      lowercase: True to lower-case texts and strip their accents.

    Returns:
      The entries by id: the five special tokens, the characters by frequency (ties in code-point
      order), then the merged pieces in order. A small vocabulary leaves out the rarest characters,
      and words with one of them are not merged.
    """
    words = _count_words(texts, lowercase)
    firsts: Counter[str] = Counter()
    inner: Counter[str] = Counter()
    for word, count in words.items():
        firsts[word[0]] += count
        for letter in word[1:]:
            inner[letter] += count
    letters = firsts | {PREFIX + letter: count for letter, count in inner.items()}
    ordered = sorted(letters, key=lambda symbol: (-letters[symbol], symbol))
    vocab = [*SPECIALS, *ordered][:vocab_size]
    spelt, counts = _spell(words, vocab)
    merged = _Words(spelt, counts, vocab)
    with progress_bar("word pieces", vocab_size - len(vocab)) as progress:
        for _ in merged.merge(vocab_size):
            progress.update(1)
    return merged.names


def _count_words(texts: Iterable[str], lowercase: bool) -> Counter[str]:
    words: Counter[str] = Counter()
    chunks: Counter[str] = Counter()  # texts between spaces; equal chunks have equal words
    read = size = 0
    with progress_bar("texts of the vocabulary") as progress:
        for text in texts:
            chunks.update(text.split(" "))
            read, size = read + 1, size + len(text)
            if size >= _BLOCK:
                _split(chunks, lowercase, words)
                progress.update(read)
                chunks.clear()
                read = size = 0
        _split(chunks, lowercase, words)
        progress.update(read)
    return words


def _split(chunks: Counter[str], lowercase: bool, words: Counter[str]) -> None:
    """Splits chunks into words, and adds their counts to `words`; equal counts in one call."""
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    splitter = pre_tokenizers.BertPreTokenizer()
    by_count: defaultdict[int, list[str]] = defaultdict(list)
    for chunk, count in chunks.items():
        by_count[count].append(chunk)
    for count, group in by_count.items():
        clean = normalizer.normalize_str(" ".join(group).encode("utf-8", "replace").decode())
        for word, _ in splitter.pre_tokenize_str(clean):
            if len(word) <= _MAX_WORD:
                words[word] += count


def _spell(words: Counter[str], vocab: Sequence[str]) -> tuple[list[str], array]:
    """Returns words and counts; character chr(i) of a word is entry i of `vocab`. Empties `words`.

    Drops words with a letter that is not in `vocab`.
    """
    ids = {name: chr(index) for index, name in enumerate(vocab)}
    firsts, inner = defaultdict(str), defaultdict(str)  # other characters become nothing
    for name in vocab[len(SPECIALS) :]:
        (firsts if len(name) == 1 else inner)[ord(name[-1])] = ids[name]
    spelt, counts = [], array("q")
    while words:
        word, count = words.popitem()
        symbols = word[0].translate(firsts) + word[1:].translate(inner)
        if len(symbols) == len(word):
            spelt.append(symbols)
            counts.append(count)
    return spelt, counts


class _Words:
    """Words as strings of entries: character chr(i) is entry i; `merge` changes the arguments."""

    def __init__(self, words: list[str], counts: array, names: list[str]):
        self.names = names
        self._words, self._counts = words, counts
        self._pairs: defaultdict[str, int] = defaultdict(int)
        # Words that have, or had, each pair; an array takes 4 bytes per word.
        self._homes: defaultdict[str, array] = defaultdict(lambda: array("I"))
        for index, (word, count) in enumerate(zip(words, counts, strict=True)):
            for pair in map(str.__add__, word, word[1:]):
                self._pairs[pair] += count
                self._homes[pair].append(index)
        # Counts in the heap may be too large, because pairs get rarer, but never too small.
        self._heap: list[tuple[int, str, str, str]] = []
        for pair in self._pairs:
            self._push(pair)

    def _push(self, pair: str) -> None:
        if self._pairs[pair] >= _MIN_PAIRS:
            left, right = (self.names[ord(symbol)] for symbol in pair)
            heapq.heappush(self._heap, (-self._pairs[pair], left, right, pair))

    def merge(self, size: int) -> Iterator[str]:
        """Merges pairs until there are `size` entries; yields the new entries."""
        ids = {name: chr(index) for index, name in enumerate(self.names)}
        while self._heap and len(self.names) < size:
            count, left, right, pair = heapq.heappop(self._heap)
            if pair in self._pairs and self._pairs[pair] < -count:
                self._push(pair)
            if self._pairs.get(pair) != -count:
                continue
            name = left + right.removeprefix(PREFIX)
            if name not in ids:  # "ab" + "##c" and "a" + "##bc" give the same piece
                ids[name] = chr(len(self.names))
                self.names.append(name)
                yield name
            self._join(pair, ids[name])

    def _join(self, pair: str, piece: str) -> None:
        """Replaces a pair by one entry in all words, from left to right."""
        pairs, homes, counts, words = self._pairs, self._homes, self._counts, self._words
        left, right = pair
        added: defaultdict[str, int] = defaultdict(int)
        for word_index in homes.pop(pair):
            parts, count = words[word_index].split(pair), counts[word_index]
            for index, (before, after) in enumerate(pairwise(parts)):
                if before or index:
                    pairs[(before[-1] if before else right) + left] -= count
                    new = (before[-1] if before else piece) + piece
                    added[new] += count
                    homes[new].append(word_index)
                if after:
                    pairs[right + after[0]] -= count
                    new = piece + after[0]
                    added[new] += count
                    homes[new].append(word_index)
            words[word_index] = piece.join(parts)
        del pairs[pair]
        for new, count in added.items():
            pairs[new] += count
            self._push(new)
