"""Cycles of TPU operations without an estimate of the compiler: scatter, gather, sort, top-k.

The rules are fitted to the schedules of 30 operations for v5e (libtpu 0.0.42). They are within a
factor of 2 of most of these schedules, and of most of 15 others for v5p and v6e. Loops whose length
depends on the data count once. Not counted: waits for memory, scatters on SparseCores (v5p, v6e),
scalars, slices, relayouts, and copies between memories.
"""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from big_retrieval.compiled.hlo import ArrayType, Visit, array_types

CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
LANES = 128  # numbers of a row that one instruction adds
_SIZES = r"=\{([\d,]*)\}"
_WINDOW, _SLICE = re.compile("update_window_dims" + _SIZES), re.compile("slice_sizes" + _SIZES)
_DIMENSION = re.compile("dimensions" + _SIZES)
_TOP_K = 'custom_call_target="TopK"'


class Unestimated(NamedTuple):
    """Operations of one kind and shape."""

    kind: str  # scatter, gather, sort or top-k
    type: str  # of the array to add, gather, sort or search, e.g. `f32[11776,512]`
    calls: int  # number of calls per step
    cycles: int  # of all calls, by the rules of this module


def unestimated_operations(visits: Iterable[Visit]) -> list[Unestimated]:
    """Returns the operations without the compiler's estimate, most cycles first.

    Args:
      visits: result of `walk` for a TPU program. A fusion counts as its most expensive operation.
    """
    largest: dict[int, tuple[float, str, str, int]] = {}  # by fusion: cycles, kind, type, trips
    for visit in visits:
        operation = _operation(visit)
        if operation is None:
            continue
        outer = visit
        while outer.fused and outer.caller is not None:
            outer = outer.caller
        if not CYCLES.search(outer.instruction.text):
            kind, array, cycles = operation
            name = f"{array.dtype}[{','.join(map(str, array.shape))}]"
            entry = (cycles, kind, name, outer.trips)
            largest[id(outer)] = max(entry, largest.get(id(outer), entry))
    totals: dict[tuple[str, str], tuple[int, float]] = {}
    for cycles, kind, name, trips in largest.values():
        calls, total = totals.get((kind, name), (0, 0.0))
        totals[kind, name] = (calls + trips, total + trips * cycles)
    rows = [Unestimated(*key, calls, round(total)) for key, (calls, total) in totals.items()]
    return sorted(rows, key=lambda row: -row.cycles)


def _operation(visit: Visit) -> tuple[str, ArrayType, float] | None:
    """Returns kind, array and cycles of a call; None for an operation without a rule."""
    instruction = visit.instruction
    opcode, text = instruction.opcode, instruction.text
    if opcode == "scatter":
        updates = _operand(visit, -1)
        row = math.prod(updates.shape[axis] for axis in _numbers(_WINDOW, text))
        return opcode, updates, math.prod(updates.shape) / row * (9 + 3 * row / LANES)
    if opcode == "gather":
        result = array_types(instruction.type)[0]
        return opcode, result, 5 * math.prod(result.shape) / math.prod(_numbers(_SLICE, text))
    if opcode == "sort":  # sorting network: n (n + 1) / 2 stages for 2**n elements
        keys = array_types(instruction.type)[0]
        steps = (keys.shape[_numbers(_DIMENSION, text)[0]] - 1).bit_length()
        return opcode, keys, 0.008 * math.prod(keys.shape) * steps * (steps + 1) / 2
    if opcode == "custom-call" and _TOP_K in text:
        searched, results = _operand(visit, 0), math.prod(array_types(instruction.type)[0].shape)
        return "top-k", searched, results * (18 + 0.002 * searched.shape[-1])
    return None


def _operand(visit: Visit, index: int) -> ArrayType:
    name = visit.instruction.operands[index]
    return array_types(visit.computation.instructions[name].type)[0]


def _numbers(pattern: re.Pattern[str], text: str) -> list[int]:
    match = pattern.search(text)
    return [int(number) for number in match[1].split(",") if number] if match else []
