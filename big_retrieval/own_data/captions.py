"""The config for images with captions."""

from typing import Any

import numpy as np

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.own_data import tasks
from big_retrieval.own_data.machine import Machine
from big_retrieval.own_data.tasks import Lines, TrainingTask


def captions(task: TrainingTask, machine: Machine) -> tuple[Any, Lines, float]:
    """Images with captions: two small transformers, or published ones of both."""
    text = task.columns[task.roles["text"]]
    c, c.evals = recipe.base(), {}
    if task.init is not None:
        return _published_captions(c, task, machine)
    sides = task.columns[task.roles["image"]].sides or [224]
    size = 32 if np.median(sides) <= 64 else 64
    length = tasks.length_of(text, 48 if machine.small else 77)
    if machine.small:
        wide = machine.cores >= tasks.MANY_CORES
        shape: dict[str, Any] = {"width": 128 if wide else 64, "depth": 4 if wide else 3}
        shape |= {"heads": shape["width"] // 32, "mlp": 4 * shape["width"]}
        shape |= {"activation": "gelu_tanh", "embedding_std": 0.5}
        batch, steps = 256 if wide else 128, (200, 1200)
        tasks.run_length(c, task, machine, batch, 30, steps, lr=2e-3, weight_decay=0.1)
        c.towers.image = recipe.entry(configs.ViT(), patch=size // 4, **shape)
        c.towers.text = recipe.entry(configs.Bert(), norm="pre", **shape)
        recipe.image_text(c, dim=64, size=size, length=length)
        c.fields.image.update(crop_scale=(0.7, 1.0), crop_ratio=(0.85, 1.18))
        c.losses.main.logit_scale.init, c.tokenizer.vocab_size = 5.0, 4096
        why = f"small towers, images of {size} pixels, as there are {machine.told()}"
    else:
        batch, steps = tasks.gpu_batch(machine), (300, 20_000)
        tasks.run_length(c, task, machine, batch, 30, steps, lr=5e-4, weight_decay=0.1)
        c.towers.image = recipe.vit("S/16")
        c.towers.text = recipe.entry(configs.Bert(), width=384, depth=6, heads=6, mlp=1536)
        recipe.image_text(c, dim=256, size=224, length=length)
        c.losses.main.logit_scale.init, c.tokenizer.vocab_size = 1 / 0.07, 16384
        why = f"a ViT-S/16 and a BERT of its size, as there is {machine.told()}"
    tasks.pair_evaluators(c, task, "text", "image")
    return c, {"Model": [f"From random weights: {why}."]}, tasks.EFFICIENCY["small"]


def _published_captions(c: Any, task: TrainingTask, machine: Machine) -> tuple[Any, Lines, float]:
    theirs = tasks.published(task, ("image", "text"))
    for name in ("image", "text"):
        c.towers[name] = recipe.entry(theirs.towers[name])
        c.fields[name] = recipe.entry(theirs.fields[name])
    c.init.model = recipe.entry(configs.Init(), path=str(task.init))
    c.tokenizer, c.topology = recipe.entry(theirs.tokenizer), theirs.topology
    batch = 32 if machine.small else tasks.gpu_batch(machine) // 2
    steps = (50, 150 if machine.small else 10_000)
    tasks.run_length(c, task, machine, batch, 3, steps, 10, lr=1e-5, weight_decay=0.1)
    tasks.pair_evaluators(c, task, "text", "image")
    note = f"From the published weights in {task.init}."
    return c, {"Model": [note]}, tasks.EFFICIENCY["published"]
