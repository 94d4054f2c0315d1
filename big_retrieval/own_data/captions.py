"""The config for images with captions."""

from typing import Any

import numpy as np

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.own_data import tasks
from big_retrieval.own_data.machine import Machine
from big_retrieval.own_data.tasks import Lines, TrainingTask

MANY_CORES = 8  # from which a CPU gets a larger model


def captions(task: TrainingTask, machine: Machine) -> tuple[Any, Lines, float]:
    """Images with captions: two small transformers, or published ones of both."""
    text = task.columns[task.roles["text"]]
    c, c.evals = recipe.base(), {}
    if task.init is not None:
        return _published_captions(c, task, machine)
    sides = task.columns[task.roles["image"]].sides or [224]
    size = 32 if np.median(sides) <= 64 else 64
    if machine.small:
        wide = machine.cores >= MANY_CORES
        shape: dict[str, Any] = {"width": 128 if wide else 64, "depth": 4 if wide else 3}
        shape |= {"heads": shape["width"] // 32, "mlp": 4 * shape["width"]}
        patch, length, dim = size // 4, tasks.length_of(text, 48), 64
        tasks.run_length(c, task, machine, 256 if wide else 128, 30, (200, 1200))
        why = f"small towers, images of {size} pixels, as there are {machine.told()}"
    else:
        shape, size, patch, length, dim = {}, 224, 16, tasks.length_of(text, 77), 256
        tasks.run_length(c, task, machine, tasks.gpu_batch(machine), 30, (300, 20_000))
        why = f"a ViT-S/16 and a BERT of its size, as there is {machine.told()}"
    if shape:
        start = {"activation": "gelu_tanh", "embedding_std": 0.5}
        c.towers.image = recipe.entry(configs.ViT(), patch=patch, **shape, **start)
        c.towers.text = recipe.entry(configs.Bert(), norm="pre", **shape, **start)
        recipe.image_text(c, dim=dim, size=size, length=length)
        c.fields.image.update(crop_scale=(0.7, 1.0), crop_ratio=(0.85, 1.18))
        c.optimizer.update(lr=2e-3, weight_decay=0.1)
    else:
        c.towers.image = recipe.vit("S/16")
        c.towers.text = recipe.entry(configs.Bert(), width=384, depth=6, heads=6, mlp=1536)
        recipe.image_text(c, dim=dim, size=size, length=length)
        c.optimizer.update(lr=5e-4, weight_decay=0.1)
    c.losses.main.logit_scale.init = 5.0 if machine.small else 1 / 0.07
    c.optimizer.schedule.warmup_steps = max(1, c.total_steps // 15)
    c.tokenizer.vocab_size = 4096 if machine.small else 16384
    tasks.evaluators(c, task, "text", "image")
    notes = {"Model": [f"From random weights: {why}."]}
    return c, notes, tasks.EFFICIENCY["small"]


def _published_captions(c: Any, task: TrainingTask, machine: Machine) -> tuple[Any, Lines, float]:
    theirs = tasks.published(task, ("image", "text"))
    for name in ("image", "text"):
        c.towers[name] = recipe.entry(theirs.towers[name])
        c.fields[name] = recipe.entry(theirs.fields[name])
    c.init.model = recipe.entry(configs.Init(), path=str(task.init))
    c.tokenizer, c.topology = recipe.entry(theirs.tokenizer), theirs.topology
    tasks.run_length(
        c, task, machine, 32 if machine.small else tasks.gpu_batch(machine) // 2, 3, (50, 10_000)
    )
    if machine.small:
        c.total_steps = min(c.total_steps, 150)
    c.optimizer.update(lr=1e-5, weight_decay=0.1)
    c.optimizer.schedule.warmup_steps = max(1, c.total_steps // 10)
    tasks.evaluators(c, task, "text", "image")
    return (
        c,
        {"Model": [f"From the published weights in {task.init}."]},
        tasks.EFFICIENCY["published"],
    )
