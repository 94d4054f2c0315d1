"""The static part of the contrastive core: its inputs, its labels, and how it runs on a mesh."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import flax.struct
import jax
from jax.sharding import PartitionSpec as P

from big_retrieval.errors import UserError
from big_retrieval.losses.blockwise import SweepSettings
from big_retrieval.losses.tiles import Axes, SideRows

Exchange = Literal["auto", "gather", "ring"]
ROW_AXES = ("data", "fsdp")
GATHER_BYTES = 2**28  # "auto": largest rotating side that every device holds whole


@flax.struct.dataclass
class BlockwiseInputs:
    """What the logits of a batch depend on.

    Attributes:
      documents: embeddings [B, M, N] or [B, V].
      queries: embeddings of the same shape; row i belongs to document i. Sparse ones: values [B,
        K], with documents [B, V].
      negatives: further documents [B, K, M, N] or [B, K, V] that belong to no query, or None.
      logit_scale: multiplier of the scores, [].
      bias: added to the scaled scores, [], or None.
    """

    documents: jax.Array
    queries: jax.Array
    negatives: jax.Array | None
    logit_scale: jax.Array
    bias: jax.Array | None


@flax.struct.dataclass
class Labels:
    """What is known of the rows; nothing here has a gradient.

    Attributes:
      valid: bool [B].
      query_present: bool [B] or None; whether the row's query can be compared at all. An
        absent one is neither anchor nor negative, like padding, but its pair still counts as a row.
      document_present: bool [B] or None, the same for documents.
      negatives_valid: bool [B, K] or None.
      query_id: int32 [B], or [B, K] with the row's own query first and then others that its
        document answers, filled up with -1; or None.
      document_id: int32 [B] or [B, K], the same of documents; or None.
      negatives_id: int32 [B, K] or None, document ids of the extra negatives.
      weight: [B] or None, weights of the pairs.
      query_terms: int32 [B, K] of sparse queries, or None.
    """

    valid: jax.Array
    query_present: jax.Array | None = None
    document_present: jax.Array | None = None
    negatives_valid: jax.Array | None = None
    query_id: jax.Array | None = None
    document_id: jax.Array | None = None
    negatives_id: jax.Array | None = None
    weight: jax.Array | None = None
    query_terms: jax.Array | None = None

    def queries_counted(self) -> jax.Array:
        """bool [B]: which queries are anchors and negatives."""
        return self.valid if self.query_present is None else self.valid & self.query_present

    def documents_counted(self) -> jax.Array:
        """bool [B]: which documents are."""
        return self.valid if self.document_present is None else self.valid & self.document_present

    def pairs_counted(self) -> jax.Array:
        """bool [B]: rows with both."""
        return self.queries_counted() & self.documents_counted()


@dataclasses.dataclass(frozen=True)
class BlockwiseCore:
    """The static part of a computation.

    Attributes:
      sweep: what happens to each tile.
      axes: mesh axes that rows are sharded over; empty without a mesh.
      devices: their product.
      ring: pass the queries around instead of gathering them.
    """

    sweep: SweepSettings
    axes: Axes
    devices: int
    ring: bool

    @property
    def gathers(self) -> bool:
        """Whether every device holds all queries at once."""
        return self.devices > 1 and not self.ring

    def embeddings_spec(self, ndim: int, sharded: bool = True) -> P:
        """How embeddings are laid out: rows over the devices, or all of them on each."""
        rows = (self.axes or None) if sharded else None
        return P(rows, *(None,) * (ndim - 2), self.sweep.feature_axis)

    def inputs_spec(self, inputs: BlockwiseInputs, labels: Labels) -> BlockwiseInputs:
        """How inputs and their gradients are laid out; sparse queries are whole on each device."""
        spec = jax.tree.map(lambda x: self.embeddings_spec(x.ndim) if x.ndim else P(), inputs)
        # A sparse query's terms may lie on any device, so its values [b, K] are not cut by terms.
        return spec if labels.query_terms is None else spec.replace(queries=P(self.axes or None))

    def everyone_spec(self, inputs: BlockwiseInputs, labels: Labels) -> SideRows | None:
        """How the gathered queries are laid out, where they are."""
        if not self.gathers:
            return None
        # Only the structure counts here: `valid` stands for two arrays that are always there.
        queries = SideRows(inputs.queries, labels.valid, labels.valid, labels.query_id,
                       labels.document_id, labels.weight, labels.query_terms)  # fmt: skip
        whole: Any = jax.tree.map(lambda x: P(), queries)
        if labels.query_terms is not None:
            return whole
        return whole.replace(embeddings=self.embeddings_spec(inputs.queries.ndim, sharded=False))

    def run(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
        """`function` of (core, ...) on every device's own rows; as it is where there is no mesh."""
        local = functools.partial(function, self)
        if jax.sharding.get_abstract_mesh().empty:
            return local
        # check_vma is off: it cannot tell that gathered rows are the same on all devices.
        return jax.shard_map(local, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def make_core(
    sweep: SweepSettings,
    inputs: BlockwiseInputs,
    exchange: Exchange = "auto",
    row_axes: Axes = ROW_AXES,
) -> BlockwiseCore:
    """Chooses how a computation runs on the mesh of the context (`jax.set_mesh`), if there is one.

    Args:
      sweep: what happens to each tile.
      inputs: for the size of the rotating side.
      exchange: how it reaches other devices; "auto" gathers up to 256 MiB.
      row_axes: mesh axes that rows are sharded over.

    Raises:
      UserError: the rows do not divide over the devices.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(axis for axis in row_axes if axis in mesh.shape)
    devices = 1
    for axis in axes:
        devices *= mesh.shape[axis]
    rows = inputs.queries.shape[0]
    if rows % devices:
        raise UserError(
            f"a batch of {rows} rows does not divide over {devices} devices: pad it with rows "
            "that are not valid."
        )
    size = inputs.queries.size * inputs.queries.dtype.itemsize
    if sweep.feature_axis is not None and inputs.queries.shape == inputs.documents.shape:
        size //= mesh.shape[sweep.feature_axis]  # sparse ones are whole on every device
    return BlockwiseCore(sweep, axes, devices, chosen(exchange, size) == "ring")


def chosen(exchange: Exchange, size: int) -> Exchange:
    """ "gather" or "ring": what "auto" stands for, with a rotating side of so many bytes."""
    if exchange != "auto":
        return exchange
    return "ring" if size > GATHER_BYTES else "gather"
