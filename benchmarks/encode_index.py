"""`benchmarks.encode --index`: from a model and a file of texts to an index.

Ours is what `big-retrieval index` does: ids, shown texts, checksums, a synced folder. Beside it
stands the shortest program that ends with the same embeddings: sentence-transformers encodes the
texts of the file, numpy saves the embeddings and json the ids. Every process starts, loads and
compiles anew, as the command does.
"""

import argparse
import contextlib
import importlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

OURS = "ours"
DOCUMENTS, MODEL = "documents.jsonl", "model"  # in the benchmark's folder


class Clock:
    """CPU seconds of this process, by what they went to.

    Attributes:
      seconds: name -> CPU seconds.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose calls count under a name."""

        def call(*args: Any, **keys: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **keys)
            finally:
                self.seconds[name] = self.seconds.get(name, 0) + time.process_time() - start

        return call

    def steps(self, name: str, function: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
        """A generator function whose steps count under a name."""

        def iterate(*args: Any, **keys: Any) -> Iterator[Any]:
            step = self.timed(name, function(*args, **keys).__next__)
            while True:
                try:
                    yield step()
                except StopIteration:
                    return

        return iterate


def prepare(args: argparse.Namespace, values: Sequence[str], folder: Path) -> None:
    """Writes the documents, and the model as `big-retrieval import` does."""
    from big_retrieval import import_model
    from big_retrieval.train.checkpoint import write_model

    rows = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(values)]
    (folder / DOCUMENTS).write_text("\n".join(rows) + "\n")
    write_model(import_model(args.model), folder / MODEL)


def ours(args: argparse.Namespace, clock: Clock) -> np.ndarray:
    """`big-retrieval index`."""
    from big_retrieval.retrieval import build_index, encode, index_work

    clock.seconds["imports"] = time.process_time()
    folder = Path(args.folder)
    options = build_index.IndexOptions(folder / MODEL, str(folder / DOCUMENTS), folder / "index")
    named = [
        ("load", index_work.saved, "restore_weights"),
        ("load", index_work.load, "put_together"),
    ]
    named += [("encode", encode, "rows_of")]
    with contextlib.ExitStack() as patches:
        for name, module, function in named:
            timed = clock.timed(name, getattr(module, function))
            patches.enter_context(mock.patch.object(module, function, timed))
        patches.enter_context(mock.patch.object(encode, "read", clock.steps("read", encode.read)))
        build_index.make(options)
    return np.load(folder / "index" / "embeddings.npy")


def peer(args: argparse.Namespace, clock: Clock) -> np.ndarray:
    """sentence-transformers, numpy and json."""
    library: Any = importlib.import_module("sentence_transformers")
    clock.seconds["imports"] = time.process_time()
    folder = Path(args.folder)

    def read() -> list[dict[str, str]]:
        with (folder / DOCUMENTS).open() as file:
            return [json.loads(line) for line in file]

    load = clock.timed("load", lambda: library.SentenceTransformer(args.model, device="cpu"))
    model, rows = load(), clock.timed("read", read)()
    encode = clock.timed("encode", model.encode)
    found = encode([row["text"] for row in rows], batch_size=args.batch, normalize_embeddings=True)
    np.save(folder / "theirs.npy", found)
    (folder / "theirs.json").write_text(json.dumps([row["id"] for row in rows]))
    return found


SIDES = {OURS: ours, "sentence-transformers": peer}


def one_side(args: argparse.Namespace) -> dict[str, float]:
    """Builds the index of a side; leaves its embeddings in the folder.

    Returns:
      CPU seconds of this process as "cpu", of which those of "imports", "load", "read", "encode"
      (with compilation) and the "rest", writing above all; seconds by the clock as "wall".
    """
    clock, start = Clock(), time.perf_counter()
    found = SIDES[args.side](args, clock)
    row = {"cpu": time.process_time(), **clock.seconds, "wall": time.perf_counter() - start}
    np.save(Path(args.folder) / f"{args.side}.npy", found.reshape(len(found), -1))
    return {**row, "rest": row["cpu"] - sum(clock.seconds.values())}
