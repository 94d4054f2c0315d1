"""Config of judged pairs, such as clicks (docs/GCL.md)."""

from typing import Any

from big_retrieval.own_data.machine import Machine
from big_retrieval.own_data.tasks import TrainingTask
from big_retrieval.own_data.template import comment, data_section, literal, run_section


def clicks_config(task: TrainingTask, machine: Machine) -> list[str]:
    """Returns the sections of the config."""
    small = machine.is_small
    run = run_section(
        task, machine, batch=256 if small else machine.batch, epochs=5,
        steps=(200, 600) if small else (500, 20_000), lr=2e-3, weight_decay=0.05,
    )  # fmt: skip
    train: Any = task.sources["train"]
    objective = f"""
# Objective
{comment(f"A pair weighs as much as its {task.roles['score']!r}, of at most {task.limit:g}.")}
c.labels.query, c.labels.document = {literal(train.query)}, {literal(train.document)}
c.labels.score, c.labels.s_max = {literal(train.score)}, {task.limit}
c.labels.weight = "linear"
recipe.main_loss(c, config.Contrastive(), divide_by="rows")
c.losses.main.logit_scale.init = 5.0
c.optimizer.clip_norm = None
"""
    both = task.roles["document"] and task.roles["image"]
    ranked = ', documents=("title", "image")' if both else ""
    code = f"recipe.entry(config.Ranking(){ranked})"
    evaluators = dict.fromkeys((name for name in task.sources if name != "train"), code)
    return [run, _model(task, machine), objective, data_section(task, evaluators)]


def _model(task: TrainingTask, machine: Machine) -> str:
    roles, small = task.roles, machine.is_small
    width = 64 if small else 256
    weight = ", weight=0.5" if roles["document"] and roles["image"] else ""
    model = f"""
# Model
{comment(f"From random weights: small towers, for {machine}.")}
shape = {{
    "width": {width}, "depth": {2 if small else 6}, "heads": {width // 32}, "mlp": {4 * width},
    "activation": "gelu_tanh",
}}
head = config.Projection(dim={width})
c.tokenizer.vocab_size = 8192  # learned from the texts
c.towers.text = recipe.entry(config.Bert(), norm="pre", **shape)
c.fields.query = recipe.entry(
    config.TextField(),
    column={literal(roles["query"])},
    length={task.length(roles["query"], 32)},
    head=head,
)
"""
    if roles["document"]:
        model += f"""c.fields.title = recipe.entry(
    config.TextField(),
    column={literal(roles["document"])},
    length={task.length(roles["document"], 64)},
    side="document",
    head=head,
    shares_head="query"{weight},
)
"""
    if roles["image"]:
        model += f"""shape["embedding_std"] = 0.5
c.towers.image = recipe.entry(config.ViT(), patch=8, **shape)
c.fields.image = recipe.entry(config.ImageField(), size={32 if small else 128}, head=head{weight})
c.fields.image.update(crop_scale=(0.7, 1.0), crop_ratio=(0.85, 1.18))
"""
    return model
