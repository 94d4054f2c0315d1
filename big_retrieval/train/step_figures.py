"""Figures of the compiled training step, logged at the start of a run."""

import logging
from typing import Any

import jax

from big_retrieval.compiled.figures import memory_figures, program_figures
from big_retrieval.compiled.program import read_program
from big_retrieval.runtime import chips
from big_retrieval.runtime.chips import gib

MAX_TEXT = 16_000_000  # characters; a longer program takes more than a second to read
RECORDED = (
    "argument_bytes", "temp_bytes", "output_bytes", "total_bytes", "wire_bytes",
    "exposed_wire_bytes", "cycles", "kernel_calls",
)  # fmt: skip
log = logging.getLogger(__name__)


def log_step(compiled: Any, device: Any) -> dict[str, Any]:
    """Logs memory, traffic and cycles of a compiled step on one device, and warns if it is too big.

    Returns:
      Figures named in `RECORDED`, for environment.json; those that the compiler does not give are
      left out.
    """
    figures: dict[str, Any] = memory_figures(compiled) or {}
    if figures:
        _log_memory(figures, device)
    text = compiled.as_text() or ""
    if 0 < len(text) <= MAX_TEXT:
        figures |= program_figures(read_program(text))
        _log_program(figures, device)
    return {name: figures[name] for name in RECORDED if figures.get(name) is not None}


def _log_memory(figures: dict[str, Any], device: Any) -> None:
    total = figures["total_bytes"]
    chip = chips.of_kind(device.device_kind, jax.local_device_count())
    limit = "" if chip is None else f" of {gib(chip.usable)} usable"
    log.info(
        f"memory of a device: {gib(total)}{limit} (state and batch "
        f"{gib(total - figures['temp_bytes'])}, temporaries {gib(figures['temp_bytes'])})"
    )
    if chip is not None and total > chip.usable:
        log.warning(
            "this does not fit: `big-retrieval plan` with the same config names settings that do"
        )


def _log_program(figures: dict[str, Any], device: Any) -> None:
    """Traffic if there is any, and cycles on TPUs."""
    parts, chip = [], chips.of_kind(device.device_kind)
    if figures["wire_bytes"]:
        hidden = figures["wire_bytes"] - figures["exposed_wire_bytes"]
        parts.append(
            f"receives {gib(figures['wire_bytes'])}, {gib(hidden)} of it while it computes"
        )
    if figures["cycles"] is not None and chip is not None and chip.clock is not None:
        seconds = figures["cycles"] / chip.clock
        parts.append(
            f"{figures['cycles']:,} cycles ({seconds:.3g} s) without kernels and transfers"
        )
    if parts:
        log.info(f"by the compiler, a device in a step: {'; '.join(parts)}")
