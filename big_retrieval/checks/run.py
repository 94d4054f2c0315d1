"""All checks in order, and those of the run, its mesh and its towers."""

import dataclasses
from collections.abc import Iterator

from big_retrieval.checks.data import LIMIT, data, loader
from big_retrieval.checks.evals import evals
from big_retrieval.checks.fields import fields, negatives, sides
from big_retrieval.checks.labels import labels
from big_retrieval.checks.lexical import lexical
from big_retrieval.checks.optimizer import optimizer
from big_retrieval.config import Bert, Config, ResNet, ViT
from big_retrieval.errors import UserError

POSITIVE = ("batch_size", "log_every", "checkpoint_every")
AT_LEAST_ONE = ("total_steps", "total_examples", "total_epochs", "stop_after")


def check(config: Config) -> None:
    """Raises for the first impossible combination.

    Raises:
      UserError: names the keys and the remedy.
    """
    for part in CHECKS:
        for sentence in part(config):
            raise UserError(sentence)


def mesh_shape(config: Config, devices: int) -> tuple[int, int, int]:
    """The sizes of the axes data, fsdp and tensor on this many devices.

    Raises:
      UserError: the axes do not multiply to the devices, or the batch does not divide over them.
    """
    mesh = config.mesh
    for sentence in _mesh(config):
        raise UserError(sentence)
    sizes = dataclasses.asdict(mesh)
    free = [name for name, size in sizes.items() if size == -1]
    fixed = 1
    for size in sizes.values():
        fixed *= 1 if size == -1 else size
    if free and devices % fixed == 0:
        sizes[free[0]] = devices // fixed
    elif free or fixed != devices:
        raise UserError(
            f"config.mesh (data {mesh.data}, fsdp {mesh.fsdp}, tensor {mesh.tensor}) does not fit "
            f"{devices} device(s): the axes must multiply to that number; -1 takes the rest."
        )
    rows = sizes["data"] * sizes["fsdp"]
    if config.batch_size % rows:
        near = max(rows, round(config.batch_size / rows) * rows)
        raise UserError(
            f"config.batch_size {config.batch_size} does not divide over the mesh's {rows} groups "
            f"of rows (data {sizes['data']} x fsdp {sizes['fsdp']}); {near} would."
        )
    if config.microbatch is not None and config.microbatch % rows:
        raise UserError(
            f"config.microbatch {config.microbatch} does not divide over the mesh's {rows} groups "
            f"of rows (data {sizes['data']} x fsdp {sizes['fsdp']}): it counts the rows of all "
            "devices together."
        )
    return sizes["data"], sizes["fsdp"], sizes["tensor"]


def _mesh(c: Config) -> Iterator[str]:
    sizes = dataclasses.asdict(c.mesh)
    for name, size in sizes.items():
        if size == 0 or size < -1:
            yield f"config.mesh.{name} is {size}; it must be positive, or -1 for the rest."
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1:
        yield f"config.mesh.{' and config.mesh.'.join(free)} are -1; only one can be."


def _run(c: Config) -> Iterator[str]:
    if not 0 <= c.seed < LIMIT:
        yield f"config.seed is {c.seed}; it must be from 0 to {LIMIT - 1}."
    for key in POSITIVE:
        if getattr(c, key) < 1:
            yield f"config.{key} is {getattr(c, key)}; it must be at least 1."
    for key in AT_LEAST_ONE:
        value = getattr(c, key)
        if value is not None and value <= 0:
            yield f"config.{key} is {value}; it must be positive."
    for key in (*POSITIVE, "total_steps", "stop_after", "eval_every"):
        if (getattr(c, key) or 0) >= LIMIT:
            yield f"config.{key} is {getattr(c, key)}; it must be below {LIMIT}."
    if c.total_steps is None and c.total_examples is None and c.total_epochs is None:
        yield "the run has no length: set config.total_steps, total_examples or total_epochs."
    if c.total_steps is None and None not in (c.total_examples, c.total_epochs):
        yield "config.total_examples and config.total_epochs are both set; keep one of them."
    if c.eval_every < 0:
        yield f"config.eval_every is {c.eval_every}; it must be 0 (at the end only) or more."


