"""Bytes and operations of a training step, from shapes and by tracing on abstract arrays.

A multiplication and an addition count as two operations. Model operations are `pair_flops` of all
pairs, the base of MFU. Executed operations add the loss and recomputation.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, negatives_field
from big_retrieval.losses.context import Context
from big_retrieval.losses.objective import evaluate_loss, with_vocabulary
from big_retrieval.models.flops import traced_flops
from big_retrieval.models.towers import RetrievalModel, make_model
from big_retrieval.train.build import BuiltModel
from big_retrieval.train.step import abstract_batch
from big_retrieval.train.step_figures import pair_flops

PARTS = ("parameters", "optimizer", "batch")


def arrays_bytes(tree: Any) -> int:
    """Returns the bytes of abstract arrays on one device, by their shardings, without padding."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    )


def row_devices(parts: BuiltModel) -> int:
    """Returns the number of devices that rows are sharded over."""
    return parts.mesh.shape["data"] * parts.mesh.shape["fsdp"]


def state_bytes(parts: BuiltModel) -> dict[str, int]:
    """Returns the bytes of each of `PARTS` on one device; `optimizer` includes averages."""
    params = arrays_bytes(parts.abstract.params)
    return {
        "parameters": params,
        "optimizer": arrays_bytes(parts.abstract) - params,
        "batch": arrays_bytes(abstract_batch(parts.config, parts.mesh)),
    }


def flops(config: Config, vocab_size: int) -> dict[str, int]:
    """Returns the operations of one step over all devices.

    `towers`: forward and backward passes, also of hard negatives; `recomputation`: by remat and
    micro-batches; `loss`: all losses and their networks.
    """
    sliced = config.microbatch is not None and config.microbatch < config.batch_size
    model = make_model(config, vocab_size)
    again = 0
    for name in config.encoded:
        times = 1 + (config.negatives.count if name == negatives_field(config) else 0)
        again += times * (_computed_again(model, name) + sliced * model.field_flops(name))
    n = config.batch_size
    loss = sum(loss_flops(config, name, vocab_size) for name in config.losses)
    return {"towers": n * pair_flops(config, model), "recomputation": n * again, "loss": loss}


def _computed_again(model: RetrievalModel, name: str) -> int:
    """Returns the operations of a field's tower that `remat` repeats for one row."""
    used = model.fields[name].tower
    if model.towers[used].remat == "none":
        return 0
    stored = dataclasses.replace(model.towers[used], remat="none")  # type: ignore
    plain = model.clone(towers={**model.towers, used: stored})
    return model.field_flops(name, backward=True) - plain.field_flops(name, backward=True)


def loss_flops(config: Config, name: str, vocab_size: int) -> int:
    """Returns the operations of a loss and its network per step, over all devices."""
    config = with_vocabulary(config, vocab_size)
    part = config.losses[name]
    batch = abstract_batch(config, None)
    reps = _abstract_reps(config, vocab_size)
    scalars = {key: jax.ShapeDtypeStruct((), jnp.float32) for key in part.scalars()}
    module = part.module(config)
    params: Any = {}
    if module is not None:
        init = functools.partial(module.init, train=False, rows=None)
        params = jax.eval_shape(init, jax.random.key(0), reps, batch.fields)

    def loss(learned: Any, batch: Batch) -> jax.Array:
        params, (embeddings, vectors, hard), scalars = learned
        replaced = {"embeddings": embeddings, "raw": embeddings, "vectors": vectors}
        out: Any = reps.replace(**replaced)  # type: ignore
        if out.negatives is not None:
            out = out.replace(negatives=out.negatives.replace(embeddings=hard, raw=hard))
        if module is not None:
            options: Any = {"rngs": {"dropout": jax.random.key(0)}, "mutable": ["batch_stats"]}
            rows = jnp.arange(config.batch_size, dtype=jnp.int32)
            extra, _ = module.apply(params, out, batch.fields, train=True, rows=rows, **options)
            out = out.replace(extra={name: extra})
        return evaluate_loss(part, Context(out, batch, config, name, scalars))[0]

    hard = {} if reps.negatives is None else reps.negatives.embeddings
    learned = params, (reps.embeddings, reps.vectors, hard), scalars
    return traced_flops(jax.grad(loss), learned, batch)


def _abstract_reps(config: Config, vocab_size: int) -> Reps:
    """Returns the embeddings of all fields and hard negatives; term ids stay concrete."""

    def reps(fields: Iterable[str], *rows: int) -> Reps:
        embeddings, bow = {}, {}
        for name in fields:
            field = config.fields[name]
            shape = (*rows, *field.head.embedding_shape(config, name, vocab_size))
            embeddings[name] = jax.ShapeDtypeStruct(shape, jnp.float32)
            if field.head.lexical and field.modality == "text":
                bow[name] = jnp.zeros((*rows, field.length), jnp.int32)
        return Reps(embeddings=embeddings, bow=bow, raw=embeddings)

    main, hard = reps(config.encoded, config.batch_size), negatives_field(config)
    if hard:
        deep = reps([hard], config.batch_size, config.negatives.count)
        main = main.replace(negatives=deep)  # type: ignore
    return main.replace(vectors=_abstract_vectors(config, vocab_size))  # type: ignore


def _abstract_vectors(config: Config, vocab_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    model = make_model(config, vocab_size)
    if not model.keep_vectors:
        return {}
    inputs = {name: model.example_inputs()[name] for name in model.keep_vectors}
    (outputs, _) = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), inputs))
    return {
        name: jax.ShapeDtypeStruct((config.batch_size, *x.shape[1:]), x.dtype)
        for name, x in outputs.vectors.items()
    }
