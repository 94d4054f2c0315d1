"""Arithmetic in s and s_max, as a config writes it: parsed and walked, never run as code."""

import ast
import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from big_retrieval.errors import UserError

Names = dict[str, np.ndarray]
Part = Callable[[Names], np.ndarray]
Formula = Callable[[np.ndarray, float], np.ndarray]

LONGEST = 500  # characters; nobody can read a longer one
ALLOWED = (
    "s, s_max, numbers, + - * / **, parentheses, sqrt log exp abs min max, and A if B else C where "
    "B compares"
)
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_OF_ONE = {"sqrt": np.sqrt, "log": np.log, "exp": np.exp, "abs": np.abs}
_OF_SEVERAL = {"min": np.minimum, "max": np.maximum}


class _Refused(Exception):
    """A part that is not allowed; says what it is."""


def compile_formula(text: str, key: str) -> Formula:
    """The function that an expression is.

    Args:
      text: such as `sqrt(s / s_max)` or `1 if s >= 50 else s / 50`.
      key: of the config, for messages.

    Returns:
      (scores [n], s_max) -> float64 [n]; NaN and infinities stand where arithmetic gives them. Of
      `A if B else C`, the value that is not chosen does no harm.

    Raises:
      UserError: it cannot be read, or something in it is not allowed; both are named.
    """
    if len(text) > LONGEST:
        raise UserError(f"{key} has {len(text)} characters; shorten it to at most {LONGEST}.")
    try:
        part = _number(ast.parse(text.strip(), mode="eval").body)
    except _Refused as problem:
        raise UserError(f"{key} {text!r} has {problem}; use {ALLOWED}.") from None
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError) as problem:
        why = getattr(problem, "msg", None) or str(problem) or "nested too deeply"
        raise UserError(f"{key} {text!r} cannot be read ({why}); use {ALLOWED}.") from None

    def formula(s: np.ndarray, s_max: float) -> np.ndarray:
        names = {"s": np.asarray(s, np.float64), "s_max": np.asarray(s_max, np.float64)}
        with np.errstate(all="ignore"):  # the caller says which score has no finite weight
            return np.broadcast_to(part(names), np.shape(s)).astype(np.float64)

    return formula


def _number(node: ast.expr) -> Part:
    """A part whose value is a number."""
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = np.array(value, np.float64)  # a power of integers could take for ever
        return lambda names: number
    if isinstance(node, ast.Name) and node.id in ("s", "s_max"):
        return lambda names: names[node.id]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _applied(_OPERATORS[type(node.op)], [node.operand])
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _applied(_OPERATORS[type(node.op)], [node.left, node.right])
    if isinstance(node, ast.IfExp):
        test, body, other = _condition(node.test), _number(node.body), _number(node.orelse)
        return lambda names: np.where(test(names), body(names), other(names))
    if isinstance(node, ast.Call):
        return _call(node)
    if isinstance(node, ast.Name):
        raise _Refused(f"the name {node.id!r}")
    raise _Refused(f"{ast.unparse(node)!r} where a number must stand")


def _call(node: ast.Call) -> Part:
    name = ast.unparse(node.func)
    if name not in _OF_ONE and name not in _OF_SEVERAL:
        raise _Refused(f"a call of {name!r}")
    wrong = len(node.args) != 1 if name in _OF_ONE else len(node.args) < 2
    if wrong or node.keywords:
        count = "one value" if name in _OF_ONE else "two values or more"
        raise _Refused(f"{ast.unparse(node)!r}, where {name} takes {count}")
    if name in _OF_ONE:
        return _applied(_OF_ONE[name], node.args)
    pairwise = _OF_SEVERAL[name]
    return _applied(lambda *values: functools.reduce(pairwise, values), node.args)


def _condition(node: ast.expr) -> Part:
    """A comparison, such as 10 <= s < 20."""
    if not isinstance(node, ast.Compare):
        raise _Refused(f"{ast.unparse(node)!r} behind an if, which needs a comparison")
    for sign in node.ops:
        if type(sign) not in _OPERATORS:
            raise _Refused(f"the comparison {ast.unparse(node)!r}")
    sides = [_number(side) for side in (node.left, *node.comparators)]
    signs = [_OPERATORS[type(sign)] for sign in node.ops]

    def holds(names: Names) -> np.ndarray:
        values = [side(names) for side in sides]
        steps = zip(signs, values, values[1:], strict=False)
        return functools.reduce(np.logical_and, [sign(a, b) for sign, a, b in steps])

    return holds


def _applied(function: Callable[..., np.ndarray], nodes: list[ast.expr]) -> Part:
    parts = [_number(node) for node in nodes]
    return lambda names: function(*(part(names) for part in parts))
