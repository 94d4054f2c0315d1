"""The timed part of a measurement: one query at a time, in a process with one thread.

    python -m big_retrieval.tradeoff.latency FOLDER LEVEL

`measure` writes a `LatencyJob` into a folder that also has the indexes. This process reads the job
and writes a `LatencyResult` there: JSON for names and numbers, .npy and .npz files for arrays.
"""

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.errors import UserError
from big_retrieval.inference.encoder import Embeddings
from big_retrieval.runtime import messages

LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CHUNK = 1024  # queries of a search that is not timed
SAMPLE = 64  # queries whose encoding is timed
PASSES = 3  # rounds over them
JOB, FOUND = "job.json", "found.json"
log = logging.getLogger("big_retrieval.tradeoff.latency")  # __name__ may be __main__
Samples = Mapping[str, Sequence[Any] | None]  # query field -> texts or [title, text]; None: images


@dataclass(frozen=True)
class LatencyJob:
    """What is searched and timed.

    Attributes:
      settings: for each setting its queries (CSR [Q, V] or embeddings [Q, M, N]) and the name of an
        index in the folder.
      encodings: for each model its checkpoint ("" for BM25) and sample queries.
      depth: documents found for a query.
      timed: numbers of the queries whose search is timed, T.
      rounds: how often each query is timed; the median counts.
    """

    settings: Sequence[tuple[Embeddings, str]]
    encodings: Sequence[tuple[str, Samples]]
    depth: int
    timed: Sequence[int]
    rounds: int

    def save(self, folder: Path) -> None:
        """Writes the job into a folder."""
        for number, (rows, _) in enumerate(self.settings):
            if scipy.sparse.issparse(rows):
                scipy.sparse.save_npz(folder / f"queries-{number}.npz", rows)
            else:
                np.save(folder / f"queries-{number}.npy", rows)
        names = {"indexes": [name for _, name in self.settings], "encodings": self.encodings}
        numbers = {"depth": self.depth, "timed": list(self.timed), "rounds": self.rounds}
        (folder / JOB).write_text(json.dumps({**names, **numbers}))

    @classmethod
    def load(cls, folder: Path) -> "LatencyJob":
        """Reads the job of a folder."""
        saved = json.loads((folder / JOB).read_text())
        settings: list[tuple[Embeddings, str]] = []
        for number, name in enumerate(saved.pop("indexes")):
            dense = folder / f"queries-{number}.npy"
            sparse = folder / f"queries-{number}.npz"
            rows = np.load(dense) if dense.exists() else scipy.sparse.load_npz(sparse)
            settings.append((rows, name))
        return cls(settings, **saved)


@dataclass(frozen=True)
class LatencyResult:
    """What was found, and how long it took.

    Attributes:
      found: for each setting the numbers and scores of documents, [Q, depth] each.
      seconds: of single searches, [settings, T].
      encodings: for each model the mean seconds of a query: "network" from text to embedding,
        "words" from text to bag of words; 0 for what a model does not have.
    """

    found: list[tuple[np.ndarray, np.ndarray]]
    seconds: np.ndarray
    encodings: list[dict[str, float]]

    def save(self, folder: Path) -> None:
        """Writes the result into a folder."""
        for number, (documents, scores) in enumerate(self.found):
            np.savez(folder / f"found-{number}.npz", documents=documents, scores=scores)
        np.save(folder / "seconds.npy", self.seconds)
        (folder / FOUND).write_text(json.dumps(self.encodings))

    @classmethod
    def load(cls, folder: Path) -> "LatencyResult":
        """Reads the result in a folder."""
        seconds, found = np.load(folder / "seconds.npy"), []
        for number in range(len(seconds)):
            with np.load(folder / f"found-{number}.npz") as arrays:
                found.append((arrays["documents"], arrays["scores"]))
        return cls(found, seconds, json.loads((folder / FOUND).read_text()))


def in_a_child(job: LatencyJob, folder: Path) -> LatencyResult:
    """Does a job in a process that has one thread.

    Raises:
      UserError: the process ended early.
    """
    job.save(folder)
    level = str(messages.settings()["level"])
    command = [sys.executable, "-m", "big_retrieval.tradeoff.latency", str(folder), level]
    code = subprocess.run(command, env=one_thread(os.environ), check=False).returncode
    if code:
        raise UserError(f"the process that searches ended with status {code}; it says why above.")
    return LatencyResult.load(folder)


