"""Operations of a loss, counted by tracing it on abstract arrays."""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, negatives_field
from big_retrieval.losses.context import Context
from big_retrieval.losses.objective import with_vocabulary
from big_retrieval.models.flops import traced_flops
from big_retrieval.models.towers import make_model
from big_retrieval.train.step import abstract_batch


def loss_flops(config: Config, name: str, vocab_size: int) -> int:
    """Returns a loss's operations of a step over all devices, with the network that it owns.

    Args:
      config: of the run, checked.
      name: of the loss.
      vocab_size: of the tokenizer.
    """
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
        found: Any = reps.replace(**replaced)  # type: ignore
        if found.negatives is not None:
            found = found.replace(negatives=found.negatives.replace(embeddings=hard, raw=hard))
        if module is not None:
            options: Any = {"rngs": {"dropout": jax.random.key(0)}, "mutable": ["batch_stats"]}
            rows = jnp.arange(config.batch_size, dtype=jnp.int32)
            made, _ = module.apply(params, found, batch.fields, train=True, rows=rows, **options)
            found = found.replace(extra={name: made})
        return part(Context(found, batch, config, name, scalars))[0]

    hard = {} if reps.negatives is None else reps.negatives.embeddings
    learned = params, (reps.embeddings, reps.vectors, hard), scalars
    return traced_flops(jax.grad(loss), learned, batch)


def _abstract_reps(config: Config, vocab_size: int) -> Reps:
    """The embeddings of all fields and of hard negatives, as the step makes them.

    Term ids stay concrete arrays, as nothing is differentiated by them.
    """

    def reps(fields: Iterable[str], *rows: int) -> Reps:
        embeddings, bow = {}, {}
        for name in fields:
            field = config.fields[name]
            shape = (*rows, *field.head.embedding_shape(config, name, vocab_size))
            embeddings[name] = jax.ShapeDtypeStruct(shape, jnp.float32)
            if field.head.lexical and field.modality == "text":
                bow[name] = jnp.zeros((*rows, field.length), jnp.int32)
        return Reps(embeddings=embeddings, bow=bow, raw=embeddings)

    found, hard = reps(config.encoded, config.batch_size), negatives_field(config)
    if hard:
        deep = reps([hard], config.batch_size, config.negatives.count)
        found = found.replace(negatives=deep)  # type: ignore
    return found.replace(vectors=_abstract_vectors(config, vocab_size))  # type: ignore


def _abstract_vectors(config: Config, vocab_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The towers' vectors of those fields whose vectors some loss reads."""
    model = make_model(config, vocab_size)
    if not model.keep_vectors:
        return {}
    inputs = {name: model.example_inputs()[name] for name in model.keep_vectors}
    (found, _) = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), inputs))
    return {
        name: jax.ShapeDtypeStruct((config.batch_size, *x.shape[1:]), x.dtype)
        for name, x in found.vectors.items()
    }
