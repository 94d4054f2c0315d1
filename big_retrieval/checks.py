"""What no single key of a configuration can tell: combinations that cannot work.

Each check yields sentences; the first one becomes the error. They need no accelerator and no data,
so that a mistake shows within a second and not after an hour of start-up.
"""

import dataclasses
import difflib
from collections.abc import Iterator

from big_retrieval.config import (
    Bert,
    Config,
    ImageField,
    Retrieval,
    Scenes,
    Source,
    TextField,
    ViT,
    ZeroShot,
)
from big_retrieval.errors import UserError

POSITIVE = ("batch_size", "log_every", "checkpoint_every")
LIMIT = 2**31  # steps and seeds are 32-bit integers on the devices
SCENE_LABELS = {"colours": ("colour", 8), "shapes": ("shape", 8)}  # split -> column, classes
MOST_SCENES = 10_000_000  # their parameters are held in memory
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


def _optimizer(c: Config) -> Iterator[str]:
    o, s = c.optimizer, c.optimizer.schedule
    for name, value in (("lr", o.lr), ("eps", o.eps)):
        if value <= 0:
            yield f"config.optimizer.{name} is {value}; it must be positive."
    for name, value in (("b1", o.b1), ("b2", o.b2), ("ema_decay", o.ema_decay)):
        if value is not None and not 0 <= value < 1:
            yield f"config.optimizer.{name} is {value}; it must be at least 0 and below 1."
    if o.weight_decay < 0:
        yield f"config.optimizer.weight_decay is {o.weight_decay}; it must be 0 or more."
    if o.clip_norm is not None and o.clip_norm <= 0:
        yield f"config.optimizer.clip_norm is {o.clip_norm}; use None for no clipping."
    for name, value in (("warmup_steps", s.warmup_steps), ("cooldown_steps", s.cooldown_steps)):
        if value < 0:
            yield f"config.optimizer.schedule.{name} is {value}; it must be 0 or more."
    if s.timescale < 1:
        yield f"config.optimizer.schedule.timescale is {s.timescale}; it must be at least 1."
    if not 0 <= s.end <= 1:
        yield f"config.optimizer.schedule.end is {s.end}; it is a share of the peak, 0 to 1."


def _towers(c: Config) -> Iterator[str]:
    used = {field.tower for field in c.fields.values()}
    for name, tower in c.towers.items():
        path = f"config.towers.{name}"
        if name not in used:
            yield f"{path} is used by no field: remove it or set config.fields.<field>.tower to it."
        for key in ("width", "depth", "heads", "mlp", "class_tokens"):
            if getattr(tower, key) < 1:
                yield f"{path}.{key} is {getattr(tower, key)}; it must be at least 1."
        if tower.width % tower.heads:
            yield f"{path}.width {tower.width} does not divide by {path}.heads {tower.heads}."
        if not 0 <= tower.dropout < 1:
            yield f"{path}.dropout is {tower.dropout}; it must be at least 0 and below 1."
        if isinstance(tower, ViT) and tower.patch < 1:
            yield f"{path}.patch is {tower.patch}; it must be at least 1."


def _fields(c: Config) -> Iterator[str]:
    for name, field in c.fields.items():
        path = f"config.fields.{name}"
        if field.tower not in c.towers:
            known = ", ".join(sorted(c.towers)) or "none"
            yield f"{path}.tower is {field.tower!r}, which config.towers lacks (it has: {known})."
            continue
        tower = c.towers[field.tower]
        if isinstance(tower, ViT) != isinstance(field, ImageField):
            yield f"{path} is of kind {field.kind!r}; config.towers.{field.tower} cannot read that."
        if isinstance(field, ImageField) and field.size < 1:
            yield f"{path}.size is {field.size}; it must be at least 1."
        if isinstance(field, ImageField) and isinstance(tower, ViT) and field.size % tower.patch:
            yield (
                f"{path}.size {field.size} does not divide by config.towers.{field.tower}.patch "
                f"{tower.patch}."
            )
        if isinstance(field, ImageField):
            low, high = field.crop_scale
            if not 0 < low <= high <= 1:
                yield f"{path}.crop_scale is {field.crop_scale}; it must be 0 < low <= high <= 1."
            if not 0 < field.crop_ratio[0] <= field.crop_ratio[1]:
                yield f"{path}.crop_ratio is {field.crop_ratio}; it must be 0 < low <= high."
            if not 0 <= field.flip <= 1:
                yield f"{path}.flip is {field.flip}; it is a probability, 0 to 1."
            if min(field.std) <= 0:
                yield f"{path}.std is {field.std}; its elements must be positive."
        elif field.length < 3:
            yield f"{path}.length is {field.length}; it must leave room for [CLS], a word, [SEP]."
        if field.head.dim < 1:
            yield f"{path}.head.dim is {field.head.dim}; it must be at least 1."
        yield from _spheres(path, tower, field)


