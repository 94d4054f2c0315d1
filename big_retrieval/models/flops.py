"""Counts of the operations in matrix products and convolutions, by tracing on abstract arrays."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from big_retrieval.config import Tower


def traced_flops(function: Callable[..., Any], *args: Any) -> int:
    """Returns the operations of a function; a multiplication with its addition counts as two.

    A scan counts once per iteration, a loop of unknown length once, and a conditional as its
    largest branch.
    """
    return _program_flops(jax.make_jaxpr(function)(*args).jaxpr)


def _program_flops(jaxpr: Any) -> int:
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
            per_output = math.prod(kernel) // outputs
            total += 2 * math.prod(equation.outvars[0].aval.shape) * per_output
        elif name == "cond":
            total += max(_program_flops(branch.jaxpr) for branch in params["branches"])
        else:
            inside = sum(map(_program_flops, inner_programs(params)))
            total += inside * (params["length"] if name == "scan" else 1)
    return total


def inner_programs(params: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the programs inside an equation: calls, loops, recomputation, custom derivatives."""
    for value in params.values():
        program = getattr(value, "jaxpr", value)  # opens a closed one
        if hasattr(program, "eqns"):
            yield program


def without_kernels(tower: Tower) -> Tower:
    """Returns the tower without fused kernels, whose products `traced_flops` cannot see."""
    plain = getattr(tower, "attention", "plain") == "plain"
    return tower if plain else dataclasses.replace(tower, attention="plain")  # type: ignore


def by_depth(tower: Tower, count: Callable[[Tower], int]) -> int:
    """Returns `count(tower)`, extrapolated from one and two layers if all layers are equal."""
    one, two = tower.at_depth(1), tower.at_depth(2)
    if one is None or two is None:
        return count(tower)
    first = count(one)
    return first + (tower.depth - 1) * (count(two) - first)
