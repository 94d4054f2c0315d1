"""Operations of a training step, and the time that they take at least.

A multiplication and an addition count as two operations. Model operations are those of the towers'
forward and backward passes (3 forward passes), the usual base of MFU. Executed operations add the
loss and what is computed twice.
"""

import dataclasses
from typing import Any

from big_retrieval.config import Config, negatives_field
from big_retrieval.models.towers import RetrievalModel, make_model
from big_retrieval.plan.loss_flops import loss_flops
from big_retrieval.runtime.chips import Chip

TIMES = ("step", "compute", "wire", "exposed_wire", "bound", "mfu")


def flops(config: Config, vocab_size: int) -> dict[str, int]:
    """Operations of one step over all devices.

    Returns:
      `towers`: forward and backward passes, also of hard negatives; `recomputation`: by remat and
      micro-batches; `loss`: all losses and the networks that they own.
    """
    sliced = config.microbatch is not None and config.microbatch < config.batch_size
    model = make_model(config, vocab_size)
    towers = again = 0
    for name in config.encoded:
        times = 1 + (config.negatives.count if name == negatives_field(config) else 0)
        forward = model.field_flops(name)
        towers += times * 3 * forward
        again += times * (_computed_again(model, name) + sliced * forward)
    n = config.batch_size
    loss = sum(loss_flops(config, name, vocab_size) for name in config.losses)
    return {"towers": n * towers, "recomputation": n * again, "loss": loss}


def _computed_again(model: RetrievalModel, name: str) -> int:
    """Operations of a field's tower that the backward pass repeats for one row (`remat`)."""
    used = model.fields[name].tower
    if model.towers[used].remat == "none":
        return 0
    kept = dataclasses.replace(model.towers[used], remat="none")  # type: ignore
    plain = model.clone(towers={**model.towers, used: kept})
    return model.field_flops(name, backward=True) - plain.field_flops(name, backward=True)


def times(
    chip: Chip | None, devices: int, operations: dict[str, int], program: dict[str, Any] | None
) -> dict[str, float | None]:
    """Returns the seconds of a step and MFU, as far as compiler and data sheet give them.

    Only the TPU's compiler estimates cycles. Cycles of kernels are added, and the time of
    collectives during which nothing is computed, by the data sheet's speed of the links.
    Everywhere else there is only `bound`: no step is faster than its operations at the chip's
    bfloat16 peak, nor than its traffic.

    Args:
      chip: nominal figures.
      devices: number of devices.
      operations: from `flops`.
      program: from `figures.program_figures`; None if nothing was compiled.

    Returns:
      `step`, `compute`, `wire`, `exposed_wire`, `bound` in seconds and `mfu` of the bfloat16 peak;
      None for unknown ones.
    """
    out: dict[str, float | None] = dict.fromkeys(TIMES)
    if chip is None or chip.bfloat16 is None:
        return out
    speed, peak = chip.speed(devices), chip.bfloat16 * devices
    bound = sum(operations.values()) / peak
    if program is not None and speed is not None and program["wire_bytes"] is not None:
        out["wire"], exposed = program["wire_bytes"] / speed, program["exposed_wire_bytes"] / speed
        out["exposed_wire"], bound = exposed, max(bound, out["wire"])
        if program["cycles"] is not None and chip.clock is not None:
            out["compute"] = (program["cycles"] + (program["kernel_cycles"] or 0)) / chip.clock
            out["step"] = max(out["compute"] + exposed, out["wire"])
            out["mfu"] = operations["towers"] / peak / out["step"]
    return out | {"bound": bound}
