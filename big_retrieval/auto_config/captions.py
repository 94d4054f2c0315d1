"""Config of images with captions."""

import numpy as np

from big_retrieval.auto_config.machine import MANY_CORES, Machine
from big_retrieval.auto_config.tasks import (
    TrainingTask,
    comment,
    data_section,
    entry,
    literal,
    pretrained_config,
    run_section,
)
from big_retrieval.config import Config

BEST = "retrieval/validation/R-mean"


def captions_config(task: TrainingTask, machine: Machine) -> list[str]:
    """Returns the sections of the config: two random transformers, or published weights."""
    column = "captions"  # of the records, whatever the column of the table
    if task.init is None:
        length = task.length(column, 48 if machine.is_small else 77)
        run, model = (_small if machine.is_small else _large)(task, machine, length)
    else:
        weights = pretrained_config(str(task.init), ("image", "text"))
        length = getattr(weights.fields["text"], "length", 0)
        run, model = _published_sections(task, machine, weights)
    evaluators = {x: "recipe.entry(config.Retrieval())" for x in task.sources if x != "train"}
    return [run, model, data_section(task, evaluators, [task.cut("text", column, length)])]


def _small(task: TrainingTask, machine: Machine, length: int) -> tuple[str, str]:
    size = 32 if np.median([x for x in task.sample.sides if x] or [224]) <= 64 else 64
    is_wide = machine.cores >= MANY_CORES
    width, depth = (128, 4) if is_wide else (64, 3)
    run = run_section(
        task, machine, batch=256 if is_wide else 128, epochs=30, steps=(200, 1200),
        lr=2e-3, weight_decay=0.1, best_metric=BEST,
    )  # fmt: skip
    model = f"""
# Model
{comment(f"From random weights: small towers, images of {size} pixels, for {machine}.")}
shape = {{
    "width": {width}, "depth": {depth}, "heads": {width // 32}, "mlp": {4 * width},
    "activation": "gelu_tanh", "embedding_std": 0.5,
}}
c.towers.image = recipe.entry(config.ViT(), patch={size // 4}, **shape)
c.towers.text = recipe.entry(config.Bert(), norm="pre", **shape)
recipe.image_text(c, dim=64, size={size}, length={length})
c.fields.image.update(crop_scale=(0.7, 1.0), crop_ratio=(0.85, 1.18))
c.losses.main.logit_scale.init = 5.0
c.tokenizer.vocab_size = 4096  # learned from the captions
"""
    return run, model


def _large(task: TrainingTask, machine: Machine, length: int) -> tuple[str, str]:
    run = run_section(
        task, machine, batch=machine.batch, epochs=30, steps=(300, 20_000),
        lr=5e-4, weight_decay=0.1, best_metric=BEST,
    )  # fmt: skip
    model = f"""
# Model
{comment(f"From random weights: a ViT-S/16 and a BERT of its size, for {machine}.")}
c.towers.image = recipe.vit("S/16")
c.towers.text = recipe.entry(config.Bert(), width=384, depth=6, heads=6, mlp=1536)
recipe.image_text(c, dim=256, size=224, length={length})
c.losses.main.logit_scale.init = 1 / 0.07
c.tokenizer.vocab_size = 16384  # learned from the captions
"""
    return run, model


def _published_sections(task: TrainingTask, machine: Machine, weights: Config) -> tuple[str, str]:
    run = run_section(
        task, machine, batch=32 if machine.is_small else machine.batch // 2, epochs=3,
        steps=(50, 150 if machine.is_small else 10_000), lr=1e-5, weight_decay=0.1, warmup=10,
        best_metric=BEST,
    )  # fmt: skip
    model = f"""
# Model
{comment(f"From the published weights in {task.init}.")}
c.towers.image = {entry(weights.towers["image"])}
c.towers.text = {entry(weights.towers["text"])}
c.fields.image = {entry(weights.fields["image"])}
c.fields.text = {entry(weights.fields["text"])}
c.init.model = recipe.entry(config.Init(), path={literal(str(task.init))})
c.tokenizer = {entry(weights.tokenizer)}
c.topology = {literal(weights.topology)}
"""
    return run, model
