"""Figures of a compiled step on one device: memory, cycles, and traffic between devices."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from big_retrieval.compiled.kernel_cycles import kernel_cycles
from big_retrieval.compiled.program import Array, Program, read_program

MOST_ARRAYS = 5


def memory_figures(compiled: Any) -> dict[str, int] | None:
    """Returns the compiler's accounting of memory in bytes, or None if it keeps none.

    `argument_bytes` are state and batch, `temp_bytes` all other arrays of a step,
    `output_bytes` results that do not reuse the state's memory.
    """
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    arguments, temporaries = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    output = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        "argument_bytes": arguments,
        "temp_bytes": temporaries,
        "output_bytes": output,
        "total_bytes": arguments + temporaries + output,
    }


def program_figures(program: Program, schedules: Path | None = None) -> dict[str, Any]:
    """Returns cycles, kernels, traffic and large arrays of a program, for JSON.

    One device receives `wire_bytes` per step, and computes nothing during `exposed_wire_bytes`.
    `cycles` are the compiler's estimate; `total_cycles` adds `kernel_cycles` (None without the
    folder of `schedules`) and `unestimated_cycles`.
    """
    wire, hidden = sum(program.wire_bytes.values()), sum(program.overlapped_wire_bytes.values())
    return {
        "cycles": program.cycles,
        "kernel_cycles": None if schedules is None else _kernel_cycles(program, schedules),
        "unestimated_cycles": sum(operation.cycles for operation in program.unestimated),
        "unestimated": [operation._asdict() for operation in program.unestimated[:MOST_ARRAYS]],
        "cycles_by_part": program.cycles_by_part,
        "kernel_calls": sum(kernel.calls for kernel in program.kernels),
        "wire_bytes": wire,
        "exposed_wire_bytes": wire - hidden,
        "wire_bytes_by_collective": program.wire_bytes,
        "loops_of_unknown_length": program.unknown_loops,
        "largest_arrays": _arrays(program.arrays),
    }


def total_cycles(figures: Mapping[str, Any]) -> int | None:
    """Returns cycles with kernels and unestimated operations; None without an estimate."""
    if figures["cycles"] is None:
        return None
    return figures["cycles"] + (figures["kernel_cycles"] or 0) + figures["unestimated_cycles"]


def compiled_figures(compiled: Any, schedules: Path | None = None) -> dict[str, Any]:
    """Returns `memory_figures` and `program_figures` of a compiled step."""
    program = read_program(compiled.as_text() or "")
    return {**(memory_figures(compiled) or {}), **program_figures(program, schedules)}


def _kernel_cycles(program: Program, schedules: Path) -> int | None:
    """Returns the cycles of all kernels; None if the dump lacks one."""
    try:
        return sum(kernel_cycles(program.kernels, schedules).values())
    except (OSError, ValueError):
        return None


def _arrays(arrays: Sequence[Array]) -> list[dict[str, Any]]:
    return [
        {**array._asdict(), "type": array.type.partition("{")[0]} for array in arrays[:MOST_ARRAYS]
    ]
