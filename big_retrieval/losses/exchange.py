"""The contrastive core: statistics of all logits of a batch that is sharded over devices.

Rows live on the devices of the mesh axes data and fsdp. One side, the local one, stays where it is.
The other, the rotating one, is either gathered whole onto every device ("gather") or passed from
neighbour to neighbour ("ring"); its gradients come back by a reduce-scatter or along the ring.
Documents are local, because extra negatives belong to them and are never sent. The derivative is
written outside `shard_map`, which therefore never has to transpose a collective.

Bytes received per device and step, N rows of b bytes on D devices, the float32 gradients g bytes a
row: gather (D - 1) / D * N * (b + g); ring N * (2 b + g).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from big_retrieval.losses import blockwise
from big_retrieval.losses.core import BlockwiseCore, BlockwiseInputs, Labels
from big_retrieval.losses.tiles import SavedRows, SideRows


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def statistics(core: BlockwiseCore, inputs: BlockwiseInputs, labels: Labels) -> dict[str, Any]:
    """Statistics of every row of the batch over its logits with all rows but its positive.

    Args:
      core: from `make_core`.
      inputs: embeddings, logit scale and bias.
      labels: what is known of the rows.

    Returns:
      `document` and `query`, the reduction's finished statistics [B] of both sides, and `positive`
      [B], `Similarity.paired` of the pairs, not yet scaled. Rows that are not valid hold finite
      numbers that mean nothing.
    """
    return _forward(core, inputs, labels)[0]


def _forward(
    core: BlockwiseCore, inputs: BlockwiseInputs, labels: Labels
) -> tuple[dict[str, Any], Any]:
    rows = P(core.axes or None)
    everyone = core.everyone_spec(inputs, labels)
    in_specs, out_specs = (core.inputs_spec(inputs, labels), rows), (rows, (rows, rows, everyone))
    out, saved = core.run(_local_forward, in_specs, out_specs)(inputs, labels)
    return out, (inputs, labels, saved)


def _backward(core: BlockwiseCore, residuals: Any, grads: dict[str, Any]) -> tuple[Any, None]:
    inputs, labels, saved = residuals
    rows, layout = P(core.axes or None), core.inputs_spec(inputs, labels)
    in_specs = (layout, rows, (rows, rows, core.everyone_spec(inputs, labels)), rows)
    return core.run(_local_backward, in_specs, layout)(inputs, labels, saved, grads), None


statistics.defvjp(_forward, _backward)


def _sides(
    core: BlockwiseCore, inputs: BlockwiseInputs, labels: Labels
) -> tuple[SideRows, SideRows]:
    """This device's documents with their extra negatives, and its queries."""
    rows = labels.valid.shape[0]
    # Numbers in the global batch: a pair is recognised wherever its query has travelled.
    first = jax.lax.axis_index(core.axes) * rows if core.devices > 1 else 0
    index = first + jnp.arange(rows, dtype=jnp.int32)
    documents = SideRows(
        inputs.documents,
        index,
        labels.documents_counted(),
        query_id=labels.query_id,
        document_id=_own(labels.document_id),
        weight=labels.weight,
    )
    queries = dataclasses.replace(
        documents,
        embeddings=inputs.queries,
        counted=labels.queries_counted(),
        query_id=_own(labels.query_id),
        document_id=labels.document_id,
        terms=labels.query_terms,
    )
    if inputs.negatives is None:
        return documents, queries
    shape = inputs.negatives.shape[:2]  # [b, K]
    # Extra negatives have the query id -1, which equals none; their documents' ids may be known.
    nobody = jnp.full(shape, -1, jnp.int32)
    counted = jnp.broadcast_to(labels.valid[:, None], shape)
    if labels.negatives_valid is not None:
        counted = counted & labels.negatives_valid
    extra = SideRows(
        inputs.negatives,
        # Different for each and below 0, so that none is taken for the positive of a query.
        index=-1 - (index[:, None] * shape[1] + jnp.arange(shape[1], dtype=jnp.int32)),
        counted=counted,
        query_id=None
        if labels.query_id is None
        else jnp.full((*shape, *labels.query_id.shape[1:]), -1, jnp.int32),
        document_id=_or(labels.negatives_id, nobody) if labels.document_id is not None else None,
        # Never read: a weight of a document's row counts for equal queries only.
        weight=None if labels.weight is None else jnp.zeros(shape, labels.weight.dtype),
    )
    # [b, K, ...] -> [b * K, ...], behind the b documents.
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), extra)
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), documents, flat), queries


def _own(ids: jax.Array | None) -> jax.Array | None:
    """The id [b] of each row's own query or document, of one or several [b, K]."""
    return ids if ids is None or ids.ndim == 1 else ids[:, 0]


def _or(x: jax.Array | None, default: jax.Array) -> jax.Array:
    return default if x is None else x


def _positive(
    core: BlockwiseCore, inputs: BlockwiseInputs, labels: Labels
) -> Callable[..., jax.Array]:
    """This device's part of the positives' scores [b], as a function of both sides' embeddings."""
    mask = labels.pairs_counted().reshape(-1, *(1,) * (inputs.queries.ndim - 1))

    def positive(documents: jax.Array, queries: jax.Array) -> jax.Array:
        # Rows without a pair may hold NaN, which even times 0 would reach the gradients.
        sides = jnp.where(mask, documents, 0), jnp.where(mask, queries, 0)
        return blockwise.paired_scores(core.sweep, *sides, labels.query_terms)

    return positive


