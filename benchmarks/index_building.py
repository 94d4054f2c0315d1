"""Building an index without encoding: CPU seconds, memory and disk, in one process and in parts.

    python -m benchmarks.index_building
    python -m benchmarks.index_building --memory=12

Documents have random embeddings: `--entries` values in columns whose frequencies fall like 1 / rank
(benchmarks/search.py), or `--dim` dense numbers. A block of documents is generated first and then
repeated, so that generating them costs nothing. "whole" is what one process does once the
embeddings are there, with all checksums; "joined" is what the process that finishes the last of
`--parts` parts does besides its own part. An inverted index of c times as many documents is merged
from as many runs as this one with a `--memory` that is c times smaller. Memory and disk are looked
at ten times a second, memory where Linux tells it.
"""

import argparse
import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure, search
from big_retrieval.data.stores.writer import StoreWriter
from big_retrieval.io import manifest
from big_retrieval.retrieval import dense, inverted, parts
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.folder import About
from big_retrieval.retrieval.index_options import IndexOptions

BLOCK = 8192  # documents that are generated, and then repeated
SHOWN = "x" * 120  # the beginning of a text
EVERY = 0.1  # seconds between two looks at memory and disk


def flags() -> argparse.Namespace:
    """The command line."""
    parser = measure.parser(__doc__)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--entries", type=int, default=200, help="values of a document, about")
    parser.add_argument("--columns", type=int, default=29_523)
    parser.add_argument("--dim", type=int, default=768, help="of dense embeddings")
    parser.add_argument("--values", choices=["float32", "float16"], default="float32")
    parser.add_argument("--memory", type=int, default=512, help="MiB to build with")
    parser.add_argument("--parts", type=int, default=4)
    return parser.parse_args()


@contextlib.contextmanager
def watched(folder: Path, row: dict[str, Any], name: str) -> Iterator[None]:
    """A context whose CPU seconds, memory and bytes on the disk go into a row.

    Memory is what the process holds besides mapped files, above what it held before.

    Args:
      folder: where everything is written.
      row: gets `<name>_cpu_s`, `<name>_wall_s`, `<name>_memory_bytes`, `<name>_disk_bytes`.
      name: of what is measured.
    """
    before, most, done = _held(), [0, 0], threading.Event()

    def look() -> None:
        while not done.wait(EVERY):
            most[:] = max(most[0], _held() - before), max(most[1], _size(folder))

    watcher = threading.Thread(target=look)
    watcher.start()
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        yield
    finally:
        row[f"{name}_cpu_s"] = time.process_time() - cpu
        row[f"{name}_wall_s"] = time.perf_counter() - wall
        done.set()
        watcher.join()
        row[f"{name}_memory_bytes"], row[f"{name}_disk_bytes"] = most


def _held() -> int:
    """Bytes of this process's memory besides mapped files (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def _size(folder: Path) -> int:
    """Bytes of the files below a folder, in which another thread may be removing files."""
    total = 0
    for parent, _, names in os.walk(folder):  # which passes over what has been removed
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def build(out: Path, span: range, block: Any, about: About, memory: int) -> None:
    """An index of some documents, with their ids and the beginnings of their texts."""
    partial = folders.begin(out)
    (partial / folders.ORIGIN).write_bytes(manifest.to_json({"model": "random"}))
    with StoreWriter(partial, "document") as store:
        store.append({"id": str(number), "shown": SHOWN.format(number)} for number in span)
    starts = range(span.start, span.stop, search.BATCH)

    def batches() -> Iterator[Any]:
        for start in starts:
            place, count = start % BLOCK, min(search.BATCH, span.stop - start)
            yield block[place : place + count]

    if about.kind == "dense":
        about = dense.build(partial, batches(), about)
    else:
        about = inverted.build(partial, batches(), about, memory=memory)
    folders.finish(partial, out, about)


def same(one: Path, other: Path) -> bool:
    """Whether two indexes have the same files."""
    return (one / manifest.MANIFEST).read_bytes() == (other / manifest.MANIFEST).read_bytes()


def main() -> None:
    """Builds both kinds in both ways."""
    args = flags()
    memory = args.memory * 2**20
    row: dict[str, Any] = {"benchmark": "index_building", "machine": measure.machine()}
    row |= {name: getattr(args, name) for name in ("documents", "entries", "dim", "memory")}
    some = argparse.Namespace(**{**vars(args), "documents": BLOCK})
    rng = np.random.default_rng(0)
    blocks = {
        "inverted": search.make_documents(some),
        "dense": rng.standard_normal((BLOCK, 1, args.dim), np.float32),
    }
    abouts = {
        "inverted": About(kind="inverted", terms=args.columns, values=args.values),
        "dense": About(kind="dense", topology="inner"),
    }
    for kind, block in blocks.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            whole, out = folder / "whole", folder / "out"
            with watched(folder, row, f"{kind}_whole"):
                build(whole, range(args.documents), block, abouts[kind], memory)
            row[f"{kind}_index_bytes"] = _size(whole)
            part = parts.IndexPart(1, args.parts)
            for each in part.all():
                span = each.span(args.documents, search.BATCH)
                build(each.folder(out), span, block, abouts[kind], memory)
            with watched(folder, row, f"{kind}_joined"):
                parts.join_parts(IndexOptions(folder, "", out, memory=memory / 2**20), part)
            row[f"{kind}_joined_disk_bytes"] -= row[f"{kind}_index_bytes"]  # the other index
            row[f"{kind}_same"] = same(whole, out)
    measure.report(row, args.json)


if __name__ == "__main__":
    main()
