"""Compiles the steps of a plan, also if they do not fit into the device's memory."""

import re
import time
from typing import Any

from big_retrieval.compiled.figures import compiled_figures
from big_retrieval.errors import UserError
from big_retrieval.plan.environment import empty_schedules
from big_retrieval.train.build import BuiltModel
from big_retrieval.train.step import Step, abstract_batch, compile_step

# The TPU's compiler refuses a step that needs more memory than the chip has. It names the total, or
# one array that is too large alone.
_TOO_LARGE = re.compile(
    r"(?:memory space hbm\.\s+Used |TensorCore Hbm usage: |Allocation \(size=)([\d.]+)([KMGT]?)"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def compile_plan(parts: BuiltModel) -> dict[str, Any]:
    """Returns the figures of the phase whose step takes the most memory.

    They are `figures.compiled_figures` and the `seconds` of compiling. A step that the compiler
    refuses for its size has `total_bytes` only, with the other figures None or empty.
    """
    figures = [_compile(parts, step) for step in different_steps(parts)]
    return max(figures, key=lambda entry: entry["total_bytes"])


def different_steps(parts: BuiltModel) -> list[Step]:
    """Returns the steps of phases that train other parameters, or differ in batch statistics."""
    updates = parts.updates
    kinds = [(updates.trained(i), span.phase.batch_stats) for i, span in enumerate(updates.spans)]
    return [parts.steps[i] for i, kind in enumerate(kinds) if kind not in kinds[:i]]


def _compile(parts: BuiltModel, step: Step) -> dict[str, Any]:
    start, schedules = time.monotonic(), empty_schedules()
    batch, device = abstract_batch(parts.config, parts.mesh), parts.mesh.devices.flat[0]
    try:
        compiled = compile_step(step, parts.abstract, batch, parts.mesh)
        figures = compiled_figures(compiled, schedules)
    except (RuntimeError, ValueError) as error:  # RuntimeError: the class of jax's errors
        too_large = _TOO_LARGE.search(str(error))
        if too_large is None:
            if isinstance(error, ValueError):
                raise
            reason = str(error).strip().partition("\n")[0]
            raise UserError(f"The compiler for {device.device_kind} failed: {reason}") from None
        figures = _too_large(round(float(too_large[1]) * _UNITS[too_large[2]]))
    device_info = {"device": device.device_kind, "platform": device.platform}
    return {**device_info, "seconds": round(time.monotonic() - start, 1), **figures}


def _too_large(total: int) -> dict[str, Any]:
    sizes = ("argument_bytes", "temp_bytes", "output_bytes", "wire_bytes")
    unknown = (*sizes, "cycles", "kernel_cycles", "kernel_calls", "unestimated_cycles")
    empty = {"largest_arrays": [], "unestimated": [], "wire_bytes_by_collective": {}}
    return {**dict.fromkeys(unknown), **empty, "total_bytes": total}
