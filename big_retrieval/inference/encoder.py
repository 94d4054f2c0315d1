"""Encoding on the devices, outside training: for evaluators, search and `big_retrieval.load`."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import scipy.sparse
from jax.sharding import Mesh

from big_retrieval import parallel
from big_retrieval.batch import Batch
from big_retrieval.config import lexical_head
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.pipeline import Reading, eval_batches
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.inference import activations, batching, gradcam
from big_retrieval.inference.gradcam import GradCam
from big_retrieval.inference.sharded_rows import ShardedRows
from big_retrieval.models.towers import RetrievalModel, variables
from big_retrieval.runtime import heartbeat
from big_retrieval.runtime.progress import ProgressCounter
from big_retrieval.sparse import gate
from big_retrieval.sparse.terms import Terms

# Dense fields: an array [n, M, N]. Lexical fields: a scipy.sparse.csr_array [n, V].
# Both are indexed by rows in the same way.
Embeddings = Any

PAIRS = 32  # pairs of Grad-CAM at a time
LARGEST_BATCH = 1024  # evaluation sets are small; a huge batch would be mostly padding


class Encoder(ShardedRows):
    """Turns batches of one field into embeddings, over a mesh, the same on every process.

    Attributes:
      batch_size: rows of a global batch that `embeddings` expects.
      rows: the rows of a global batch that this process provides, ascending int64 [b].
      batching: the batches of `encode`.
    """

    def __init__(self, model: RetrievalModel, mesh: Mesh, batch_size: int) -> None:
        """Prepares; compiles at the first batch of each field.

        Args:
          model: towers and heads.
          mesh: the devices.
          batch_size: rows at a time at most; rounded to a multiple of the mesh's row groups.
        """
        super().__init__(mesh)
        groups = self.row_multiple()
        self.batch_size = groups * max(1, min(batch_size, LARGEST_BATCH) // groups)
        self.rows = parallel.local_rows(mesh, self.batch_size)
        self.batching = batching.Batching.of(mesh, self.batch_size)
        self._model = model
        whole = parallel.replicated(mesh)
        self._apply = jax.jit(self._embeddings, out_shardings=whole)
        self._inside = jax.jit(
            partial(activations.of_layer, model), static_argnums=(2, 3), out_shardings=whole
        )
        self._all_inside = jax.jit(
            partial(activations.of_all_layers, model), static_argnums=2, out_shardings=whole
        )

    def _embeddings(self, collections: Any, batch: Batch) -> Any:
        """Embeddings of every field, which rows are valid, and their records.

        Fields whose lexical head has a gate have gated sparse rows.
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
        layer: str | int = "final",
    ) -> tuple[np.ndarray, np.ndarray]:
        """Activations of a layer of a field's tower, before the head.

        Args:
          weights: as `embeddings`.
          field: the field's name.
          batches: as `embeddings`.
          layer: a name that the tower sows, such as "embedding" (behind positions and norm) or
            "final" (behind the last norm); or the number of a layer from 0, -1 for the last.

        Returns:
          Activations [n, ...], of transformers [n, L, W], padding of texts included; and the record
          that each comes from [n].

        Raises:
          UserError: the tower has no such layer.
        """
        collections, found, records = variables(weights), [], []
        with parallel.use(self._mesh):
            for arrays in batches:
                batch = parallel.to_batch(arrays, self._mesh, self.rows, self.batch_size)
                out = jax.device_get(self._inside(collections, batch, field, layer))
                found.append(out[0][out[1]])
                records.append(out[2][out[1]])
                heartbeat.beat()
        return np.concatenate(found), np.concatenate(records)

    def all_features(
        self, weights: Any, field: str, batch: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """`features` of all layers at once, of one batch.

        Args:
          weights: as `embeddings`.
          field: the field's name.
          batch: one of `embeddings`.

        Returns:
          Activations [n, ...] by "embedding" and "final", if the tower has them, and by the numbers
          of layers, "0", "1", ...
        """
        with parallel.use(self._mesh):
            whole = parallel.to_batch(batch, self._mesh, self.rows, self.batch_size)
            found, valid = jax.device_get(self._all_inside(variables(weights), whole, field))
        return {name: x[valid] for name, x in found.items()}

    def gradcam(self, weights: Any, arrays: gradcam.Arrays, text: str, image: str) -> GradCam:
        """Grad-CAM of pairs of a text and an image; see inference/gradcam.py.

        Args:
          weights: as `embeddings`.
          arrays: of both fields, as in a batch, of n rows; the same on every process.
          text: the text field.
          image: the image field.

        Returns:
          Signed relevances of the n pairs, as numpy arrays.

        Raises:
          UserError: a field or its tower does not fit.
        """
        if why := self.gradcam_obstacle(text, image):
            raise UserError(why)
        run = gradcam.program(self._model, text, image)
        given = {text: self._model.fields[text].trimmed(arrays[text]), image: arrays[image]}
        rows = len(given[image]["pixels"])
        found = []
        with parallel.use(self._mesh):
            for start in range(0, rows, PAIRS):
                some = np.minimum(np.arange(start, start + min(PAIRS, rows)), rows - 1)
                chosen = jax.tree.map(lambda x: np.asarray(x)[some], given)  # noqa: B023
                out = jax.tree.map(parallel.fetch, run(variables(weights), chosen))
                found.append(jax.tree.map(lambda x: x[: rows - start], out))  # noqa: B023
                heartbeat.beat()
        return jax.tree.map(lambda *parts: np.concatenate(parts), *found)

    def gradcam_obstacle(self, text: str, image: str) -> str:
        """Why there is no Grad-CAM of a text and an image field, as a sentence; "": there is."""
        return gradcam.obstacle(self._model, text, image)

    def terms(self, field: str) -> Terms | None:
        """The columns of a lexical field; None of others."""
        return self._model.terms.get(self._model.fields[field].shares_head or field)

    def normalises(self, field: str) -> bool:
        """Whether a lexical field's embeddings, and so its bags of words, have norm 1."""
        head = lexical_head(self._model.fields, field)
        return head is not None and head.normalise

    def _pools_padding(self, field: str) -> bool:
        """Whether padding changes the embeddings: a batch then keeps all its padding."""
        head = lexical_head(self._model.fields, field)
        return head is not None and head.pool_padding

    def embeddings(
        self, weights: Any, field: str, batches: Iterable[Mapping[str, Any]]
    ) -> tuple[Embeddings, np.ndarray]:
        """Encodes all batches of a field.

        Args:
          weights: the parameters, with the running averages of batch norms if any.
          field: the field's name.
          batches: what `data.pipeline.eval_batches` yields: this process's rows.

        Returns:
          Embeddings [n, M, N], of a lexical field CSR [n, V], gated; and the record that each comes
          from [n]. Padding rows are left out.
        """
        # Several processes would have to agree on a length, so they cut no padding.
        if not self._pools_padding(field) and jax.process_count() == 1:
            part = self._model.fields[field]
            batches = ({**arrays, field: part.trimmed(arrays[field])} for arrays in batches)
        placed = (parallel.to_batch(x, self._mesh, self.rows, self.batch_size) for x in batches)
        return self._encode(weights, field, placed)

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
        """As `embeddings`, by a process of its own and as fast as its devices can.

        Args:
          weights: as `embeddings`.
          field: the field's name.
          source: the records. Texts of like length share batches.
          reader: takes the field's values from them.
          reading: by what, and who counts damaged records.
          progress: whether a line says how far it is; None: on a terminal, where it takes long.

        Returns:
          As `embeddings`, in any order.
        """
        part, count = self._model.fields[field], len(source)
        text = part.modality == "text"
        rows = min(count, batching.BLOCK) if text else self.batching.image_rows(count)
        given: Any = {"field": field, "batch_size": rows, "reading": reading}
        blocks = eval_batches(source, {field: reader}, **given)
        if text:
            cut = not self._pools_padding(field)
            blocks = batching.regrouped(blocks, field, part, self.batching, cut)

        def place(arrays: Mapping[str, Any]) -> Batch:
            rows = len(arrays["valid"])
            return parallel.to_batch(arrays, self._mesh, np.arange(rows), rows)

        what = {"text": "texts", "image": "images"}.get(part.modality, "values")
        with ProgressCounter.of_call(what, count, progress) as counter:
            return self._encode(weights, field, map(place, blocks), counter)

    def _encode(
        self,
        weights: Any,
        field: str,
        batches: Iterable[Batch],
        progress: ProgressCounter | None = None,
    ) -> tuple[Embeddings, np.ndarray]:
        """Embeddings and records of batches; the next one is prepared while one is computed."""
        collections, terms = variables(weights), self.terms(field)
        embeddings, records = [], []

        def collect(computed: Any) -> None:
            out, valid, owners = jax.device_get(computed)
            found = jax.tree.map(lambda x: x[valid], out[field])
            embeddings.append(found if terms is None else _sparse(found, len(terms)))
            records.append(owners[valid])
            heartbeat.beat()
            if progress is not None:
                progress.add(int(valid.sum()))

        with parallel.use(self._mesh):
            before = None
            for batch in batches:
                computed = self._apply(collections, batch)
                if before is not None:
                    collect(before)
                before = computed
            if before is not None:
                collect(before)
        return concatenate(embeddings), np.concatenate(records)


def concatenate(embeddings: Sequence[Embeddings]) -> Embeddings:
    """Embeddings of several batches as one array."""
    if isinstance(embeddings[0], np.ndarray):
        return np.concatenate(embeddings)
    return scipy.sparse.vstack(embeddings, format="csr")


def _sparse(found: Any, width: int) -> scipy.sparse.csr_array:
    """Lexical embeddings of a batch, dense or sparse, as CSR."""
    if isinstance(found, gate.SparseRows):
        return gate.to_csr(np.asarray(found.values), np.asarray(found.terms), width)
    return scipy.sparse.csr_array(found.astype(np.float32))