def _slices(c: Config) -> Iterator[str]:
    if c.microbatch is not None and c.microbatch < 1:
        yield f"config.microbatch is {c.microbatch}; it must be at least 1, or None for no slices."
    elif c.microbatch is not None and c.batch_size % c.microbatch:
        near = min(_divisors(c.batch_size), key=lambda d: abs(d - (c.microbatch or 0)))
        yield (
            f"config.microbatch {c.microbatch} does not divide config.batch_size {c.batch_size}; "
            f"{near} would."
        )
    if c.loss.block is not None and c.loss.block < 1:
        yield f"config.loss.block is {c.loss.block}; it must be at least 1, or None to choose."


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _towers(c: Config) -> Iterator[str]:
    for name, tower in c.towers.items():
        path = f"config.towers.{name}"
        if isinstance(tower, ResNet):
            yield from _resnet(c, path, tower)
            continue
        for key in ("width", "depth", "heads", "mlp", "class_tokens"):
            least = 0 if key == "class_tokens" and isinstance(tower, ViT) else 1
            if getattr(tower, key) < least:
                yield f"{path}.{key} is {getattr(tower, key)}; it must be at least {least}."
        yield from _pooling(path, tower)
        if tower.width % tower.heads:
            yield f"{path}.width {tower.width} must be a multiple of {path}.heads {tower.heads}."
        if not 0 <= tower.dropout < 1:
            yield f"{path}.dropout is {tower.dropout}; it must be at least 0 and below 1."
        if isinstance(tower, ViT) and tower.patch < 1:
            yield f"{path}.patch is {tower.patch}; it must be at least 1."


def _resnet(c: Config, path: str, tower: ResNet) -> Iterator[str]:
    if not tower.blocks or min(tower.blocks) < 1:
        yield f"{path}.blocks is {tower.blocks}; it needs at least 1 block in every stage."
    if tower.stem < 1:
        yield f"{path}.stem is {tower.stem}; it must be at least 1."
    if c.microbatch is not None and c.microbatch < c.batch_size and tower.whole_batch:
        yield (
            f"config.microbatch {c.microbatch}: the batch norms of {path} need the whole batch at "
            f"once; give {path}.batch_stats 'slice' (they then go by {c.microbatch} rows each, "
            f"which is not the same training), {path}.frozen_stats, or no config.microbatch."
        )


def _pooling(path: str, tower: ViT | Bert) -> Iterator[str]:
    count = tower.class_tokens
    if tower.pool == "mean" and count > 1:
        yield f"{path}.pool 'mean' makes one token; {path}.class_tokens is {count}: set it to 1."
    if tower.pool == "first" and count == 0:
        yield f"{path}.pool 'first' needs {path}.class_tokens of 1 or more."
    if isinstance(tower, Bert) and tower.causal and tower.pool == "first":
        yield (
            f"{path}.causal: the first token sees nothing of the text; set {path}.pool to 'last' "
            "or 'mean'."
        )


def _init(c: Config) -> Iterator[str]:
    for name, init in c.init.items():
        if name != "model" and name not in c.towers:
            known = ", ".join(["model", *sorted(c.towers)])
            yield f"config.init.{name} is no tower of this config; known: {known}."
        if not init.path:
            yield f"config.init.{name}.path is empty; give a file, a folder or a hub name."


def _unused(c: Config) -> Iterator[str]:
    used = {field.tower for field in c.fields.values()}
    for name in c.towers:
        if name not in used:
            yield (
                f"config.towers.{name} is used by no field: remove it, or set "
                "config.fields.<field>.tower to it."
            )


def _temperature(c: Config) -> Iterator[str]:
    t = c.temperature
    for name, value in (("init", t.init), ("min", t.min), ("max", t.max)):
        if value is not None and value <= 0:
            yield f"config.temperature.{name} is {value}; the multiplier must be positive."
    if t.max is not None and t.init > t.max * (1 + 1e-6):
        yield (
            f"config.temperature.init {t.init:g} lies above config.temperature.max {t.max:g}: the "
            "first step would change it; lower the start or raise the bound."
        )
    if t.min is not None and t.init < t.min * (1 - 1e-6):
        yield f"config.temperature.init {t.init:g} lies below config.temperature.min {t.min:g}."


CHECKS = (
    _mesh, _run, _slices, optimizer, _towers, fields, _unused, _init, lexical, sides,
    _temperature, labels, negatives, evals, data, loader,
)  # fmt: skip
