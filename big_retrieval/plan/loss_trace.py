"""A loss's operations, and its memory if it has no formulas: by tracing on abstract arrays."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, negatives_field
from big_retrieval.config.checks.fields import embedding_shape
from big_retrieval.losses.function import Context
from big_retrieval.losses.objective import with_vocabulary
from big_retrieval.models.flops import inner_programs, traced_flops
from big_retrieval.models.towers import make_model
from big_retrieval.train.step import abstract_batch


class TracedCost(NamedTuple):
    """What a loss costs, with the network that it owns.

    Attributes:
      operations: of a step, over all devices.
      kept: bytes that stay until the backward pass, over all rows.
      passing: further bytes at the fullest moment, such as tiles of scores (see `peak_bytes`).
    """

    operations: int
    kept: int
    passing: int

    def memory(self, rows_over: int) -> int:
        """Bytes on one of several devices; tiles can be as large on each as on a single device."""
        return self.kept // rows_over + self.passing


def traced_cost(config: Config, name: str, vocab_size: int) -> TracedCost:
    """The cost of a loss.

    The loss is traced as on one device, so traffic between devices is not counted.

    Args:
      config: of the run, checked.
      name: of the loss.
      vocab_size: of the tokenizer.
    """
    shapes = [embedding_shape(config, field, vocab_size) for field in config.encoded]
    read = config.losses, config.fields, config.labels, config.negatives, config.topology, shapes
    key = f"{name} {vocab_size} {config.batch_size} {read}"
    if key not in _known:
        _known[key] = _trace(config, name, vocab_size)
    return _known[key]


_known: dict[str, TracedCost] = {}  # a plan asks the same of many candidates


def _trace(config: Config, name: str, vocab_size: int) -> TracedCost:
    function = config.losses[name].build(with_vocabulary(config, vocab_size), name)
    batch = abstract_batch(config, None)
    reps = _abstract_reps(config, vocab_size)
    scalars = {key: jax.ShapeDtypeStruct((), jnp.float32) for key in function.scalars()}
    module = function.module()
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
        return function(Context(found, batch, scalars, 0))[0]

    hard = {} if reps.negatives is None else reps.negatives.embeddings
    learned = params, (reps.embeddings, reps.vectors, hard), scalars
    operations = traced_flops(jax.grad(loss), learned, batch)
    kept = jax.eval_shape(lambda *x: jax.vjp(functools.partial(loss, batch=x[1]), x[0])[1],
                          learned, batch)  # fmt: skip
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(kept))
    peak = peak_bytes(jax.value_and_grad(loss), learned, batch)
    return TracedCost(operations, size, max(0, peak - size))


def _abstract_reps(config: Config, vocab_size: int) -> Reps:
    """The embeddings of all fields and of hard negatives, as the step makes them.

    Term ids stay concrete arrays, as nothing is differentiated by them.
    """

    def reps(fields: Iterable[str], *rows: int) -> Reps:
        embeddings, bow = {}, {}
        for name in fields:
            field = config.fields[name]
            shape = (*rows, *embedding_shape(config, name, vocab_size))
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


def peak_bytes(function: Callable[..., Any], *args: Any) -> int:
    """The most bytes of intermediate and final arrays that live at the same time.

    An array lives from the operation that makes it to the last operation that reads it; arguments
    do not count. A compiler mostly needs less, as it fuses operations, and can need more if it
    reorders them.

    Args:
      function: traced by jax.
      *args: arrays or abstract arrays.
    """
    return _peak(jax.make_jaxpr(function)(*args).jaxpr)


def _peak(jaxpr: Any) -> int:
    last = {v: i for i, equation in enumerate(jaxpr.eqns) for v in equation.invars if _is_made(v)}
    last |= dict.fromkeys(filter(_is_made, jaxpr.outvars), len(jaxpr.eqns))
    alive = dict.fromkeys((*jaxpr.invars, *jaxpr.constvars), 0)
    now = peak = 0
    for i, equation in enumerate(jaxpr.eqns):
        # What an equation holds inside: a loop's body or a call holds its own arrays.
        inside = max(map(_peak, inner_programs(equation.params)), default=0)
        made = {v: _bytes(v) for v in equation.outvars}
        now += sum(made.values())
        peak = max(peak, now + max(0, inside - sum(made.values())))
        alive |= made
        for v in {*filter(_is_made, equation.invars), *equation.outvars}:
            if last.get(v, i) == i:
                now -= alive.pop(v, 0)
    return peak


def _is_made(variable: Any) -> bool:
    """Whether it is a variable and no literal, which cannot be hashed."""
    return not hasattr(variable, "val")


def _bytes(variable: Any) -> int:
    aval = variable.aval
    if not hasattr(aval, "shape") or jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return 0
    return math.prod(aval.shape) * aval.dtype.itemsize
