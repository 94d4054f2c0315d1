"""Searchers of candidate documents: exact search by a model, or BM25."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
import scipy.sparse

from big_retrieval.config import Config
from big_retrieval.config.sources import Source
from big_retrieval.config.topologies import topology_part
from big_retrieval.data.build import make_readers, make_reading
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.pipeline import Reading
from big_retrieval.evals.bm25 import Bm25, side_texts, text_columns
from big_retrieval.evals.encoding import SourceEncoder, average
from big_retrieval.evals.ranks import DocumentScorer
from big_retrieval.inference.encoder import Embeddings, Encoder
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.inference.load import TrainedModel
from big_retrieval.mining.task import Task, make_task

PAIRS = 4096  # pairs to score at a time
CHUNK = 256  # queries to score with all documents at a time


class CandidateSearcher(Protocol):
    """Finds documents for the queries of a task.

    Attributes:
      fingerprint: equal for searchers with the same results.
    """

    fingerprint: str

    def search(self, queries: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the best documents of queries [q], best first.

        BM25 and lexical models return only documents that share a word with the query.

        Returns:
          Document indices [q, depth], -1 after the last document; their scores [q, depth]; and the
          best score of each query's relevant documents [q], NaN if unknown.
        """
        ...


class WordSearcher:
    """BM25 over the text columns of each side ("query", "document")."""

    def __init__(self, task: Task, columns: Mapping[str, Sequence[str]]):
        self._task, self._columns = task, columns
        self.fingerprint = f"bm25 {json.dumps({name: list(columns[name]) for name in columns})}"
        self._index = Bm25(side_texts(task.documents, columns["document"]))

    def search(self, queries: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        texts = side_texts(self._task.queries, self._columns["query"], queries)
        positives = [self._task.positives[query] for query in queries.tolist()]
        return self._index.search(texts, depth, positives)


class ModelSearcher:
    """A model that scores every query with every document."""

    def __init__(
        self,
        task: Task,
        config: Config,
        readers: Mapping[str, FieldReader],
        encoder: Encoder,
        weights: Any,
        reading: Reading | None = None,
    ):
        self._task = task
        self._topology = topology_part(config.topology)
        self.fingerprint = params_sha256(weights)
        source_encoder = SourceEncoder(encoder, weights, reading)

        def encode(side: str, source: Any) -> tuple[Embeddings, np.ndarray]:
            weights = {n: f.weight for n, f in config.fields.items() if f.side == side}
            fields = source_encoder.encode_fields(source, {n: readers[n] for n in weights})
            embeddings = average(
                self._topology, fields.embeddings, weights, fields.present, overwrite=True
            )
            return embeddings, fields.any(weights)

        self._queries, self._has_query = encode("query", task.queries)
        self._documents, self._has_document = encode("document", task.documents)
        self._present = np.flatnonzero(self._has_document)
        # Created once: laying out the documents takes longer than searching for some queries.
        is_complete = len(self._present) == len(task.documents)
        findable = self._documents if is_complete else self._documents[self._present]
        score = self._topology.score
        self._scorer = DocumentScorer(findable, score=score, encoder=encoder, chunk=CHUNK)

    def search(self, queries: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        hits, scores = self._scorer.best(self._queries[queries], depth)
        is_hit = self._has_query[queries][:, None]  # [q, 1]
        if scipy.sparse.issparse(self._queries):
            is_hit = is_hit & (scores > 0)  # documents that share a word with the query
        return np.where(is_hit, self._present[hits], -1), scores, self._best_positive(queries)

    def _best_positive(self, queries: np.ndarray) -> np.ndarray:
        """Returns the best score of the relevant documents of queries [q]."""
        pairs = np.array(
            [
                (row, document)
                for row, query in enumerate(queries.tolist())
                for document in self._task.positives[query]
                if self._has_document[document]
            ],
            np.int64,
        ).reshape(-1, 2)
        out = np.full(len(queries), np.nan)
        for start in range(0, len(pairs), PAIRS):
            rows, documents = pairs[start : start + PAIRS].T
            a, b = self._queries[queries[rows]], self._documents[documents]
            if scipy.sparse.issparse(a):  # lexical fields
                scores = a.multiply(b).sum(axis=1)
            else:
                scores = self._topology.paired(jnp.asarray(a), jnp.asarray(b))
            np.fmax.at(out, rows, np.asarray(scores, np.float64))
        return out


def search_with_bm25(
    config: Config, data: Source, documents: str | None
) -> tuple[Task, WordSearcher]:
    """Returns the task of some data (see `make_task`), and BM25 over the texts of its fields."""
    task = make_task(config, data, None, documents)
    return task, WordSearcher(task, text_columns(config))


def search_with_model(
    model: TrainedModel, data: Source, documents: str | None
) -> tuple[Task, ModelSearcher]:
    """Returns the task of some data (see `make_task`), and a model that searches its documents."""
    config = model.config
    readers, reading = make_readers(config, model.tokenizer), make_reading(config.loader)
    task = make_task(config, data, model.tokenizer, documents)
    return task, ModelSearcher(task, config, readers, model.encoder, model.weights, reading)
