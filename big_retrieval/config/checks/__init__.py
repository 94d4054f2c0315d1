"""Checks that config keys fit together: their order, and the checks of the run and its mesh.

Each check yields messages; the first one is raised. Checks need neither accelerator nor data, so
that a mistake shows within a second.
"""

import dataclasses
import math
from collections.abc import Iterator

from big_retrieval.config import Config
from big_retrieval.config.checks.evals import check_evals
from big_retrieval.config.checks.fields import check_fields, check_sides
from big_retrieval.config.loss import check_losses
from big_retrieval.config.ranges import out_of_range
from big_retrieval.config.topologies import topology_part
from big_retrieval.errors import UserError


def check(config: Config, *, trains: bool = True) -> None:
    """Raises a UserError for the first mistake; `trains` adds checks of length and logging."""
    for message in _messages(config, trains=trains):
        raise UserError(message)


def _messages(c: Config, *, trains: bool) -> Iterator[str]:
    """Yields an error message for every mistake; checks rely on the checks before them."""
    yield from _mesh(c)
    yield from out_of_range(c, "config")
    if trains:
        yield from _length(c)
    yield from _slices(c)
    yield from c.optimizer.check(c)
    for name, tower in c.towers.items():
        yield from tower.check(c, f"config.towers.{name}")
    yield from check_fields(c)
    yield from topology_part(c.topology, "config.topology").check(c, "config.topology")
    yield from _unused(c)
    yield from _init(c)
    yield from check_sides(c)
    yield from check_losses(c)
    yield from c.labels.check(c)
    yield from c.negatives.check(c)
    yield from check_evals(c)
    yield from _data(c)
    if trains:
        yield from _observed(c)


def mesh_shape(config: Config, devices: int) -> tuple[int, int, int]:
    """Returns the sizes of the axes data, fsdp and tensor; a UserError if they do not fit."""
    mesh = config.mesh
    for message in _mesh(config):
        raise UserError(message)
    sizes = dataclasses.asdict(mesh)
    free = [name for name, size in sizes.items() if size == -1]
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if free and devices % fixed == 0:
        sizes[free[0]] = devices // fixed
    elif free or fixed != devices:
        raise UserError(
            f"config.mesh (data {mesh.data}, fsdp {mesh.fsdp}, tensor {mesh.tensor}) does not fit "
            f"{devices} device(s): the axes must multiply to that number; -1 takes the rest."
        )
    rows = sizes["data"] * sizes["fsdp"]
    for key in ("batch_size", "microbatch"):
        size = getattr(config, key)
        if size is not None and size % rows:
            sizes_that_fit = [max(rows, round(size / rows) * rows)]
            if key == "microbatch":  # the batch is a multiple of rows, and of the microbatch
                sizes_that_fit = [x for x in _divisors(config.batch_size) if x % rows == 0]
            near = min(sizes_that_fit, key=lambda x: abs(x - size))
            raise UserError(
                f"config.{key} {size} does not divide over the mesh's {rows} groups of rows "
                f"(data {sizes['data']} x fsdp {sizes['fsdp']}); {near} would."
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


def _length(c: Config) -> Iterator[str]:
    if c.total_steps is None and c.total_examples is None and c.total_epochs is None:
        yield "the run has no length: set config.total_steps, total_examples or total_epochs."
    if c.total_steps is None and None not in (c.total_examples, c.total_epochs):
        yield "config.total_examples and config.total_epochs are both set; keep one of them."


def _slices(c: Config) -> Iterator[str]:
    size = c.microbatch
    if size is not None and c.batch_size % size:
        near = min(_divisors(c.batch_size), key=lambda d: abs(d - size))
        yield (
            f"config.microbatch {size} does not divide config.batch_size {c.batch_size}; "
            f"{near} would."
        )


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _init(c: Config) -> Iterator[str]:
    for name, init in c.init.items():
        if name != "model" and name not in c.towers:
            choices = ", ".join(["model", *sorted(c.towers)])
            yield f"config.init.{name} is not a tower of this config; known: {choices}."
        if not init.path:
            yield f"config.init.{name}.path is empty; give a file, a folder or a hub name."


def _data(c: Config) -> Iterator[str]:
    yield from c.data.check("config.data")
    for name, evaluator in c.evals.items():
        if evaluator.data is not None:
            yield from evaluator.data.check(f"config.evals.{name}.data")
    yield from c.data.check_training(c)
    yield from c.tokenizer.check(c)
    yield from c.loader.check()


def _unused(c: Config) -> Iterator[str]:
    used = {field.tower for field in c.fields.values()}
    for name in c.towers:
        if name not in used:
            yield (
                f"config.towers.{name} is used by no field: remove it, or set "
                "config.fields.<field>.tower to it."
            )


def _observed(c: Config) -> Iterator[str]:
    for name, tracker in c.trackers.items():
        yield from tracker.check(c, f"config.trackers.{name}")
    if c.profile.last and not 0 < c.profile.first <= c.profile.last:
        yield (
            f"config.profile.first {c.profile.first} is not a step from 1 to config.profile.last "
            f"{c.profile.last}: give both, or the first alone."
        )