def one_thread(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment whose processes compute on one thread, by numpy and by XLA on CPUs."""
    given = environment.get("XLA_FLAGS", "")
    kept = re.sub(r"--xla_force_host_platform_device_count=\S+", "", given)
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    ones = dict.fromkeys((*LIBRARIES, "NPROC"), "1")
    return {**environment, **ones, "XLA_FLAGS": f"{kept} {flags}".strip()}


def measure_latency(job: LatencyJob, folder: Path) -> LatencyResult:
    """Searches all queries of all settings, times some of them, and times the models."""
    searches = [_searches(folder / index, rows, job.depth) for rows, index in job.settings]
    found = []
    for number, (_, search_all) in enumerate(searches, 1):
        found.append(search_all())
        log.info(f"searched {number} of {len(searches)} settings")
    seconds = time_in_turn([one for one, _ in searches], job.timed, job.rounds)
    parts: list[tuple[int, str, Callable[[int], Any]]] = []
    for number, (checkpoint, samples) in enumerate(job.encodings):
        calls = _encoders(checkpoint, samples) if checkpoint else _word_counters(samples)
        parts += [(number, kind, call) for kind, call in calls]
    for _, _, call in parts:
        for query in range(SAMPLE):
            call(query)  # compiles, for every length of a text
    taken = time_in_turn([call for *_, call in parts], range(SAMPLE), PASSES).mean(axis=1)
    encodings = [{"network": 0.0, "words": 0.0} for _ in job.encodings]
    for (number, kind, _), mean in zip(parts, taken.tolist(), strict=True):
        encodings[number][kind] += mean  # all fields of the query together
    return LatencyResult(found, seconds, encodings)


def time_in_turn(
    calls: Sequence[Callable[[int], Any]], queries: Sequence[int], rounds: int
) -> np.ndarray:
    """Seconds of single calls: for each query the median of the rounds.

    Calls take turns within a round, so that other work of the machine disturbs all of them alike.

    Args:
      calls: functions of a query's number; each has run before, so nothing is compiled.
      queries: which queries are timed, T.
      rounds: how often.

    Returns:
      float64 [calls, T].
    """
    seconds = np.empty((rounds, len(calls), len(queries)))
    for turn in range(rounds):
        for place, call in enumerate(calls):
            for column, query in enumerate(queries):
                started = time.perf_counter()
                call(query)
                seconds[turn, place, column] = time.perf_counter() - started
        log.info(f"timed {len(calls)} x {len(queries):,} queries, round {turn + 1} of {rounds}")
    return np.median(seconds, axis=0)


def _searches(
    folder: Path, rows: Embeddings, depth: int
) -> tuple[Callable[[int], Any], Callable[[], tuple[np.ndarray, np.ndarray]]]:
    """For each setting the search for one query, by its number, and for all queries."""
    from big_retrieval.retrieval import open_index
    from big_retrieval.retrieval.inverted import InvertedIndex

    index: Any = open_index(folder)
    if not isinstance(index, InvertedIndex):
        index.search(rows[:1], depth)  # compiles
        return lambda q: index.search(rows[q : q + 1], depth), lambda: index.search(rows, depth)
    terms, weights = (np.split(each, rows.indptr[1:-1]) for each in (rows.indices, rows.data))

    def search_all() -> tuple[np.ndarray, np.ndarray]:
        starts = range(0, rows.shape[0], CHUNK)
        found = [index.search(rows[start : start + CHUNK], depth) for start in starts]
        return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])

    return lambda q: index.search_one(terms[q], weights[q], depth), search_all


def _encoders(checkpoint: str, samples: Samples) -> list[tuple[str, Callable[[int], Any]]]:
    """Functions that encode a model's query by its number, on one device: "network", "words"."""
    import jax

    from big_retrieval import parallel
    from big_retrieval.data.build import make_readers
    from big_retrieval.data.fields.reader import stack
    from big_retrieval.inference.encoder import Encoder
    from big_retrieval.inference.load import load
    from big_retrieval.models.towers import make_model

    model = load(checkpoint, batch_size=1)
    mesh = parallel.local_mesh(jax.local_devices()[:1])
    made = make_model(model.config, model.tokenizer.vocab_size, model.tokenizer)
    weights = jax.device_put(model.weights, parallel.replicated(mesh))
    encoder, readers = Encoder(made, mesh, 1), make_readers(model.config, model.tokenizer)
    row = {"record": np.zeros(1, np.int64), "valid": np.ones(1, bool)}

    def calls(name: str, texts: Sequence[Any] | None) -> list[tuple[str, Callable[[int], Any]]]:
        reader, terms = readers[name], encoder.terms(name)
        values = [None] if texts is None else [x if isinstance(x, str) else tuple(x) for x in texts]

        def arrays(query: int) -> Any:
            return stack(reader, [values[query % len(values)]])  # of None: such as a black image

        def network(query: int) -> None:
            encoder.embeddings(weights, name, [{name: arrays(query), **row}])

        def words(query: int) -> None:
            found = arrays(query)
            terms.bag(found["ids"], found["mask"])  # type: ignore[union-attr]

        bags = terms is not None and texts is not None
        return [("network", network), *([("words", words)] if bags else [])]

    return [call for name, texts in samples.items() for call in calls(name, texts)]


def _word_counters(samples: Samples) -> list[tuple[str, Callable[[int], Any]]]:
    """As `_encoders` for BM25: counts the words of a query."""
    from big_retrieval.evals.bm25 import Bm25

    texts = list(samples["query"] or ())
    index = Bm25(texts)
    return [("words", lambda query: index.counts([texts[query % len(texts)]]))]


def main(folder: str, level: str) -> None:
    """Does the job of a folder, with messages from a level on."""
    messages.show(int(level))
    measure_latency(LatencyJob.load(Path(folder)), Path(folder)).save(Path(folder))


if __name__ == "__main__":
    from big_retrieval import cli

    cli.run(main, words=2)
