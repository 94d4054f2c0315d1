"""The contrastive core: statistics of all logits of a batch that is sharded over devices.

Rows are sharded over the mesh axes data and fsdp. Documents are local: they and their extra
negatives are never sent. Queries rotate: every device gathers all of them ("gather"), or they pass
from neighbor to neighbor ("ring"). Their gradients return by a reduce-scatter or along the ring.
The derivative is defined outside of `shard_map`, so that JAX never transposes a collective.

Bytes received per device and step, for N rows of b bytes, with float32 gradients of g bytes, on D
devices: gather (D - 1) / D * N * (b + g); ring N * (2 b + g).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from big_retrieval.losses import blockwise
from big_retrieval.losses.core import TileSweep
from big_retrieval.losses.tiles import SavedRows, SideRows

Scales = tuple[jax.Array, jax.Array | None]  # logit scale and bias, [] each
# Documents, queries, extra negatives [B, K, ...].
Sides = tuple[SideRows, SideRows, SideRows | None]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def statistics(sweep: TileSweep, scales: Scales, sides: Sides) -> dict[str, Any]:
    """Returns statistics of every row over its logits with all rows except its positive.

    Only scales and embeddings have a gradient. The keys are `document` and `query`, the
    reduction's finished statistics [B] of both sides, and `positive` [B], the unscaled scores of
    the pairs. Rows that are not counted have arbitrary finite values.
    """
    return _forward(sweep, scales, sides)[0]


def _forward(sweep: TileSweep, scales: Scales, sides: Sides) -> tuple[dict[str, Any], Any]:
    in_specs, saved_specs = _specs(sweep, sides)
    run = sweep.run(_local_forward, in_specs, (P(sweep.axes or None), saved_specs))
    out, saved = run(scales, sides)
    return out, (scales, sides, saved)


def _backward(sweep: TileSweep, residuals: Any, grads: dict[str, Any]) -> tuple[Any, Any]:
    scales, sides, saved = residuals
    in_specs, saved_specs = _specs(sweep, sides)
    out_specs = P(), tuple(spec and spec.embeddings for spec in in_specs[1])
    run = sweep.run(_local_backward, (*in_specs, saved_specs, P(sweep.axes or None)), out_specs)
    d_scales, embeddings = run(scales, sides, saved, grads)
    return d_scales, tuple(d if d is None else SideRows(d, None, None) for d in embeddings)  # type: ignore


statistics.defvjp(_forward, _backward)


def _specs(sweep: TileSweep, sides: Sides) -> tuple[Any, Any]:
    """Returns layouts of scales and sides, and of the saved arrays of `_local_forward`."""
    rows, gathered = P(sweep.axes or None), None
    if sweep.gathers:
        gathered = sweep.spec(sides[1], sharded=False)
    return (P(), tuple(side and sweep.spec(side) for side in sides)), (rows, rows, gathered)


def _with_negatives(documents: SideRows, negatives: SideRows | None) -> SideRows:
    """Returns the b documents followed by their extra negatives, [b, K, ...] -> [b * K, ...]."""
    if negatives is None:
        return documents
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), negatives)
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), documents, flat)


def _positive(sweep: TileSweep, documents: SideRows, queries: SideRows) -> Callable[..., jax.Array]:
    """Returns a function of both embeddings: this device's part of the positives' scores [b]."""
    counted = documents.counted & queries.counted

    def positive(documents: jax.Array, embeddings: jax.Array) -> jax.Array:
        # Rows without a pair may hold NaN, which times 0 would still reach the gradients.
        documents, embeddings = (
            blockwise.counted_rows(x, counted) for x in (documents, embeddings)
        )
        return blockwise.paired_scores(sweep, documents, embeddings, queries.terms)

    return positive


def _shift(sweep: TileSweep, tree: Any) -> Any:
    """Passes arrays to the next device of the ring."""
    if sweep.devices == 1:
        return tree
    hops = [(i, (i + 1) % sweep.devices) for i in range(sweep.devices)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, sweep.axes, hops), tree)


def _gather(sweep: TileSweep, tree: Any) -> Any:
    """Gathers the rows of all devices."""
    return jax.tree.map(lambda x: jax.lax.all_gather(x, sweep.axes, tiled=True), tree)


def _local_forward(sweep: TileSweep, scales: Scales, sides: Sides) -> tuple[dict[str, Any], Any]:
    """Computes `statistics` for the rows of one device."""
    reduction, (documents, queries, negatives) = sweep.reduction, sides
    local = _with_negatives(documents, negatives)
    merge_tiles = functools.partial(blockwise.forward, sweep, local, *scales)
    gathered, of_local = None, reduction.start(local)
    if sweep.gathers:
        gathered = _gather(sweep, queries)
        # `partial` [N] covers only this device's documents, until it is merged over the devices.
        of_local, partial = merge_tiles(gathered, (of_local, reduction.start(gathered)))
        of_queries = reduction.merge_devices(partial, sweep.axes)
    else:
        # The statistics travel with their queries. After all hops they cover every document and are
        # back on their device.
        def hop(_: Any, carry: Any) -> Any:
            of_local, moving, of_moving = carry
            of_local, of_moving = merge_tiles(moving, (of_local, of_moving))
            return of_local, *_shift(sweep, (moving, of_moving))

        of_local, _, of_queries = _around(sweep, hop, (of_local, queries, reduction.start(queries)))
    positive = _positive(sweep, documents, queries)(documents.embeddings, queries.embeddings)
    of_local, of_queries = reduction.finish(of_local), reduction.finish(of_queries)
    rows = positive.shape[0]
    out = {
        # The extra negatives follow the documents, and are left out.
        "document": {name: x[:rows] for name, x in of_local.items()},
        "query": of_queries,
        "positive": blockwise.summed(positive, sweep.feature_axis),
    }
    return out, (of_local, of_queries, gathered)


def _around(sweep: TileSweep, hop: Callable[..., Any], start: Any) -> Any:
    """Runs `hop` once around the ring, in a loop: unrolled hops would all need memory at once."""
    return jax.lax.fori_loop(0, sweep.devices, hop, start) if sweep.devices > 1 else hop(0, start)


def _local_backward(
    sweep: TileSweep, scales: Scales, sides: Sides, saved: Any, grads: dict[str, Any]
) -> tuple[Scales, tuple[jax.Array, jax.Array, jax.Array | None]]:
    """Computes the gradients of `statistics` on one device."""
    (of_local, of_queries, gathered), (documents, queries, negatives) = saved, sides
    local = _with_negatives(documents, negatives)
    add_tiles = functools.partial(blockwise.backward, sweep, local, *scales)
    # Tiles leave the positives out, so the sums start with the gradients of the positives.
    positive = _positive(sweep, documents, queries)
    _, pull = jax.vjp(positive, documents.embeddings, queries.embeddings)
    d_local, d_queries = pull(grads["positive"])
    extra = local.embeddings.shape[0] - d_local.shape[0]  # their statistics are not an output
    of_rows = SavedRows(of_local, jax.tree.map(lambda x: _pad(x, extra), grads["document"]))
    of_queries = SavedRows(of_queries, grads["query"])
    zero, d_local = jnp.zeros_like(scales[0]), _pad(d_local, extra)
    if sweep.gathers:
        start = (d_local, jnp.zeros_like(gathered.embeddings), zero, zero)
        d_local, partial, d_scale, d_bias = add_tiles(
            gathered, (of_rows, _gather(sweep, of_queries)), start
        )
        # Each device has gradients of all N queries, but only from its documents.
        d_queries = d_queries + jax.lax.psum_scatter(partial, sweep.axes, tiled=True)
    else:
        # The gradient of the queries travels with them and grows at every device.
        def hop(_: Any, carry: Any) -> Any:
            (d_local, d_scale, d_bias), moving, of_moving, d_moving = carry
            d_local, d_moving, d_scale, d_bias = add_tiles(
                moving, (of_rows, of_moving), (d_local, d_moving, d_scale, d_bias)
            )
            return (d_local, d_scale, d_bias), *_shift(sweep, (moving, of_moving, d_moving))

        (d_local, d_scale, d_bias), _, _, d_queries = _around(
            sweep, hop, ((d_local, zero, zero), queries, of_queries, d_queries)
        )
    if queries.terms is not None:  # each device has the gradient of its own terms
        d_queries = blockwise.summed(d_queries, sweep.feature_axis)
    if sweep.devices > 1:
        d_scale, d_bias = jax.lax.psum((d_scale, d_bias), sweep.axes)
    rows = len(documents.counted)
    d_negatives = None if negatives is None else d_local[rows:].reshape(negatives.embeddings.shape)
    d_scales = d_scale, None if scales[1] is None else d_bias
    return d_scales, (d_local[:rows], d_queries, d_negatives)


def _pad(x: jax.Array, extra: int) -> jax.Array:
    """Appends `extra` rows of zeros."""
    return x if extra == 0 else jnp.concatenate([x, jnp.zeros((extra, *x.shape[1:]), x.dtype)])
