"""Learning a WordPiece vocabulary, the same on every machine and in every process."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from tokenizers import normalizers, pre_tokenizers

from big_retrieval.errors import UserError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"  # of a piece that does not start a word

_MAX_WORD = 100  # characters; the tokenizer makes longer words [UNK], so they teach nothing
_MIN_PAIRS = 2  # a pair that occurs once is not worth an entry


def learn_wordpiece(texts: Iterable[str], vocab_size: int, *, lowercase: bool = True) -> list[str]:
    """Learns a vocabulary for `text.wordpiece_tokenizer` from texts.

    Words are split off as the tokenizer does it, and start as single characters (`##x` inside a
    word). The most frequent pair of neighbouring pieces is merged, again and again. Ties go to the
    pair whose (left, right) strings come first in code-point order, so that the result depends on
    the multiset of texts alone.

    Order of the result: the five special tokens; the characters, the most frequent first (ties in
    code-point order), then the merged pieces as they were made. Where the vocabulary is full, the
    rarest characters are left out, and words with one of them take part in no merge.

    Args:
      texts: any number of texts; read once.
      vocab_size: the most entries that the result has; fewer when no pair occurs twice any more.
      lowercase: lower-case the texts and strip their accents.

    Returns:
      The entries; id = place.

    Raises:
      UserError: `vocab_size` has no room for the special tokens.
    """
    if vocab_size < len(SPECIALS):
        raise UserError(
            f"config.tokenizer.vocab_size {vocab_size} has no room for the {len(SPECIALS)} special "
            "tokens; use more."
        )
    words = sorted(_count_words(texts, lowercase).items())
    letters: Counter[str] = Counter()
    spelt = []
    for word, count in words:
        symbols = [word[0], *(PREFIX + letter for letter in word[1:])]
        spelt.append(symbols)
        for symbol in symbols:
            letters[symbol] += count
    ordered = sorted(letters, key=lambda symbol: (-letters[symbol], symbol))
    vocab = [*SPECIALS, *ordered][:vocab_size]
    known = set(vocab)
    kept = [
        (symbols, count)
        for symbols, (_, count) in zip(spelt, words, strict=True)
        if known.issuperset(symbols)
    ]
    return vocab + _merge(kept, vocab_size - len(vocab), known)


def _count_words(texts: Iterable[str], lowercase: bool) -> Counter[str]:
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    splitter = pre_tokenizers.BertPreTokenizer()
    chunks: Counter[str] = Counter()  # a space always splits, so that equal chunks split alike
    for text in texts:
        chunks.update(text.split(" "))
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        clean = normalizer.normalize_str(chunk.encode("utf-8", "replace").decode())
        for word, _ in splitter.pre_tokenize_str(clean):
            if len(word) <= _MAX_WORD:
                words[word] += count
    return words


def _merge(words: list[tuple[list[str], int]], room: int, known: set[str]) -> list[str]:
    """Merges pairs until `room` new pieces are made; changes the words' symbols in place.

    Pair counts are kept up to date word by word. The heap holds (-count, left, right) and may be
    stale: an entry counts only if it still tells the pair's number.
    """
    pairs: Counter[tuple[str, str]] = Counter()
    homes: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for place, (symbols, count) in enumerate(words):
        for pair in pairwise(symbols):
            pairs[pair] += count
            homes[pair].add(place)
    heap = [(-count, *pair) for pair, count in pairs.items()]
    heapq.heapify(heap)
    made: list[str] = []
    while heap and len(made) < room:
        count, left, right = heapq.heappop(heap)
        if -count < _MIN_PAIRS:
            break
        if pairs[left, right] != -count:
            continue
        piece = left + right.removeprefix(PREFIX)
        if piece not in known:  # "ab"+"##c" and "a"+"##bc" make the same piece
            known.add(piece)
            made.append(piece)
        changed: set[tuple[str, str]] = set()
        for place in homes.pop((left, right)):
            symbols, times = words[place]
            for sign, row in ((-times, symbols), (times, _join(symbols, left, right, piece))):
                for pair in pairwise(row):
                    pairs[pair] += sign
                    changed.add(pair)
                    homes[pair].add(place)
            symbols[:] = _join(symbols, left, right, piece)
        for pair in changed:
            if pairs[pair] > 0:
                heapq.heappush(heap, (-pairs[pair], *pair))
            else:
                del pairs[pair]
                homes.pop(pair, None)
    return made


def _join(symbols: list[str], left: str, right: str, piece: str) -> list[str]:
    """`symbols` with every neighbouring (left, right) made one, from the start on."""
    joined: list[str] = []
    place = 0
    while place < len(symbols):
        if symbols[place : place + 2] == [left, right]:
            joined.append(piece)
            place += 2
        else:
            joined.append(symbols[place])
            place += 1
    return joined
