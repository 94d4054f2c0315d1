"""Encoding on the devices, for evaluators, search and `big_retrieval.load`."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import scipy.sparse
from jax.sharding import Mesh

from big_retrieval import parallel
from big_retrieval.batch import Batch
from big_retrieval.config import lexical_head
from big_retrieval.data.eval_batches import eval_items
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.pipeline import Reading, eval_batches
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.inference import activations, batching, gradcam
from big_retrieval.inference.gradcam import GradCam
from big_retrieval.models.towers import RetrievalModel, variables
from big_retrieval.runtime import activity
from big_retrieval.runtime.progress import progress_bar
from big_retrieval.sparse import gate
from big_retrieval.sparse.terms import Terms

# Dense fields: an array [n, M, N]. Lexical fields: a scipy.sparse.csr_array [n, V].
# Both are indexed by rows in the same way.
Embeddings = Any

PAIRS = 32  # pairs per batch of Grad-CAM
MAX_BATCH = 1024  # a larger batch would be mostly padding in small evaluation sets


class Encoder:
    """Encoder of a model's fields on a mesh, which also runs other functions there (`map_rows`).

    All processes of the mesh make the same calls and get the same results.

    Args:
      batch_size: maximum number of rows at a time, rounded to a multiple of the mesh's row groups.

    Attributes:
      batch_size: rows of a global batch for `features`.
      rows: rows of a global batch that this process provides, ascending int64 [b].
      batching: limits of the batches of `encode`.
    """

    def __init__(self, model: RetrievalModel, mesh: Mesh, batch_size: int) -> None:
        self._mesh = mesh
        groups = self.row_multiple()
        self.batch_size = groups * max(1, min(batch_size, MAX_BATCH) // groups)
        self.rows = parallel.local_rows(mesh, self.batch_size)
        self.batching = batching.Batching.for_mesh(mesh, self.batch_size)
        self._model = model
        replicated = parallel.replicated(mesh)
        self._apply = jax.jit(self._embeddings, out_shardings=replicated)
        self._inside = jax.jit(
            partial(activations.of_layers, model), static_argnums=(2, 3), out_shardings=replicated
        )

    def _embeddings(self, collections: Any, batch: Batch) -> Any:
        """Computes the embeddings of every field, the mask of valid rows, and their records.

        Fields whose lexical head has a gate get gated sparse rows.
        """
        reps: Any = self._model.apply(collections, batch.fields)
        embeddings = dict(reps.embeddings)
        for name in embeddings:
            head = lexical_head(self._model.fields, name)
            if head is None:
                continue
            dense = embeddings[name][:, 0]  # [B, V]
            embeddings[name] = dense
            if head.top_k is not None:
                bow = reps.bow.get(name) if head.keep_input_terms else None
                embeddings[name] = gate.sparsify(dense, head.top_k, bow)
        return embeddings, batch.valid, batch.document_id

    def features(
        self,
        weights: Any,
        field: str,
        batches: Iterable[Mapping[str, Any]],
        layer: str | int | None = "final",
    ) -> tuple[Any, np.ndarray]:
        """Computes the activations of a layer of a field's tower, before the head.

        Args:
          batches: this process's rows, from `data.pipeline.eval_batches`.
          layer: a name that the tower sows, such as "embedding" (after positions and norm) or
            "final" (after the last norm). An integer is the index of a layer, -1 the last layer.
            None returns a dictionary of all: "embedding" and "final", if the tower has them, and
            "0", "1", ...

        Returns:
          Activations [n, ...] (for transformers [n, L, W], with the padding of texts), and their
          record indices [n].
        """
        collections, outputs, records = variables(weights), [], []
        with parallel.use(self._mesh):
            for arrays in batches:
                batch = parallel.to_batch(arrays, self._mesh, self.batch_size)
                computed = self._inside(collections, batch, field, layer)
                output, valid, owners = jax.device_get(computed)
                outputs.append(jax.tree.map(lambda x: x[valid], output))  # noqa: B023
                records.append(owners[valid])
                activity.beat()
        return jax.tree.map(lambda *parts: np.concatenate(parts), *outputs), np.concatenate(records)

    def gradcam(self, weights: Any, arrays: gradcam.Arrays, text: str, image: str) -> GradCam:
        """Computes Grad-CAM of n pairs of a text and an image; see inference/gradcam.py.

        Args:
          arrays: n rows of both fields, as in a batch; the same on every process.
        """
        if reason := self.gradcam_obstacle(text, image):
            raise UserError(reason)
        run = gradcam.program(self._model, text, image)
        fields = {text: self._model.fields[text].trimmed(arrays[text]), image: arrays[image]}
        rows = len(fields[image]["pixels"])
        results = []
        with parallel.use(self._mesh):
            for start in range(0, rows, PAIRS):
                index = np.minimum(np.arange(start, start + min(PAIRS, rows)), rows - 1)
                batch = jax.tree.map(lambda x: np.asarray(x)[index], fields)  # noqa: B023
                out = jax.tree.map(parallel.fetch, run(variables(weights), batch))
                results.append(jax.tree.map(lambda x: x[: rows - start], out))  # noqa: B023
                activity.beat()
        return jax.tree.map(lambda *parts: np.concatenate(parts), *results)

    def gradcam_obstacle(self, text: str, image: str) -> str:
        """Returns the reason why two fields have no Grad-CAM; "" if they have it."""
        return gradcam.obstacle(self._model, text, image)

    def terms(self, field: str) -> Terms | None:
        """Returns the terms of a lexical field; None for other fields."""
        return self._model.terms.get(self._model.fields[field].shares_head or field)

    def normalises(self, field: str) -> bool:
        """Returns True if a lexical field's embeddings, and its bags of words, have norm 1."""
        head = lexical_head(self._model.fields, field)
        return head is not None and head.normalise

    def _pools_padding(self, field: str) -> bool:
        """Returns True if padding changes the embeddings, so that it must stay."""
        head = lexical_head(self._model.fields, field)
        return head is not None and head.pool_padding

    def encode_batch(self, weights: Any, field: str, arrays: Mapping[str, Any]) -> Embeddings:
        """Encodes the valid rows of one batch of `batch_size` rows, on this process alone.

        Returns embeddings [n, M, N]; for a lexical field, gated CSR [n, V].
        """
        if not self._pools_padding(field):
            arrays = {**arrays, field: self._model.fields[field].trimmed(arrays[field])}
        batch, out = parallel.to_batch(arrays, self._mesh, self.batch_size), []
        self._encode(weights, field, [batch], lambda rows, _: out.append(rows))
        return out[0]

    def encode(
        self,
        weights: Any,
        field: str,
        source: RecordSource,
        reader: FieldReader,
        *,
        reading: Reading | None = None,
        progress: bool | None = None,
    ) -> tuple[Embeddings, np.ndarray]:
        """Encodes all images or all texts of a source, with batches of texts of similar length.

        Every process reads its rows of consecutive texts or images. The batches depend only on the
        source and the mesh, not on the number of processes.

        Args:
          reading: threads that read records, and the count of damaged records.
          progress: True for a bar if encoding takes long; None shows it on terminals only.

        Returns:
          Embeddings [n, M, N] (for a lexical field, gated CSR [n, V]) and their record indices [n],
          ascending. Texts of a record keep their order. Damaged values are left out.
        """
        field_config, value_ids = self._model.fields[field], eval_items(source, reader)  # [n, 2]
        if not len(value_ids):
            raise UserError(f"{source.name} has no value for field {field!r}.")
        encoded = batching.InOrder(len(value_ids))
        noun = {"text": "texts", "image": "images"}.get(field_config.modality, "values")
        with progress_bar(noun, len(value_ids), shown=progress) as bar:

            def collect(rows: Embeddings, indices: np.ndarray) -> None:
                encoded.put(rows, indices)
                bar.update(len(indices))

            batches = self._batches(field, source, reader, value_ids, reading)
            self._encode(weights, field, batches, collect)
        return encoded.embeddings(), value_ids[encoded.present, 0]

    def _batches(
        self,
        field: str,
        source: RecordSource,
        reader: FieldReader,
        value_ids: np.ndarray,
        reading: Reading | None,
    ) -> Iterator[Batch]:
        """Yields the batches of `encode`; `document_id` is the index of a row in `value_ids`."""
        field_config, cut = self._model.fields[field], not self._pools_padding(field)
        is_text, groups = field_config.modality == "text", self.row_multiple()
        size = groups * -(-min(len(value_ids), batching.BLOCK) // groups)  # of texts
        if not is_text:
            size = self.batching.image_rows(
                len(value_ids), getattr(field_config, "size", batching.SIDE)
            )
        rows = parallel.local_rows(self._mesh, size)

        def add_indices(block_index: int, block: Mapping[str, Any]) -> dict[str, Any]:
            indices = (block_index * size + rows).astype(np.int32)
            arrays = {field: block[field], "valid": block["valid"], "record": indices}
            return parallel.gather_rows(arrays, self._mesh, size) if is_text else arrays

        blocks = eval_batches(
            source, {field: reader}, field=field, batch_size=size, rows=rows, value_ids=value_ids,
            reading=reading,
        )  # fmt: skip
        batches = itertools.starmap(add_indices, enumerate(blocks))
        if is_text:
            batches = batching.regrouped(batches, field, field_config, self.batching, cut)
        for arrays in batches:
            yield parallel.to_batch(arrays, self._mesh, len(arrays["valid"]) if is_text else size)

    def _encode(
        self,
        weights: Any,
        field: str,
        batches: Iterable[Batch],
        collect: Callable[[Embeddings, np.ndarray], None],
    ) -> None:
        """Passes embeddings of valid rows and their `document_id` to `collect`."""
        collections, terms = variables(weights), self.terms(field)

        def finish(computed: Any) -> None:
            out, valid, owners = jax.device_get(computed)
            rows = jax.tree.map(lambda x: x[valid], out[field])
            collect(rows if terms is None else _sparse(rows, len(terms)), owners[valid])
            activity.beat()

        with parallel.use(self._mesh):
            previous = None  # the host prepares a batch while the devices compute the previous one
            for batch in batches:
                computed = self._apply(collections, batch)
                if previous is not None:
                    finish(previous)
                previous = computed
            if previous is not None:
                finish(previous)

    def map_rows(
        self, function: Callable[..., Any], rows: Iterable[np.ndarray], *arrays: Any
    ) -> Any:
        """Applies a function to row-sharded and replicated arrays; returns numpy arrays.

        Args:
          function: jit-able; maps (rows..., arrays...) to arrays [C, ...].
          rows: arrays [C, ...] to shard; C is a multiple of `row_multiple`.
          *arrays: arrays to replicate.
        """
        args = [self.spread(np.asarray(x)) for x in rows]
        args += [x if isinstance(x, jax.Array) else self.whole(np.asarray(x)) for x in arrays]
        out = jax.jit(function, out_shardings=parallel.replicated(self._mesh))(*args)
        activity.beat()
        return jax.tree.map(np.asarray, out)

    def spread(self, x: np.ndarray) -> jax.Array:
        """Shards the rows of an array, a multiple of `row_multiple`, over the devices."""
        sharding = parallel.batch_sharding(self._mesh)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    def whole(self, x: np.ndarray) -> jax.Array:
        """Replicates an array on all devices, for several calls of `map_rows`."""
        sharding = parallel.replicated(self._mesh)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    def row_multiple(self) -> int:
        """Returns the number of row groups of the mesh, which divides the rows of `map_rows`."""
        return self._mesh.shape["data"] * self._mesh.shape["fsdp"]


def concatenate(embeddings: Sequence[Embeddings]) -> Embeddings:
    """Concatenates the embeddings of several batches."""
    if isinstance(embeddings[0], np.ndarray):
        return np.concatenate(embeddings)
    return scipy.sparse.vstack(embeddings, format="csr")


def _sparse(rows: Any, width: int) -> scipy.sparse.csr_array:
    if isinstance(rows, gate.SparseRows):
        return gate.to_csr(np.asarray(rows.values), np.asarray(rows.terms), width)
    return scipy.sparse.csr_array(rows.astype(np.float32))
