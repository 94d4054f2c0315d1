"""A run as an encoder of mteb, which evaluates it on its tasks.

    import mteb
    from big_retrieval.retrieval.mteb_encoder import MtebEncoder

    mteb.evaluate(MtebEncoder("runs/vdr"), mteb.get_tasks(["NFCorpus"]))

The class has the methods of `mteb.models.EncoderProtocol` (mteb 2). It imports mteb only for the
description of the model, and torch for tensors.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy import sparse

from big_retrieval.config import is_lexical
from big_retrieval.config.topologies import topology_part
from big_retrieval.errors import UserError
from big_retrieval.inference import load
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.retrieval import encode
from big_retrieval.retrieval.documents import DocumentRow


class MtebEncoder:
    """Encoder of texts and images of mteb's tasks.

    The query field encodes queries. The embedding of a document is the weighted average of the
    document side's fields. If inputs have another modality (images as queries for captions), the
    model's only field of this modality encodes them. Inputs that are neither queries nor documents
    are encoded as queries.

    Args:
      model_name: a run or checkpoint folder.
      revision: a step; None for the newest intact checkpoint.
      device: unused; jax chooses.
      query_field: as in `encode.query_field`.
      document_field: as in `encode.document_fields`.
      name: name of the model in mteb's results, after "big_retrieval/"; empty for the folder's
        name.
    """

    def __init__(
        self,
        model_name: str,
        revision: str | None = None,
        *,
        device: str | None = None,
        query_field: str = "",
        document_field: str = "",
        batch_size: int = 64,
        name: str = "",
    ):
        del device
        if revision is not None and not revision.isdecimal():
            raise UserError(f"revision is {revision!r}. Use a step, such as '1000'.")
        step = None if revision is None else int(revision)
        self.model = load.load(model_name, step=step, batch_size=batch_size)
        config = self.model.config
        self._sides = {
            "query": {encode.query_field(config, query_field): 1.0},
            "document": encode.document_fields(config, document_field),
        }
        used = sorted({*self._sides["query"], *self._sides["document"]})
        types = {is_lexical(config, field) for field in used}
        if len(types) > 1:
            raise UserError(f"Fields {', '.join(used)} are both lexical and dense. Use one type.")
        (self._lexical,) = types
        self._topology = topology_part(config.topology)
        self._name = f"big_retrieval/{name or Path(model_name).resolve().name}"

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: Any = None, **task: Any
    ) -> Any:
        """Encodes all inputs of a task.

        Args:
          inputs: batches of a `DataLoader`, values by column.
          prompt_type: mteb's `PromptType`, whose value is "query" or "document"; or None.
          **task: `task_metadata`, `hf_split`, `hf_subset` and the evaluation's keywords.

        Returns:
          Float32 [n, M * N]. For lexical fields [n, V], as a sparse tensor of torch for tasks that
          score queries with documents, as from mteb's wrapper of sparse encoders.
        """
        side = getattr(prompt_type, "value", prompt_type) or "query"
        parts = [
            encode.encode_rows(self.model, rows, fields)
            for rows, fields in self._rows(inputs, side)
        ]
        if not self._lexical:
            embeddings = np.concatenate(parts)
            return embeddings.reshape(len(embeddings), -1)
        rows = sparse.vstack(parts, format="coo", dtype=np.float32)
        return _tensor(rows) if _takes_sparse(task.get("task_metadata")) else rows.toarray()

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Returns the model's scores of all rows with all rows, a tensor [rows, columns]."""
        import torch  # pyright: ignore[reportMissingImports]

        a, b = self._embeddings(embeddings1), self._embeddings(embeddings2)
        scores = (a @ b.T).toarray() if self._lexical else self._topology.score(a, b)
        return torch.from_numpy(np.array(scores))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Returns the model's score of row i with row i, a tensor [rows]."""
        import torch  # pyright: ignore[reportMissingImports]

        a, b = self._embeddings(embeddings1), self._embeddings(embeddings2)
        scores = a.multiply(b).sum(1) if self._lexical else self._topology.paired(a, b)
        return torch.from_numpy(np.array(scores).ravel())

    @functools.cached_property
    def mteb_model_meta(self) -> Any:
        """mteb's description of the model; the revision is the start of the weights' SHA-256."""
        from mteb.models.model_meta import ModelMeta  # pyright: ignore[reportMissingImports]

        fields = {name for side in self._sides.values() for name in side}
        return ModelMeta.create_empty(
            overwrites={
                "name": self._name,
                "revision": params_sha256(self.model.weights)[:16],
                "framework": ["JAX"],
                "model_type": ["sparse" if self._lexical else "dense"],
                "modalities": sorted({self._modality(name) for name in fields}),
            }
        )

    def _modality(self, field: str) -> str:
        return self.model.config.fields[field].modality

    def _rows(
        self, inputs: Iterable[Mapping[str, Any]], side: str
    ) -> Iterator[tuple[list[DocumentRow], dict[str, float]]]:
        """Yields rows to encode at once, with the fields that encode them."""
        held: list[DocumentRow] = []
        fields: dict[str, float] = {}
        for batch in inputs:
            fields = fields or self._fields(side, batch)
            images = any(self._modality(name) == "image" for name in fields)
            columns = [self._values(name, batch) for name in fields]
            for values in zip(*columns, strict=True):
                held.append(DocumentRow("", dict(zip(fields, values, strict=True))))
            if len(held) >= (encode.IMAGES if images else encode.TEXTS):
                yield held, fields
                held = []
        if held:
            yield held, fields

    def _fields(self, side: str, batch: Mapping[str, Any]) -> dict[str, float]:
        """Returns the fields that encode a batch, with their weights."""
        fields = {
            k: weight for k, weight in self._sides[side].items() if self._modality(k) in batch
        }
        candidates = [name for name in self.model.config.encoded if self._modality(name) in batch]
        if not fields and len(candidates) == 1:
            fields = {candidates[0]: 1.0}
        texts = [name for name in fields if self._modality(name) == "text"]
        if not fields or len(texts) > 1:
            reason = f"{', '.join(texts)} all read texts" if texts else "The model has no field"
            raise UserError(
                f"{reason} for a task whose {side} has {', '.join(sorted(batch))}. Name one by "
                f"MtebEncoder(..., {side}_field=...)."
            )
        return fields

    def _values(self, field: str, batch: Mapping[str, Any]) -> list[Any]:
        """Returns a field's values; texts are pairs if the batch has titles."""
        values = list(batch[self._modality(field)])
        titled = getattr(self.model.config.fields[field], "title", "")
        if titled and "title" in batch and "body" in batch:
            return list(zip(batch["title"], batch["body"], strict=True))
        return values

    def _embeddings(self, rows: Any) -> Any:
        """Converts rows [n, V] to CSR, or [n, M * N] to embeddings [n, M, N]."""
        if self._lexical:
            return _matrix(rows)
        flat = np.atleast_2d(np.asarray(rows, np.float32))
        return jnp.asarray(flat.reshape(len(flat), *self._shape))

    @functools.cached_property
    def _shape(self) -> tuple[int, ...]:
        """M and N, from encoding a text: mteb may read all other embeddings from its cache."""
        (field,) = self._sides["query"]
        return self.model.encode_texts(["a"], field).shape[1:]


def _takes_sparse(task: Any) -> bool:
    """Returns True if a task only scores queries with documents."""
    is_retrieval = getattr(task, "simplified_task_type", "") == "retrieval"
    return is_retrieval and "Reranking" not in str(getattr(task, "type", ""))


def _tensor(rows: Any) -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    indices = torch.from_numpy(np.stack(rows.coords).astype(np.int64))
    values = torch.from_numpy(rows.data)
    return torch.sparse_coo_tensor(indices, values, rows.shape, check_invariants=True).coalesce()


def _matrix(rows: Any) -> Any:
    """Converts rows [n, V], a tensor of torch or an array, to a `csr_array`."""
    if not getattr(rows, "is_sparse", False):
        return sparse.csr_array(np.atleast_2d(np.asarray(rows, np.float32)))
    rows = rows.coalesce()
    indices, values = rows.indices().numpy(), rows.values().numpy()
    return sparse.coo_array((values, tuple(indices)), shape=tuple(rows.shape)).tocsr()
