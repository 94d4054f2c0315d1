"""Operations of a training step.

A multiplication and an addition count as two operations. Model operations are `pair_flops` of all
pairs, the base of MFU. Executed operations add the loss and what is computed twice.
"""

import dataclasses

from big_retrieval.config import Config, negatives_field
from big_retrieval.models.towers import RetrievalModel, make_model
from big_retrieval.plan.loss_flops import loss_flops
from big_retrieval.train.step_figures import pair_flops


def flops(config: Config, vocab_size: int) -> dict[str, int]:
    """Operations of one step over all devices.

    Returns:
      `towers`: forward and backward passes, also of hard negatives; `recomputation`: by remat and
      micro-batches; `loss`: all losses and the networks that they own.
    """
    sliced = config.microbatch is not None and config.microbatch < config.batch_size
    model = make_model(config, vocab_size)
    again = 0
    for name in config.encoded:
        times = 1 + (config.negatives.count if name == negatives_field(config) else 0)
        again += times * (_computed_again(model, name) + sliced * model.field_flops(name))
    n = config.batch_size
    loss = sum(loss_flops(config, name, vocab_size) for name in config.losses)
    return {"towers": n * pair_flops(config, model), "recomputation": n * again, "loss": loss}


def _computed_again(model: RetrievalModel, name: str) -> int:
    """Operations of a field's tower that the backward pass repeats for one row (`remat`)."""
    used = model.fields[name].tower
    if model.towers[used].remat == "none":
        return 0
    kept = dataclasses.replace(model.towers[used], remat="none")  # type: ignore
    plain = model.clone(towers={**model.towers, used: kept})
    return model.field_flops(name, backward=True) - plain.field_flops(name, backward=True)