def _shift(core: BlockwiseCore, tree: Any) -> Any:
    """Passes arrays on to the next device of the ring."""
    if core.devices == 1:
        return tree
    hops = [(i, (i + 1) % core.devices) for i in range(core.devices)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, core.axes, hops), tree)


def _gather(core: BlockwiseCore, tree: Any) -> Any:
    """All devices' rows of every array."""
    return jax.tree.map(lambda x: jax.lax.all_gather(x, core.axes, tiled=True), tree)


def _local_forward(
    core: BlockwiseCore, inputs: BlockwiseInputs, labels: Labels
) -> tuple[dict[str, Any], Any]:
    """What one device does; see `statistics`."""
    sweep, reduction = core.sweep, core.sweep.reduction
    local, queries = _sides(core, inputs, labels)
    go = functools.partial(
        blockwise.forward, sweep, local, logit_scale=inputs.logit_scale, bias=inputs.bias
    )
    everyone, of_local = None, reduction.start(local)
    if core.gathers:
        everyone = _gather(core, queries)
        # `partial` [N] knows this device's documents alone, until it is merged over the devices.
        of_local, partial = go(everyone, stats=(of_local, reduction.start(everyone)))
        of_queries = reduction.merge_devices(partial, core.axes)
    else:
        # The statistics travel with their queries: after all hops they have met every document and
        # are back on their own device.
        def hop(_: Any, found: Any) -> Any:
            of_local, moving, of_moving = found
            of_local, of_moving = go(moving, stats=(of_local, of_moving))
            return of_local, *_shift(core, (moving, of_moving))

        of_local, _, of_queries = _around(core, hop, (of_local, queries, reduction.start(queries)))
    positive = _positive(core, inputs, labels)(inputs.documents, inputs.queries)
    of_local, of_queries = reduction.finish(of_local), reduction.finish(of_queries)
    rows = positive.shape[0]
    out = {
        # Without the extra negatives, which stand behind the documents.
        "document": {name: x[:rows] for name, x in of_local.items()},
        "query": of_queries,
        "positive": blockwise.summed(positive, sweep.feature_axis),
    }
    return out, (of_local, of_queries, everyone)


def _around(core: BlockwiseCore, hop: Callable[..., Any], start: Any) -> Any:
    """Once around the ring; a loop, because unrolled hops would all be held at once."""
    return jax.lax.fori_loop(0, core.devices, hop, start) if core.devices > 1 else hop(0, start)


def _local_backward(
    core: BlockwiseCore, inputs: BlockwiseInputs, labels: Labels, saved: Any, grads: dict[str, Any]
) -> BlockwiseInputs:
    """What one device does for the gradients of `statistics`."""
    of_local, of_queries, everyone = saved
    local, queries = _sides(core, inputs, labels)
    go = functools.partial(
        blockwise.backward, core.sweep, local, logit_scale=inputs.logit_scale, bias=inputs.bias
    )
    # Tiles leave the positives out, so the gradients begin with those of the positives.
    _, pull = jax.vjp(_positive(core, inputs, labels), inputs.documents, inputs.queries)
    d_local, d_queries = pull(grads["positive"])
    extra = local.embeddings.shape[0] - d_local.shape[0]  # their statistics are no output
    of_rows = SavedRows(of_local, jax.tree.map(lambda x: _pad(x, extra), grads["document"]))
    of_queries = SavedRows(of_queries, grads["query"])
    zero = jnp.zeros_like(inputs.logit_scale)
    found = (_pad(d_local, extra), zero, zero)
    if core.gathers:
        start = (found[0], jnp.zeros_like(everyone.embeddings), zero, zero)
        d_local, partial, d_scale, d_bias = go(
            everyone, saved=(of_rows, _gather(core, of_queries)), grads=start
        )
        # Each device has a gradient of all N queries, of its documents alone; the sum goes home.
        d_queries = d_queries + jax.lax.psum_scatter(partial, core.axes, tiled=True)
    else:
        # The gradient of the queries travels with them and grows at every device.
        def hop(_: Any, found: Any) -> Any:
            (d_local, d_scale, d_bias), moving, of_moving, d_moving = found
            d_local, d_moving, d_scale, d_bias = go(
                moving, saved=(of_rows, of_moving), grads=(d_local, d_moving, d_scale, d_bias)
            )
            found = d_local, d_scale, d_bias
            return found, *_shift(core, (moving, of_moving, d_moving))

        (d_local, d_scale, d_bias), _, _, d_queries = _around(
            core, hop, (found, queries, of_queries, d_queries)
        )
    if labels.query_terms is not None:  # each device knows its own terms of them
        d_queries = blockwise.summed(d_queries, core.sweep.feature_axis)
    if core.devices > 1:
        d_scale, d_bias = jax.lax.psum((d_scale, d_bias), core.axes)
    rows = labels.valid.shape[0]
    negatives = inputs.negatives
    return BlockwiseInputs(
        documents=d_local[:rows],
        queries=d_queries,
        negatives=None if negatives is None else d_local[rows:].reshape(negatives.shape),
        logit_scale=d_scale,
        bias=None if inputs.bias is None else d_bias,
    )


def _pad(x: jax.Array, extra: int) -> jax.Array:
    """Adds zeros for so many rows."""
    return x if extra == 0 else jnp.concatenate([x, jnp.zeros((extra, *x.shape[1:]), x.dtype)])
