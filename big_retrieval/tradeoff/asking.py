"""The part of a measurement that is timed: one query at a time, in a process with one thread.

    python -m big_retrieval.tradeoff.asking FOLDER

`measuring` wrote the folder and reads what is added to it:

    job.json                    the settings, in their order, and the models (`Job`)
    queries-<i>.npz or .npy     rows of all queries of a setting: CSR [Q, V] or embeddings [Q, M, N]
    index-<i>/                  an index of documents
    found-<i>.npz               of setting i: numbers and scores [Q, depth], seconds [T]
    encoding.json               seconds of a query's encoding and tokenising, of each model
"""

import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.runtime import messages

LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CHUNK = 1024  # queries that are searched at a time where nothing is timed
SAMPLE = 64  # queries whose encoding is timed
PASSES = 3  # rounds of that
log = logging.getLogger("big_retrieval.tradeoff.asking")  # __name__ is __main__ here


@dataclass(frozen=True)
class Setting:
    """What is searched by what; both are names in the folder.

    Attributes:
      queries: a file of rows.
      index: a folder of documents.
    """

    queries: str
    index: str


@dataclass(frozen=True)
class Encoding:
    """A model whose encoding of a query is timed.

    Attributes:
      checkpoint: its folder; "": BM25, which needs none.
      samples: query field -> texts, or [title, text] each; None: images.
    """

    checkpoint: str
    samples: Mapping[str, Sequence[Any] | None]


