"""Operations of a program, by tracing it on abstract arrays; two for a multiplication and addition.

Only matrix products and convolutions count, as usual.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from big_retrieval.config import Tower


def traced_flops(function: Callable[..., Any], *args: Any) -> int:
    """Operations of a function.

    Scans count as often as they run, loops of unknown length once, branches as the largest one.

    Args:
      function: traced by jax.
      *args: arrays or abstract arrays.
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
            each = math.prod(kernel) // outputs
            total += 2 * math.prod(equation.outvars[0].aval.shape) * each
        elif name == "cond":
            total += max(_program_flops(branch.jaxpr) for branch in params["branches"])
        else:
            inside = sum(map(_program_flops, inner_programs(params)))
            total += inside * (params["length"] if name == "scan" else 1)
    return total


def inner_programs(params: Mapping[str, Any]) -> Iterator[Any]:
    """The programs inside of an equation: of calls, loops, recomputation, custom derivatives."""
    for value in params.values():
        found = getattr(value, "jaxpr", value)  # a closed one has its program inside
        if hasattr(found, "eqns"):
            yield found


def without_kernels(tower: Tower) -> Tower:
    """The tower without fused kernels, whose products are invisible to `traced_flops`."""
    has_key = any(field.name == "attention" for field in dataclasses.fields(tower))  # type: ignore
    return dataclasses.replace(tower, attention="plain") if has_key else tower  # type: ignore


def by_depth(tower: Tower, count: Callable[[Tower], int]) -> int:
    """What is counted of a tower; of equal layers two, as the second adds what each further does.

    Args:
      tower: its configuration.
      count: of a tower.
    """
    one, two = tower.at_depth(1), tower.at_depth(2)
    if one is None or two is None:
        return count(tower)
    first = count(one)
    return first + (tower.depth - 1) * (count(two) - first)
