"""The config for some data on a machine: model, batch, steps, and what is measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.config.sources import Source
from big_retrieval.errors import UserError
from big_retrieval.own_data.columns import Column
from big_retrieval.own_data.machine import Machine
from big_retrieval.own_data.roles import Roles
from big_retrieval.runtime.clock import duration

WORDPIECES = 1.4  # of a word, in the mean
MANY_CORES = 8  # from which a CPU gets a larger model
# Share of the speed of a matrix product that a training step reaches: small and wide towers.
EFFICIENCY = {"small": 0.25, "published": 0.6}
START = 40.0  # seconds until the first step, most of them for compiling
Lines = dict[str, list[str]]


@dataclass(frozen=True)
class Choice:
    """A config and why it is so.

    Attributes:
      config: of the run.
      notes: title of a section of the config file -> reasons.
      seconds: how long training may take, without evaluations; 0: nobody knows.
    """

    config: Config
    notes: Lines
    seconds: float = 0.0


@dataclass(frozen=True)
class TrainingTask:
    """What is to be trained.

    Attributes:
      roles: what the columns are.
      columns: what they hold.
      sources: split -> its records; "train" and others, which are evaluated.
      records: for training.
      damaged: share of the sampled images that cannot be decoded.
      init: a folder of published weights; None: there is none.
      limit: score of the best pair, of judged pairs.
    """

    roles: Roles
    columns: Mapping[str, Column]
    sources: Mapping[str, Source]
    records: int
    damaged: float = 0.0
    init: Path | None = None
    limit: float = 100.0
    notes: Lines = field(default_factory=dict)


def choose(task: TrainingTask, machine: Machine) -> Choice:
    """A config for a task.

    Raises:
      UserError: the published weights do not have the towers that the data need.
    """
    make = {"captions": _captions, "answers": _answers, "clicks": _clicks}[task.roles.kind]
    c, notes, share = make(task, machine)
    c.data = recipe.entry(task.sources["train"])
    if task.damaged > 0.005:
        c.loader.max_damaged = min(0.5, round(3 * task.damaged, 2))
        notes.setdefault("Data", []).append(
            f"Of the sampled images {task.damaged:.1%} cannot be decoded: such records are skipped."
        )
    config = configs.load(c)
    return Choice(config, notes, _seconds(config, machine, share))


def length_of(column: Column, most: int) -> int:
    """Tokens that nearly all texts of a column fit into: a multiple of 8 up to `most`."""
    words = float(np.percentile(column.words, 95)) if column.words else 8.0
    return int(min(most, max(16, 8 * math.ceil((words * WORDPIECES + 2) / 8))))


def batch_of(records: int, most: int) -> int:
    """A power of two: at most `most`, and a quarter of the records."""
    return max(4, min(most, 1 << max(0, int(math.log2(max(1, records // 4))))))


def _run(
    c: Any, task: TrainingTask, machine: Machine, batch: int, epochs: float, steps: tuple[int, int]
) -> None:
    """Batch, length, intervals and precision of the run."""
    rows, devices = batch_of(task.records, batch), machine.devices
    c.batch_size = devices * math.ceil(rows / devices)
    c.dtype = "float32" if machine.small else "bfloat16"
    c.total_steps = int(min(steps[1], max(steps[0], epochs * task.records / c.batch_size)))
    every = max(1, c.total_steps // 4)
    c.log_every, c.eval_every, c.checkpoint_every = max(1, min(20, every)), every, every


def _retrieval(c: Any, task: TrainingTask, query: str, document: str) -> None:
    """Evaluators of all splits but that of training; the best checkpoint by validation counts."""
    for name, source in task.sources.items():
        if name != "train":
            each = recipe.entry(configs.Retrieval(), query=query, document=document, data=source)
            c.evals[name] = each
            if name != "validation":
                c.evals[name].every = 0
    c.best_metric, c.final_weights = "retrieval/validation/R-mean", "best"


def _captions(task: TrainingTask, machine: Machine) -> tuple[Any, Lines, float]:
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
        patch, length, dim = size // 4, length_of(text, 48), 64
        _run(c, task, machine, 256 if wide else 128, 30, (200, 1200))
        why = f"small towers, images of {size} pixels, as there are {machine.told()}"
    else:
        shape, size, patch, length, dim = {}, 224, 16, length_of(text, 77), 256
        _run(c, task, machine, _gpu_batch(machine), 30, (300, 20_000))
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
    _retrieval(c, task, "text", "image")
    notes = {"Model": [f"From random weights: {why}."]}
    return c, notes, EFFICIENCY["small"]


def _gpu_batch(machine: Machine) -> int:
    """Rows that surely fit: 256 for every 16 GiB of an accelerator."""
    return 256 * machine.accelerators * max(1, round((machine.memory or 2**34) / 2**34))


def _published(task: TrainingTask, wanted: Sequence[str]) -> Config:
    """The configuration of published weights.

    Raises:
      UserError: they lack a tower.
    """
    from big_retrieval.interop.model import config_of
    from big_retrieval.interop.read import read

    found = config_of(read(str(task.init)), None)
    lacking = [name for name in wanted if name not in found.towers]
    if lacking:
        raise UserError(
            f"--init={task.init} has no {' and no '.join(lacking)} tower, which these data need: "
            "give the folder of another model, or leave --init out."
        )
    if "text" in wanted and not found.tokenizer.path:
        raise UserError(f"--init={task.init} comes without a tokenizer; give a whole folder.")
    return found


def _published_captions(c: Any, task: TrainingTask, machine: Machine) -> tuple[Any, Lines, float]:
    theirs = _published(task, ("image", "text"))
    for name in ("image", "text"):
        c.towers[name] = recipe.entry(theirs.towers[name])
        c.fields[name] = recipe.entry(theirs.fields[name])
    c.init.model = recipe.entry(configs.Init(), path=str(task.init))
    c.tokenizer, c.topology = recipe.entry(theirs.tokenizer), theirs.topology
    _run(c, task, machine, 32 if machine.small else _gpu_batch(machine) // 2, 3, (50, 10_000))
    if machine.small:
        c.total_steps = min(c.total_steps, 150)
    c.optimizer.update(lr=1e-5, weight_decay=0.1)
    c.optimizer.schedule.warmup_steps = max(1, c.total_steps // 10)
    _retrieval(c, task, "text", "image")
    return c, {"Model": [f"From the published weights in {task.init}."]}, EFFICIENCY["published"]


def _answers(task: TrainingTask, machine: Machine) -> tuple[Any, Lines, float]:
    """Questions and answers: one text encoder for both sides."""
    query, document = (task.columns[task.roles[role]] for role in ("query", "document"))
    c, c.evals, share = recipe.base(), {}, EFFICIENCY["small"]
    most = 64 if machine.small else 256
    lengths = length_of(query, 32 if machine.small else 64), length_of(document, most)
    if task.init is not None:
        theirs = _published(task, ("text",))
        c.towers.text = recipe.entry(theirs.towers["text"])
        head = next(each.head for each in theirs.fields.values() if each.tower == "text")
        has_head = getattr(head, "dim", None) is not None
        c.init.text = recipe.entry(configs.Init(), path=str(task.init), head=has_head)
        c.tokenizer, c.topology = recipe.entry(theirs.tokenizer), "sphere"
        _run(c, task, machine, 32 if machine.small else _gpu_batch(machine) // 4, 3, (50, 20_000))
        if machine.small:
            c.total_steps = min(c.total_steps, 150 * max(1, machine.cores // 2))
        c.optimizer.update(lr=2e-5, weight_decay=0.01)
        c.optimizer.schedule.update(type="linear", warmup_steps=max(1, c.total_steps // 10))
        c.losses.main.logit_scale.init = 20.0
        notes = [f"From the published weights in {task.init}, which are on this machine."]
        share = EFFICIENCY["published"]
    else:
        small = machine.small and machine.cores < MANY_CORES
        width, depth = (64, 2) if small else (256, 4)
        c.towers.text = recipe.entry(
            configs.Bert(), width=width, depth=depth, heads=width // 32, mlp=4 * width,
            pool="mean", embedding_std=0.5,
        )  # fmt: skip
        head = configs.Projection(dim=width)
        _run(c, task, machine, 64 if machine.small else _gpu_batch(machine), 20, (200, 1500))
        c.optimizer.update(lr=1e-3, weight_decay=0.05)
        c.optimizer.schedule.warmup_steps = max(1, c.total_steps // 15)
        notes = [
            f"From random weights, as no published ones are on this machine ({machine.told()}): "
            "--init=FOLDER of a sentence-transformers model gives far better results."
        ]
    side = {"head": head, "tower": "text"}
    c.fields.query = recipe.entry(
        configs.TextField(), column=task.roles["query"], length=lengths[0], **side
    )
    c.fields.answer = recipe.entry(
        configs.TextField(), side="document", column=task.roles["document"], length=lengths[1],
        shares_head="query", **side,
    )  # fmt: skip
    _retrieval(c, task, "query", "answer")
    return c, {"Model": notes}, share


def _clicks(task: TrainingTask, machine: Machine) -> tuple[Any, Lines, float]:
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
        configs.TextField(), column=roles["query"], length=length_of(query, 32), head=head
    )
    weight, documents = 0.5 if both else 1.0, []
    if roles["document"]:
        title = task.columns[roles["document"]]
        c.fields.title = recipe.entry(
            configs.TextField(), side="document", column=roles["document"], head=head,
            length=length_of(title, 64), shares_head="query", weight=weight,
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
    _run(c, task, machine, 256 if machine.small else _gpu_batch(machine), 5, (200, 600))
    if not machine.small:
        c.total_steps = min(20_000, max(500, 5 * task.records // c.batch_size))
    c.losses.main.logit_scale.init = 5.0
    train: Any = task.sources["train"]
    c.labels.update(query=train.query, document=train.document, score=train.score)
    c.labels.update(s_max=task.limit, weight="linear")
    recipe.main_loss(c, configs.Contrastive(), divide_by="rows")
    c.optimizer.update(lr=2e-3, weight_decay=0.05, clip_norm=None)
    c.optimizer.schedule.warmup_steps = max(1, c.total_steps // 15)
    c.tokenizer.vocab_size = 8192
    for name, source in task.sources.items():
        if name != "train":
            c.evals[name] = recipe.entry(configs.Ranking(), data=source)
            if both:
                c.evals[name].documents = tuple(documents)
            if name != "validation":
                c.evals[name].every = 0
    notes = {
        "Objective": [
            f"A pair weighs as much as its {roles['score']!r}, of at most {task.limit:g}."
        ],
        "Model": [f"From random weights: small towers, as there are {machine.told()}."],
    }
    return c, notes, EFFICIENCY["small"]


def _seconds(config: Config, machine: Machine, share: float) -> float:
    """How long the training steps may take on this CPU."""
    if not machine.small or not machine.flops:
        return 0.0
    flops = 0.0
    for each in config.encoded.values():
        tower: Any = config.towers[each.tower]
        tokens = each.length or (getattr(each, "size", 0) // getattr(tower, "patch", 16)) ** 2 + 1
        weights = getattr(tower, "depth", 0) * (
            4 * getattr(tower, "width", 0) ** 2
            + 2 * getattr(tower, "width", 0) * getattr(tower, "mlp", 0)
        )
        flops += 6 * weights * tokens * config.batch_size * (config.total_steps or 0)
    return START + flops / (share * machine.flops)


def told(choice: Choice) -> list[str]:
    """The choice in a few lines."""
    config = choice.config
    lines = [line for each in choice.notes.values() for line in each]
    time = f", about {duration(choice.seconds)} if nothing else runs" if choice.seconds else ""
    lines.append(
        f"{config.total_steps:,} steps of {config.batch_size:,} records{time}; the progress line "
        "below says how long is left"
    )
    return lines