@dataclass(frozen=True)
class Job:
    """What is to be measured.

    Attributes:
      settings: in the order of their files.
      encodings: one of each model.
      depth: documents of a query.
      timed: numbers of the queries whose search is timed, T.
      rounds: how often each of them is; the median counts.
    """

    settings: Sequence[Setting]
    encodings: Sequence[Encoding]
    depth: int
    timed: Sequence[int]
    rounds: int

    def save(self, folder: Path) -> None:
        """Writes job.json."""
        write_bytes(folder / "job.json", to_json(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "Job":
        """What `save` wrote."""
        content = json.loads((folder / "job.json").read_text())
        settings = [Setting(**each) for each in content.pop("settings")]
        encodings = [Encoding(**each) for each in content.pop("encodings")]
        return cls(settings, encodings, **content)


def one_thread(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment whose processes compute on one thread, by numpy and by XLA on CPUs."""
    given = environment.get("XLA_FLAGS", "")
    kept = re.sub(r"--xla_force_host_platform_device_count=\S+", "", given)
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    ones = dict.fromkeys((*LIBRARIES, "NPROC"), "1")
    return {**environment, **ones, "XLA_FLAGS": f"{kept} {flags}".strip()}


def ask(folder: Path) -> None:
    """Searches all queries of all settings, times some of them, and times the models.

    Args:
      folder: with a job; what is found is added to it.
    """
    job = Job.load(folder)
    searches = [_search(folder, setting, job.depth) for setting in job.settings]
    found = []
    for number, (_, many) in enumerate(searches, 1):
        found.append(many())
        log.info(f"searched {number} of {len(searches)} settings")
    times = timed([one for one, _ in searches], job.timed, job.rounds)
    for number, ((documents, scores), seconds) in enumerate(zip(found, times, strict=True)):
        target = folder / f"found-{number}.npz"
        np.savez(target, numbers=documents, scores=scores, seconds=seconds)
    write_bytes(folder / "encoding.json", to_json(_encodings(job.encodings)))


def timed(
    searches: Sequence[Callable[[int], Any]],
    queries: Sequence[int],
    rounds: int,
) -> np.ndarray:
    """Seconds of single searches: for each query the median of rounds.

    In every round each search has its turn, so that what else the machine does falls on all alike.

    Args:
      searches: of a query's number; all have run before.
      queries: which are timed, T.
      rounds: how often.

    Returns:
      float64 [searches, T].
    """
    seconds = np.empty((rounds, len(searches), len(queries)))
    for turn in range(rounds):
        for place, search in enumerate(searches):
            for column, query in enumerate(queries):
                started = time.perf_counter()
                search(query)
                seconds[turn, place, column] = time.perf_counter() - started
        log.info(
            f"timed {len(queries):,} queries {len(searches)} ways, round {turn + 1} of {rounds}"
        )
    return np.median(seconds, axis=0)


def _search(
    folder: Path, setting: Setting, depth: int
) -> tuple[Callable[[int], Any], Callable[[], tuple[np.ndarray, np.ndarray]]]:
    """How a setting answers one query by its number, and all of them."""
    from big_retrieval.retrieval import open_index
    from big_retrieval.retrieval.inverted import InvertedIndex

    index: Any = open_index(folder / setting.index)
    if not isinstance(index, InvertedIndex):
        embeddings = np.load(folder / setting.queries)  # [Q, M, N]
        index.search(embeddings[:1], depth)  # compiles
        return lambda q: index.search(embeddings[q : q + 1], depth), lambda: index.search(
            embeddings, depth
        )
    rows: Any = scipy.sparse.csr_array(scipy.sparse.load_npz(folder / setting.queries))
    parts = np.split(rows.indices, rows.indptr[1:-1])
    weights = np.split(rows.data, rows.indptr[1:-1])

    def many() -> tuple[np.ndarray, np.ndarray]:
        starts = range(0, rows.shape[0], CHUNK)
        pairs = [index.search(rows[start : start + CHUNK], depth) for start in starts]
        return np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])

    return lambda q: index.search_one(parts[q], weights[q], depth), many


def _encodings(wanted: Sequence[Encoding]) -> list[dict[str, float]]:
    """Mean seconds for one query of each model, all fields of it together.

    `network` is from text to representation, `words` from text to bag of words.
    """
    calls = [
        each for model in wanted for each in (_encoders if model.checkpoint else _counters)(model)
    ]
    for _, call in calls:
        for query in range(SAMPLE):
            call(query)  # compiles, for every length of a text
    seconds = timed([call for _, call in calls], range(SAMPLE), PASSES).mean(axis=1).tolist()
    totals = {each.checkpoint: {"network": 0.0, "words": 0.0} for each in wanted}
    for (key, _), taken in zip(calls, seconds, strict=True):
        totals[key[0]][key[1]] += taken
    return [totals[each.checkpoint] for each in wanted]


def _encoders(wanted: Encoding) -> list[tuple[tuple[str, str], Callable[[int], None]]]:
    """What encodes a query of a model by its number: the checkpoint and "network" or "words"."""
    import jax

    from big_retrieval import parallel
    from big_retrieval.data.build import make_readers
    from big_retrieval.data.fields.reader import stack
    from big_retrieval.inference.encoder import Encoder
    from big_retrieval.inference.load import any_mesh, load
    from big_retrieval.models.towers import make_model

    model = load(wanted.checkpoint, batch_size=1)
    mesh = parallel.make_mesh(any_mesh(model.config), jax.local_devices()[:1])
    made = make_model(model.config, model.tokenizer.vocab_size, model.tokenizer)
    weights = jax.device_put(model.weights, parallel.replicated(mesh))
    encoder, readers = Encoder(made, mesh, 1), make_readers(model.config, model.tokenizer)
    out: list[tuple[tuple[str, str], Callable[[int], None]]] = []
    for name, texts in wanted.samples.items():
        reader, terms = readers[name], encoder.terms(name)
        values: list[Any] = [None]  # an empty value, such as a black image
        if texts is not None:
            values = [x if isinstance(x, str) else tuple(x) for x in texts]

        def network(
            query: int, name: str = name, reader: Any = reader, values: Any = values
        ) -> None:
            one = {"record": np.zeros(1, np.int64), "valid": np.ones(1, bool)}
            part = stack(reader, [values[query % len(values)]])
            encoder.embeddings(weights, name, [{name: part, **one}])

        def words(
            query: int, terms: Any = terms, reader: Any = reader, values: Any = values
        ) -> None:
            arrays = stack(reader, [values[query % len(values)]])
            terms.bag(arrays["ids"], arrays["mask"])

        out.append(((wanted.checkpoint, "network"), network))
        if terms is not None and texts is not None:
            out.append(((wanted.checkpoint, "words"), words))
    return out


def _counters(wanted: Encoding) -> list[tuple[tuple[str, str], Callable[[int], None]]]:
    """What counts the words of a query for BM25, as `_encoders`."""
    from big_retrieval.evals.bm25 import Bm25

    texts = list(wanted.samples["query"] or ())
    index = Bm25(texts)

    def words(query: int) -> None:
        index.counts([texts[query % len(texts)]])

    return [((wanted.checkpoint, "words"), words)]


def main(folder: str, level: str) -> None:
    """Does the job of a folder, with messages from a level on."""
    messages.show(int(level))
    ask(Path(folder))


if __name__ == "__main__":
    from big_retrieval import cli

    cli.run(main, words=1)
