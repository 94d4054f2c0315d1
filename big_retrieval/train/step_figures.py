"""Memory, time and MFU of a compiled training step, from the compiler's figures and data sheets."""

import logging
from collections.abc import Mapping
from typing import Any

import jax

from big_retrieval.compiled.figures import memory_figures, program_figures, total_cycles
from big_retrieval.compiled.program import read_program
from big_retrieval.config import Config, negatives_field
from big_retrieval.models.towers import RetrievalModel
from big_retrieval.runtime import chips
from big_retrieval.runtime.chips import Chip, gib
from big_retrieval.train.build import BuiltModel

MAX_TEXT = 16_000_000  # characters; a longer program takes more than a second to read
RECORDED = (
    "argument_bytes", "temp_bytes", "output_bytes", "total_bytes", "wire_bytes",
    "exposed_wire_bytes", "cycles", "kernel_calls", "unestimated_cycles",
)  # fmt: skip
TIMES = ("step", "compute", "wire", "exposed_wire", "bound", "mfu", "compute_mfu")
log = logging.getLogger(__name__)


def pair_flops(config: Config, model: RetrievalModel) -> int:
    """Returns the operations of the towers for one pair and its hard negatives, the base of MFU.

    A pair takes three forward passes: the backward pass counts as two.
    """
    field, count = negatives_field(config), config.negatives.count
    return 3 * (model.forward_flops() + (count * model.field_flops(field) if field else 0))


def step_times(
    chip: Chip | None, devices: int, operations: Mapping[str, int], figures: dict[str, Any] | None
) -> dict[str, float | None]:
    """Returns the seconds of a step and MFU; None for figures that are unknown.

    Only the TPU's compiler estimates cycles. Other platforms have only `bound`: no step is faster
    than its operations at the chip's bfloat16 peak, nor than its traffic.

    Args:
      operations: of a step on all devices; `towers` (`pair_flops` of the batch) and others.
      figures: from `program_figures`; None without a compiled program. Kernels whose cycles are
        None make the times too short.

    Returns:
      `compute`: seconds of `total_cycles`.
      `wire`: seconds of all traffic, at the data sheet's speed of the links.
      `exposed_wire`: seconds of the traffic during which nothing is computed.
      `step`: `compute` + `exposed_wire`, at least `wire`.
      `bound`: lower bound of the step.
      `mfu`: share of the bfloat16 peak that the towers' operations use in `step`.
      `compute_mfu`: the same share in `compute`.
    """
    out: dict[str, float | None] = dict.fromkeys(TIMES)
    if chip is None or chip.bfloat16 is None:
        return out
    speed, peak = chip.speed(devices), chip.bfloat16 * devices
    bound = sum(operations.values()) / peak
    if figures is not None and speed is not None and figures["wire_bytes"] is not None:
        out["wire"], exposed = figures["wire_bytes"] / speed, figures["exposed_wire_bytes"] / speed
        out["exposed_wire"], bound = exposed, max(bound, out["wire"])
        cycles = total_cycles(figures)
        if cycles is not None and chip.clock is not None:
            out["compute"] = cycles / chip.clock
            out["step"] = max(out["compute"] + exposed, out["wire"])
            out["mfu"] = operations["towers"] / peak / out["step"]
            out["compute_mfu"] = operations["towers"] / peak / out["compute"]
    return out | {"bound": bound}


def log_step(compiled: Any, parts: BuiltModel) -> dict[str, Any]:
    """Logs memory, traffic and time of a compiled step on one device; warns if it does not fit.

    Returns the known figures among `RECORDED`, for environment.json.
    """
    figures: dict[str, Any] = memory_figures(compiled) or {}
    if figures:
        _log_memory(figures, parts.mesh.devices.flat[0])
    text = compiled.as_text() or ""
    if 0 < len(text) <= MAX_TEXT:
        figures |= program_figures(read_program(text))
        _log_program(figures, parts)
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
        log.warning("this does not fit: `big-retrieval plan` finds settings that fit")


def _log_program(figures: dict[str, Any], parts: BuiltModel) -> None:
    """Logs traffic if there is any, and time on TPUs."""
    messages = []
    if figures["wire_bytes"]:
        hidden = figures["wire_bytes"] - figures["exposed_wire_bytes"]
        messages.append(
            f"receives {gib(figures['wire_bytes'])}, {gib(hidden)} of it while it computes"
        )
    chip = chips.of_kind(parts.mesh.devices.flat[0].device_kind)
    if figures["cycles"] is not None and chip is not None:
        operations = {"towers": parts.config.batch_size * pair_flops(parts.config, parts.model)}
        times = step_times(chip, parts.mesh.size, operations, figures)
        if times["step"] is not None and times["mfu"] is not None:
            # The cycles of custom kernels are unknown here.
            least, most = ("at least", "at most") if figures["kernel_calls"] else ("about", "about")
            share = figures["unestimated_cycles"] / (total_cycles(figures) or 1)
            rules = f" ({share:.0%} of it our estimate of scatter, gather and sort)"
            rules = rules if share > 0.01 else ""
            messages.append(f"{least} {times['step']:.3g} s{rules}, MFU {most} {times['mfu']:.0%}")
    if messages:
        log.info(f"by the compiler, a device in a step: {'; '.join(messages)}")
