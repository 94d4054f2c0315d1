"""Checks of the data and the loader; see `big_retrieval.config.checks`."""

import importlib.util
from collections.abc import Iterator

from big_retrieval.config import Config


def data(c: Config) -> Iterator[str]:
    """What is wrong with `config.data`, a sentence each."""
    yield from c.data.check("config.data")
    for name, ev in c.evals.items():
        if ev.data is not None:
            yield from ev.data.check(f"config.evals.{name}.data")
    yield from c.data.check_training(c)
    t = c.tokenizer
    if not t.path and not t.learned:
        yield (
            f"config.tokenizer.type {t.type!r} needs config.tokenizer.path (a file, folder or hub "
            "name); only 'wordpiece' and 'words' can be learned from the captions."
        )
    known = ["data", *(f"evals.{name}" for name, ev in sorted(c.evals.items()) if ev.data)]
    for name in t.sources:
        if name not in known:
            yield f"config.tokenizer.sources has {name!r}; it can have {', '.join(known)}."
    if not t.sources:
        yield "config.tokenizer.sources is empty; name at least 'data'."
    if not t.path and t.vocab_size < 6:
        yield f"config.tokenizer.vocab_size is {t.vocab_size}; a learned one needs at least 6."


def loader(c: Config) -> Iterator[str]:
    """What is wrong with `config.loader`, a sentence each."""
    if c.loader.decoder == "opencv" and importlib.util.find_spec("cv2") is None:
        yield (
            "config.loader.decoder is 'opencv', which is not installed; install the extra "
            "big_retrieval[opencv], or use 'pillow'."
        )
