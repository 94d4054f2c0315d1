"""A dense index: embeddings of documents on the disk, searched exactly and block by block.

The model's topology gives the scores (`similarity.py`), compiled for the devices of this machine.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from big_retrieval.config.topologies import Topology, topology_part
from big_retrieval.errors import PluginNeeded, UserError
from big_retrieval.evals.ranks import best_of
from big_retrieval.evals.top_k import check_depth
from big_retrieval.inference import saved
from big_retrieval.io.npy import ArrayWriter
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.files import IndexStore, StoredTexts, mapped_files, open_array
from big_retrieval.retrieval.folder import DENSE, REBUILD, About

CHUNK = 256  # queries at a time
SCORES = 2**24  # maximum number of scores in memory
RESIDENT = 4 * 2**30  # maximum bytes of embeddings that stay on the devices between searches


def build(folder: Path, batches: Iterable[np.ndarray], about: About) -> About:
    """Writes `batches` of embeddings [n, M, N] to a folder from `folder.begin`; returns `about`."""
    topology_part(about.topology)
    writer: ArrayWriter | None = None
    for embeddings in batches:
        writer = writer or ArrayWriter(folder / "embeddings.npy", np.float32, embeddings.shape[1:])
        if embeddings.ndim != 3 or embeddings.shape[1:] != writer.shape:
            raise UserError(
                f"Embeddings have the shape {embeddings.shape[1:]} after {writer.shape}. Encode "
                "all documents with one model."
            )
        if not np.isfinite(embeddings).all():
            row = int(np.argmin(np.isfinite(embeddings).all((1, 2))))
            raise UserError(f"The embedding of document {writer.rows + row} is not finite.")
        writer.append(embeddings)
    if writer is None:
        raise UserError("No documents to index.")
    writer.close()
    return dataclasses.replace(about, kind=DENSE, documents=writer.rows)


def join_parts(folder: Path, parts: Sequence[Path], about: About) -> About:
    """Joins dense indexes of consecutive documents, as if built at once."""

    def blocks() -> Iterator[np.ndarray]:
        for path in parts:
            embeddings = open_array(path / "embeddings.npy", np.float32, 3)
            size = max(1, SCORES // math.prod(embeddings.shape[1:]))
            starts = range(0, len(embeddings), size)
            yield from (embeddings[start : start + size] for start in starts)

    return build(folder, blocks(), about)


def _topology(about: About) -> Topology:
    """Returns the topology of an index; an unknown one raises an error that names its plugin."""
    try:
        return topology_part(about.topology)
    except UserError as unknown:
        try:
            saved.read_config(Path(about.checkpoint))
        except PluginNeeded:
            raise
        except UserError:  # the run is missing
            pass
        raise unknown from None


class DenseIndex:
    """An opened dense index with the rows (`store`) and ids of its documents.

    `folder` and `about` come from `folder.open_folder`.
    """

    def __init__(self, folder: Path, about: About):
        self.folder, self.about, self.stamp = folder, about, folders.stamp(folder)
        self.store = IndexStore(folder)
        self.ids = StoredTexts(self.store, "id")
        (self._file,) = mapped_files(folder / "embeddings.npy")
        self._embeddings = open_array(folder / "embeddings.npy", np.float32, 3)
        self._topology = _topology(about)
        if len(self.embeddings) != about.documents or len(self.ids) != about.documents:
            raise UserError(f"The files of index {folder} do not fit together. {REBUILD}.")
        self._blocks: dict[tuple[int, int], jax.Array] = {}

    def __len__(self) -> int:
        return self.about.documents

    @property
    def embeddings(self) -> np.ndarray:
        """Embeddings of all documents, float32 [D, M, N], mapped; fails if the file was changed."""
        self._file.check()
        return self._embeddings

    def search(self, queries: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the best documents of queries [q, M, N] by the topology's score.

        Returns:
          Document indices int64 [q, depth], best first (the lower index first for equal scores),
          and their scores, float32 [q, depth]. Missing documents have the index -1 and the score
          -inf.
        """
        check_depth(depth)
        queries = np.asarray(queries, np.float32)
        if queries.shape[1:] != self.embeddings.shape[1:]:
            raise UserError(
                f"Queries have embeddings of shape {queries.shape[1:]}, but index {self.folder} "
                f"has {self.embeddings.shape[1:]}. Encode queries with the model of the index."
            )
        if not np.isfinite(queries).all():
            raise UserError("The embedding of a query is not finite: the model is damaged.")
        indices = np.full((len(queries), depth), -1, np.int64)
        scores = np.full(indices.shape, -np.inf, np.float32)
        for start in range(0, len(queries), CHUNK):
            hits, values = self._search(queries[start : start + CHUNK], min(depth, len(self)))
            rows = slice(start, start + len(hits))
            indices[rows, : hits.shape[1]], scores[rows, : hits.shape[1]] = hits, values
        return indices, scores

    def _search(self, queries: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the best documents of at most `CHUNK` queries, [C, depth] each."""
        count = len(queries)
        rows = 1 << (count - 1).bit_length()  # few shapes, so that few programs are compiled
        padded = np.zeros((rows, *queries.shape[1:]), np.float32)
        padded[:count] = queries
        per_score = self._topology.numbers_per_score(queries.shape[1:])
        size = max(1024, SCORES // (rows * per_score))
        indices = np.empty((count, 0), np.int64)
        scores = np.empty((count, 0), np.float32)
        for start in range(0, len(self), size):
            block = self._block(start, min(start + size, len(self)))
            run = _compiled(self._topology.score, min(depth, block.shape[0]))
            hits, values = jax.device_get(run(padded, block))
            indices = np.concatenate([indices, start + hits[:count].astype(np.int64)], axis=1)
            scores = np.concatenate([scores, values[:count]], axis=1)
            indices, scores = _best(indices, scores, depth)
        return indices, scores

    def _block(self, start: int, stop: int) -> jax.Array:
        """Puts embeddings on the default device; indexes of at most `RESIDENT` bytes stay there."""
        embeddings = self.embeddings  # checks the file: blocks on a CPU may be views of it
        block = self._blocks.get((start, stop))
        if block is None:
            block = jax.device_put(embeddings[start:stop], may_alias=True)
            if embeddings.nbytes <= RESIDENT:
                # The block size depends on the number of queries. Dropping overlapping blocks keeps
                # every document on the devices once.
                self._blocks = {
                    key: value
                    for key, value in self._blocks.items()
                    if key[1] <= start or stop <= key[0]
                }
                self._blocks[start, stop] = block
        return block


@functools.lru_cache(maxsize=64)
def _compiled(score: Callable[..., jax.Array], depth: int) -> Callable[..., Any]:
    """Compiles (queries, block of documents) -> best documents and scores of the block."""
    best = best_of(score, depth)
    return jax.jit(lambda queries, block: best(queries, None, block)[:2])


def _best(indices: np.ndarray, scores: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorts hits, the lower index first for equal scores: [C, depth] each."""
    order = np.lexsort((indices, -scores), axis=1)[:, :depth]
    return np.take_along_axis(indices, order, axis=1), np.take_along_axis(scores, order, axis=1)
