"""Seismic for `benchmarks.search`: its searches, the seconds that it builds, and its sizes."""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure

Found = tuple[np.ndarray, np.ndarray]  # numbers and scores of one query
Search = Callable[[int], Any]  # of the number of a query


def seismic_searches(
    args: argparse.Namespace, queries: Any, documents: Any
) -> tuple[dict[str, Search], dict[str, float]]:
    """Name -> a search by a query's number, by seismic; seconds of building and sizes in bytes."""
    seismic = measure.optional("seismic")
    if seismic is None:
        return {}, {}
    names = np.array([str(i) for i in range(args.columns)], seismic.get_seismic_string())
    dataset, before, started = seismic.SeismicDataset(), resident(), time.perf_counter()
    for row in range(args.documents):
        one = slice(*documents.indptr[row : row + 2])
        dataset.add_document(str(row), names[documents.indices[one]], documents.data[one])
    built: dict[str, float] = {"seismic_seconds": time.perf_counter() - started}
    if before:
        built["seismic_bytes"] = resident() - before
    asked = [(names[queries[[q]].indices], queries[[q]].data) for q in range(args.queries)]

    def found(answer: list[Any]) -> Found:
        return np.array([int(a[2]) for a in answer]), np.array([a[1] for a in answer])

    out: dict[str, Search] = {
        "seismic": lambda q: found(dataset.search(str(q), *asked[q], args.depth))
    }
    if args.seismic_postings:
        started = time.perf_counter()
        index = seismic.SeismicIndex.build_from_dataset(
            dataset, n_postings=args.seismic_postings, num_threads=1
        )
        built["seismic_index_seconds"] = time.perf_counter() - started
        built["seismic_index_bytes"] = saved_bytes(index)
        out["seismic_index"] = lambda q: found(
            index.search(str(q), *asked[q], args.depth, query_cut=10_000, heap_factor=0.0)
        )
    return out, built


def resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


def saved_bytes(index: Any) -> int:
    """The size of an index of seismic in a file."""
    with tempfile.TemporaryDirectory() as folder:
        index.save(str(Path(folder) / "saved"))
        return sum(path.stat().st_size for path in Path(folder).iterdir())
