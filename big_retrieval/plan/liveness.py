"""Bytes that a traced program holds at its fullest moment."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from big_retrieval.models.flops import inner_programs


def peak_bytes(function: Callable[..., Any], *args: Any) -> int:
    """Bytes of the intermediate and final arrays that live at the same time, at the most.

    An array lives from the operation that makes it to the last one that reads it; arguments do not
    count. A compiler fuses operations and mostly holds less; where it runs them in another order,
    it can hold more.

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
