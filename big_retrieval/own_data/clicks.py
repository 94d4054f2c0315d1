"""The config for judged pairs, such as clicks."""

from typing import Any

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.own_data import tasks
from big_retrieval.own_data.machine import Machine
from big_retrieval.own_data.tasks import Lines, TrainingTask


def clicks(task: TrainingTask, machine: Machine) -> tuple[Any, Lines, float]:
    """Judged pairs: queries, and documents with an image, a title or both (docs/GCL.md)."""
    roles, c = task.roles, recipe.base()
    c.evals, both = {}, bool(roles["image"] and roles["document"])
    width = 64 if machine.small else 256
    size = {"width": width, "depth": 2 if machine.small else 6, "heads": width // 32}
    size["mlp"] = 4 * width
    head = configs.Projection(dim=width)
    c.towers.text = recipe.entry(configs.Bert(), norm="pre", activation="gelu_tanh", **size)
    query = task.columns[roles["query"]]
    c.fields.query = recipe.entry(
        configs.TextField(), column=roles["query"], length=tasks.length_of(query, 32), head=head
    )
    weight, documents = 0.5 if both else 1.0, []
    if roles["document"]:
        title = task.columns[roles["document"]]
        c.fields.title = recipe.entry(
            configs.TextField(), side="document", column=roles["document"], head=head,
            length=tasks.length_of(title, 64), shares_head="query", weight=weight,
        )  # fmt: skip
        documents.append("title")
    if roles["image"]:
        pixels = 32 if machine.small else 128
        c.towers.image = recipe.entry(
            configs.ViT(), patch=8, activation="gelu_tanh", embedding_std=0.5, **size
        )
        c.fields.image = recipe.entry(configs.ImageField(), size=pixels, head=head, weight=weight)
        c.fields.image.update(crop_scale=(0.7, 1.0), crop_ratio=(0.85, 1.18))
        documents.append("image")
    batch = 256 if machine.small else tasks.gpu_batch(machine)
    steps = (200, 600) if machine.small else (500, 20_000)
    optimizer: dict[str, Any] = {"lr": 2e-3, "weight_decay": 0.05, "clip_norm": None}
    tasks.run_length(c, task, machine, batch, 5, steps, **optimizer)
    c.losses.main.logit_scale.init = 5.0
    train: Any = task.sources["train"]
    c.labels.update(query=train.query, document=train.document, score=train.score)
    c.labels.update(s_max=task.limit, weight="linear")
    recipe.main_loss(c, configs.Contrastive(), divide_by="rows")
    c.tokenizer.vocab_size = 8192
    ranked = {"documents": tuple(documents)} if both else {}
    tasks.evaluators(c, task, lambda data: recipe.entry(configs.Ranking(), data=data, **ranked))
    notes = {
        "Objective": [
            f"A pair weighs as much as its {roles['score']!r}, of at most {task.limit:g}."
        ],
        "Model": [f"From random weights: small towers, as there are {machine.told()}."],
    }
    return c, notes, tasks.EFFICIENCY["small"]
