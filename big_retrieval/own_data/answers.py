"""The config for questions with answers."""

from typing import Any

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.own_data import tasks
from big_retrieval.own_data.machine import Machine
from big_retrieval.own_data.tasks import Lines, TrainingTask


def answers(task: TrainingTask, machine: Machine) -> tuple[Any, Lines, float]:
    """Questions and answers: one text encoder for both sides."""
    roles, c = task.roles, recipe.base()
    c.evals = {}
    make = _random if task.init is None else _published
    head, note, share = make(c, task, machine)
    lengths = {"query": 32 if machine.small else 64, "document": 64 if machine.small else 256}
    query, document = (
        {
            "column": roles[role],
            "length": tasks.length_of(task.columns[roles[role]], most),
            "head": head,
            "tower": "text",
        }
        for role, most in lengths.items()
    )
    c.fields.query = recipe.entry(configs.TextField(), **query)
    c.fields.answer = recipe.entry(
        configs.TextField(), side="document", shares_head="query", title=roles["title"], **document
    )
    if roles["negative"]:
        c.negatives.update(count=1, column=roles["negative"])
    tasks.pair_evaluators(c, task, "query", "answer")
    return c, {"Model": [note]}, share


def _published(c: Any, task: TrainingTask, machine: Machine) -> tuple[Any, str, float]:
    """The tower of published weights; gives the head, a note, and the speed's share."""
    theirs = tasks.published(task, ("text",))
    c.towers.text = recipe.entry(theirs.towers["text"])
    head = next(each.head for each in theirs.fields.values() if each.tower == "text")
    has_head = getattr(head, "dim", None) is not None
    c.init.text = recipe.entry(configs.Init(), path=str(task.init), head=has_head)
    c.tokenizer, c.topology = recipe.entry(theirs.tokenizer), "sphere"
    batch = 32 if machine.small else tasks.gpu_batch(machine) // 4
    most = 150 * max(1, machine.cores // 2) if machine.small else 20_000
    tasks.run_length(c, task, machine, batch, 3, (50, most), 10, lr=2e-5, weight_decay=0.01)
    c.optimizer.schedule.type = "linear"
    c.losses.main.logit_scale.init = 20.0
    note = f"From the published weights in {task.init}, which are on this machine."
    return head, note, tasks.EFFICIENCY["published"]


def _random(c: Any, task: TrainingTask, machine: Machine) -> tuple[Any, str, float]:
    """A small tower of random weights; gives the same."""
    width, depth = (64, 2) if machine.small and machine.cores < tasks.MANY_CORES else (256, 4)
    c.towers.text = recipe.entry(
        configs.Bert(), width=width, depth=depth, heads=width // 32, mlp=4 * width,
        pool="mean", embedding_std=0.5,
    )  # fmt: skip
    batch = 64 if machine.small else tasks.gpu_batch(machine)
    tasks.run_length(c, task, machine, batch, 20, (200, 1500), lr=1e-3, weight_decay=0.05)
    note = (
        f"From random weights, as no published ones are on this machine ({machine.told()}): "
        "--init=FOLDER of a sentence-transformers model gives far better results."
    )
    return configs.Projection(dim=width), note, tasks.EFFICIENCY["small"]