def _spheres(path: str, tower: ViT | Bert, field) -> Iterator[str]:
    spheres = field.head.spheres
    if spheres is None:
        return
    if tower.class_tokens > 1:
        yield (
            f"{path}.head.spheres is for towers with one class token; config.towers.{field.tower} "
            f"has {tower.class_tokens}, each a sub-sphere already: set it to None."
        )
    elif spheres < 1 or field.head.dim % spheres:
        yield f"{path}.head.dim {field.head.dim} does not divide by {path}.head.spheres {spheres}."


def point_shape(c: Config, field: str) -> tuple[int, int]:
    """The shape (M, N) of a field's points."""
    part = c.fields[field]
    tokens, head = c.towers[part.tower].class_tokens, part.head
    return (head.spheres, head.dim // head.spheres) if head.spheres else (tokens, head.dim)


def _sides(c: Config) -> Iterator[str]:
    for side in ("query", "document"):
        names = [name for name, field in c.fields.items() if field.side == side]
        if len(names) != 1:
            found = ", ".join(sorted(names)) or "none"
            yield (
                f"config.loss {c.loss.type!r} needs one field of side {side!r} in config.fields; "
                f"found: {found}."
            )
    shapes = {name: point_shape(c, name) for name in c.fields}
    if len(set(shapes.values())) > 1:
        text = ", ".join(f"{name} {m} x {n}" for name, (m, n) in sorted(shapes.items()))
        yield (
            f"the fields' points differ ({text}, class tokens x dimensions): give both sides the "
            "same towers.<tower>.class_tokens and fields.<field>.head."
        )
    for name in ("scalars", *(f"{field}_head" for field in c.fields)):
        if name in c.towers:
            yield f"config.towers.{name}: another part of the model has this name; rename it."


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


def _evals(c: Config) -> Iterator[str]:
    for name, ev in c.evals.items():
        path = f"config.evals.{name}"
        wanted = (
            {"query": ev.query, "document": ev.document}
            if isinstance(ev, Retrieval)
            else {"image": ev.image, "text": ev.text}
        )
        for key, field in wanted.items():
            if field not in c.fields:
                known = ", ".join(sorted(c.fields))
                yield f"{path}.{key} is {field!r}, which config.fields lacks (it has: {known})."
        if ev.every is not None and ev.every < 0:
            yield f"{path}.every is {ev.every}; it must be 0 (at the end only) or more."
        yield from _retrieval(path, ev) if isinstance(ev, Retrieval) else _zero_shot(c, path, ev)
    known = sorted(metric for name in c.evals for metric in metrics_of(c, name))
    if c.best_metric and c.best_metric not in known:
        near = difflib.get_close_matches(c.best_metric, known, 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none'}."
        yield f"config.best_metric {c.best_metric!r} is of no evaluator in config.evals; {hint}"


def metrics_of(c: Config, name: str) -> list[str]:
    """The names of the metrics of one evaluator of `config.evals`."""
    ev = c.evals[name]
    if not isinstance(ev, Retrieval):
        return [f"{ev.type}/{name}/{metric}" for metric in ("accuracy", "top5_accuracy")]
    ways = (f"{ev.query}_to_{ev.document}", f"{ev.document}_to_{ev.query}")
    metrics = [*(f"R@{k}" for k in ev.recall_at), "mean_rank", "median_rank"]
    return [f"{ev.type}/{name}/{way}/{metric}" for way in ways for metric in metrics]


def _retrieval(path: str, ev: Retrieval) -> Iterator[str]:
    if ev.query == ev.document:
        yield f"{path}.query and {path}.document are both {ev.query!r}; give it two fields."
    if not ev.recall_at or min(ev.recall_at) < 1:
        yield f"{path}.recall_at is {ev.recall_at}; it must hold ranks from 1 on."
    if ev.chunk < 1:
        yield f"{path}.chunk is {ev.chunk}; it must be at least 1."


def _zero_shot(c: Config, path: str, ev: ZeroShot) -> Iterator[str]:
    for key, name, kind in (("image", ev.image, ImageField), ("text", ev.text, TextField)):
        if not isinstance(c.fields.get(name), kind):
            yield f"{path}.{key} is {name!r}, which is no {key} field of config.fields."
    for prompt in ev.prompts:
        if "{}" not in prompt:
            yield f"{path}.prompts: {prompt!r} needs a {{}} where the class name goes."
    own = bool(ev.classes and ev.prompts)
    if not isinstance(ev.data, Scenes):
        if not own:
            yield f"{path}: own data need the names in {path}.classes and {path}.prompts."
        return
    label, count = SCENE_LABELS.get(ev.data.split, ("", 0))
    if ev.label != label and not own:
        splits = ", ".join(f"{name!r} for {split}" for split, (name, _) in SCENE_LABELS.items())
        yield (
            f"{path}.label is {ev.label!r}, which {path}.data.split {ev.data.split!r} lacks "
            f"(labels: {splits}); change one of them."
        )
    if ev.label == label and ev.classes and len(ev.classes) != count:
        yield f"{path}.classes has {len(ev.classes)} names; label {label!r} needs {count}."


def _data(c: Config) -> Iterator[str]:
    yield from _source("config.data", c.data)
    for name, ev in c.evals.items():
        yield from _source(f"config.evals.{name}.data", ev.data)
    for name, field in c.fields.items():
        path = f"config.fields.{name}.column"
        image = "image" if isinstance(c.data, Scenes) else c.data.image
        if isinstance(field, ImageField) and field.column != image:
            yield f"{path} is {field.column!r}; the images of config.data are in {image!r}."
        if isinstance(field, TextField) and isinstance(c.data, Scenes):
            if field.column != "captions":
                yield f"{path} is {field.column!r}; the texts of generated scenes are in 'captions'."
    t = c.tokenizer
    if not t.path and t.type != "wordpiece":
        yield (
            f"config.tokenizer.type {t.type!r} needs config.tokenizer.path (a file, folder or hub "
            "name); only 'wordpiece' can be learned from the captions."
        )
    if not t.path and t.vocab_size < 32:
        yield f"config.tokenizer.vocab_size is {t.vocab_size}; a learned one needs at least 32."


def _source(path: str, source: Source) -> Iterator[str]:
    if not isinstance(source, Scenes):
        if not source.path:
            yield f"{path}.path is empty; give the JSON Lines file with your pairs."
        return
    if source.size < 16:
        yield f"{path}.size is {source.size}; shapes need at least 16 pixels to differ."
    if source.count is not None and not 1 <= source.count <= MOST_SCENES:
        yield f"{path}.count is {source.count}; it must be from 1 to {MOST_SCENES}, or None."
    if not 0 <= source.seed < LIMIT:
        yield f"{path}.seed is {source.seed}; it must be from 0 to {LIMIT - 1}."


def _loader(c: Config) -> Iterator[str]:
    for key, least in (("threads", 1), ("workers", 0), ("prefetch", 1)):
        value = getattr(c.loader, key)
        if value < least:
            yield f"config.loader.{key} is {value}; it must be at least {least}."


CHECKS = (
    _mesh, _run, _optimizer, _fields, _towers, _sides, _temperature, _evals, _data, _loader,
)  # fmt: skip
