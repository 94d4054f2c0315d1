"""Operations and seconds of a training step.

A multiplication and an addition count as two operations. Model operations are those of the towers'
forward and backward passes (3 forward passes), the usual base of MFU. Executed operations add the
loss and what is computed twice.
"""

import dataclasses

from big_retrieval.config import Config, negatives_field
from big_retrieval.models.towers import RetrievalModel, make_model
from big_retrieval.plan.loss_trace import traced_cost
from big_retrieval.runtime.chips import Chip

# What a good program reaches of the chip's peak, and how much of the computation can hide traffic.
ACHIEVABLE = 0.5
HIDING = 0.5


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
    loss = sum(traced_cost(config, name, vocab_size).operations for name in config.losses)
    return {"towers": n * towers, "recomputation": n * again, "loss": loss}


def _computed_again(model: RetrievalModel, name: str) -> int:
    """Operations of a field's tower that the backward pass repeats for one row (`remat`)."""
    used = model.fields[name].tower
    if model.towers[used].remat == "none":
        return 0
    kept = dataclasses.replace(model.towers[used], remat="none")  # type: ignore
    plain = model.clone(towers={**model.towers, used: kept})
    return model.field_flops(name, backward=True) - plain.field_flops(name, backward=True)


def seconds(
    config: Config, chip: Chip, devices: int, operations: dict[str, int], wire: float
) -> dict[str, float | None]:
    """How long a step should take: arithmetic on data sheets, not a measurement.

    The towers compute at the share `ACHIEVABLE` of their type's peak, the loss at that share of
    float32's peak. To this is added the traffic that the share `HIDING` of the computation cannot
    hide. Loading data is not counted.

    Args:
      config: of the run.
      chip: its nominal figures.
      devices: how many.
      operations: from `flops`.
      wire: bytes received per device.

    Returns:
      `step`, `compute`, `wire`, `exposed_wire` in seconds and `mfu` of the bfloat16 peak; all None
      where the chip's peaks are not known.
    """
    speed, peak = chip.speed(devices), chip.bfloat16
    names = ("step", "compute", "wire", "exposed_wire", "mfu")
    if speed is None or peak is None or chip.float32 is None:
        return dict.fromkeys(names)
    towers = (operations["towers"] + operations["recomputation"]) / devices
    compute = towers / (peak if config.dtype == "bfloat16" else chip.float32)
    compute = (compute + operations["loss"] / devices / chip.float32) / ACHIEVABLE
    travel = wire / speed
    exposed = max(0.0, travel - HIDING * compute)
    step = compute + exposed
    mfu = operations["towers"] / devices / peak / step
    return dict(zip(names, (step, compute, travel, exposed, mfu), strict=True))
