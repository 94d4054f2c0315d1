"""Learning a WordPiece vocabulary of texts with unique numbers, beside the trainer of tokenizers.

    python -m benchmarks.vocabulary --texts=300000

Each side is a process of its own. Memory is what its peak grew while it learned.
"""

import argparse
import multiprocessing
import random
import resource
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import measure

WORDS = [
    "a",
    "the",
    "of",
    "with",
    "red",
    "blue",
    "large",
    "small",
    "shoe",
    "box",
    "size",
    "article",
]
SIZE = 8192  # entries


def flags() -> argparse.Namespace:
    """The command line."""
    parser = measure.parser(__doc__)
    parser.add_argument("--texts", type=int, default=300_000)
    return parser.parse_args()


def make_texts(count: int) -> Iterator[str]:
    """Six frequent words and a number of eight digits that no other text has."""
    rng = random.Random(0)
    for number in range(count):
        yield f"{' '.join(rng.choices(WORDS, k=6))} {10_000_000 + 37 * number}"


def learn(count: int) -> int:
    """Learns by `learn_wordpiece`."""
    from big_retrieval.data.text.wordpiece import learn_wordpiece

    return len(learn_wordpiece(make_texts(count), SIZE))


def learn_by_peer(count: int) -> int:
    """Learns by `WordPieceTrainer`."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    tokenizer: Any = tokenizers.Tokenizer(models.WordPiece())
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=SIZE, min_frequency=2, show_progress=False)
    tokenizer.train_from_iterator(make_texts(count), trainer)
    return tokenizer.get_vocab_size()


def cost(side: str, count: int) -> dict[str, float]:
    """What a side costs in this process; `learn` is called once before, to import everything."""
    function = {"": learn, "peer_": learn_by_peer}[side]
    function(1)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    entries = function(count)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        f"{side}entries": entries,
        f"{side}cpu_seconds": time.process_time() - start,
        f"{side}more_bytes": 1024 * (after - before),
    }


def main() -> None:
    """Measures both sides, and reports."""
    args = flags()
    row: dict[str, Any] = {"benchmark": "vocabulary", "texts": args.texts}
    for side in ("", "peer_"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row |= pool.apply(cost, (side, args.texts))
    row["machine"] = measure.machine()  # imports jax, whose memory a new process would start with
    measure.report(row, args.json)


if __name__ == "__main__":
    main()
