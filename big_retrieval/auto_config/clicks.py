"""Judged pairs, such as clicks: sources and config (docs/GCL.md)."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from big_retrieval.auto_config.columns import CLICKS, RANKS, Roles, normalize_name
from big_retrieval.auto_config.find import DataSplit
from big_retrieval.auto_config.machine import Machine
from big_retrieval.auto_config.tasks import (
    TrainingTask,
    comment,
    data_section,
    literal,
    run_section,
)
from big_retrieval.config.sources import Source
from big_retrieval.data.judged.open_graded import Graded
from big_retrieval.data.judged.split_files import reading, split_files
from big_retrieval.data.judged.split_options import SplitOptions
from big_retrieval.errors import UserError
from big_retrieval.runtime.messages import count_of

log = logging.getLogger(__name__)
OPTIONS = SplitOptions(0, 0.9, 0.9, 0.5, "")  # shares of queries, documents and development
PARTS = {"train": "in_domain", "validation": "novel_query", "new_documents": "novel_document"}


def judged_sources(
    splits: Mapping[str, DataSplit], roles: Roles, images: str, folder: Path
) -> tuple[dict[str, Source], int, float]:
    """Returns split -> source, the number of pairs for training, and the highest score.

    Without a validation split, queries and documents are split four ways.

    Args:
      images: folder that image paths start from; empty for the folder of their file.
    """
    configs: dict[str, Source] = {
        name: graded_pairs(split, roles, images) for name, split in splits.items()
    }
    train: Any = configs["train"]
    source: Any = train.build()
    limit = float(max(1.0, source.qrels.score.max()))
    if "validation" in configs:
        return configs, len(source.qrels), limit
    summary = split_files(source, train, OPTIONS, folder)
    counts = {name: summary["splits"][split] for name, split in PARTS.items()}
    log.info(
        f"{counts['train']['pairs']:,} pairs of {counts['train']['queries']:,} queries and "
        f"{counts['train']['documents']:,} documents are for training; validation has "
        f"{count_of(counts['validation']['queries'], 'query')} that training does not have"
    )
    for note in summary["skipped"]:
        log.info(f"skipped: {note}")
    sources: dict[str, Source] = {
        name: reading(train, folder, split)
        for name, split in PARTS.items()
        if counts[name]["pairs"]
    }
    sources |= {name: x for name, x in configs.items() if name == "test"}
    return sources, counts["train"]["pairs"], limit


def graded_pairs(split: DataSplit, roles: Roles, images: str) -> Graded:
    """Returns the source of a split's pairs; raises if a column has several names for the split."""
    if split.rows is not None and not split.where:
        raise UserError(
            f"{split.path}: judged pairs need one name per split in their column of splits, and "
            "readable rows. Correct the file."
        )
    score = normalize_name(roles["score"])
    return Graded(
        path=split.path,
        where=split.where,
        query=roles["query"],
        document=roles["document_id"] or roles["document"] or roles["image"],
        score=roles["score"],
        score_from="rank" if score in RANKS else "clicks" if score in CLICKS else "score",
        text=tuple(filter(None, (roles["query"], roles["document"]))),
        image=roles["image"],
        root=images,
        duplicates="max",
        negative="zero",
    )


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
