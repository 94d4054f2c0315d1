"""Operations of towers and heads, forward, for one row: by their formulas, else by tracing."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from big_retrieval.config import Field, Tower
from big_retrieval.sparse.terms import Terms

ROWS = 2  # of the two traced batches the second has as many more; the difference counts rows alone


def tower_flops(tower: Tower, field: Field, vocab_size: int) -> int:
    """Operations of a tower for one row of a field.

    Args:
      tower: its configuration.
      field: that it reads.
      vocab_size: rows of a word table, where the config leaves it open.
    """
    known = tower.flops(field)
    return _traced_tower(tower, field, vocab_size) if known is None else known


def _traced_tower(tower: Tower, field: Field, vocab_size: int) -> int:
    module = tower.build(vocab_size, (field,), parent=None)

    def apply(variables: Any, arrays: Any) -> Any:
        return module.apply(variables, *field.inputs(arrays, jnp.float32), train=False, rows=None)

    def init(key: Any, arrays: Any) -> Any:
        return module.init(key, *field.inputs(arrays, jnp.float32), train=False, rows=None)

    return _of_a_row(apply, init, field)


def head_flops(
    field: Field, tower: Tower, terms: Terms | None, vocab_size: int, topology: str
) -> int:
    """Operations of a field's head for one row.

    Args:
      field: its configuration.
      tower: of the tower that it reads with.
      terms: of a lexical head.
      vocab_size: rows of a word table, where the config leaves it open.
      topology: its projection is counted with a head that has no formula.
    """
    known = field.head.flops(tower, field, terms)
    if known is not None:
        return known
    from big_retrieval.models.towers import RetrievalModel

    name = "field"  # alone in a model, less the tower
    own = {} if terms is None else {name: terms}
    model = RetrievalModel({field.tower: tower}, {name: field}, topology, vocab_size, own)

    def apply(variables: Any, arrays: Any) -> Any:
        return model.apply(variables, {name: arrays})

    def init(key: Any, arrays: Any) -> Any:
        return model.init(key, {name: arrays})

    return _of_a_row(apply, init, field) - _traced_tower(tower, field, vocab_size)


def _of_a_row(apply: Callable[..., Any], init: Callable[..., Any], field: Field) -> int:
    """Operations of `apply(variables, arrays)` for each further row of its arrays."""

    def arrays(rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        shapes = field.shapes().items()
        return {
            key: jax.ShapeDtypeStruct((rows, *shape), jnp.dtype(dtype))
            for key, (shape, dtype) in shapes
        }

    variables = nn.unbox(jax.eval_shape(init, jax.random.key(0), arrays(ROWS)))
    few, more = (traced_flops(apply, variables, arrays(n)) for n in (ROWS, 2 * ROWS))
    return (more - few) // ROWS


def traced_flops(function: Callable[..., Any], *args: Any) -> int:
    """Operations of the matrix products and convolutions of a function, by tracing it.

    Scans count as often as they run, loops of unknown length once, branches as the largest one.

    Args:
      function: traced by jax.
      *args: arrays or abstract arrays.
    """
    return _jaxpr_flops(jax.make_jaxpr(function)(*args).jaxpr)


def _jaxpr_flops(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            left = equation.invars[0].aval.shape
            (contracted, _), _ = params["dimension_numbers"]
            inner = math.prod(left[axis] for axis in contracted)
            total += 2 * math.prod(equation.outvars[0].aval.shape) * inner
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            outputs = kernel[params["dimension_numbers"].rhs_spec[0]]
            each = math.prod(kernel) // outputs
            total += 2 * math.prod(equation.outvars[0].aval.shape) * each
        elif name == "cond":
            total += max(_jaxpr_flops(branch.jaxpr) for branch in params["branches"])
        else:
            inside = sum(map(_jaxpr_flops, inner_programs(params)))
            total += inside * (params["length"] if name == "scan" else 1)
    return total


def inner_programs(params: Mapping[str, Any]) -> Iterator[Any]:
    """The programs inside of an equation: of calls, loops, recomputation, custom derivatives."""
    for value in params.values():
        found = getattr(value, "jaxpr", value)  # a closed one has its program inside
        if hasattr(found, "eqns"):
            yield found
