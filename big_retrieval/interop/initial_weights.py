"""Weights from `config.init`, instead of random ones."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from big_retrieval.config import Config, Init, Mlp, Tower
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.interop import compatibility
from big_retrieval.interop.fit import first_layers, fit_tower
from big_retrieval.interop.lexical import as_lexical, fit_head
from big_retrieval.interop.read import read
from big_retrieval.interop.source import (
    OUR_LOGIT_SCALE,
    CheckpointContents,
    CheckpointTower,
    Flat,
    below,
)

WHOLE = "model"  # name in config.init for all towers and the logit scale


@dataclasses.dataclass(frozen=True)
class InitialWeights:
    """Arrays that are not random.

    Attributes:
      params: path -> array of a parameter.
      notes: messages about arrays that were changed, left out, or are random.
      stats: path -> running average of a batch norm.
    """

    params: Flat
    notes: list[str]
    stats: Flat = dataclasses.field(default_factory=dict)


def read_initial_weights(
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    stats: Mapping[str, Any],
    tokenizer: FixedLengthTokenizer | None = None,
) -> InitialWeights:
    """Reads the checkpoints of `config.init` and fits them to the model.

    Args:
      config: checked.
      shapes: path -> shape of a parameter.
      stats: path -> shape of a running average of a batch norm.
      tokenizer: compared with the checkpoints' tokenizers unless None.

    Raises:
      UserError: a checkpoint cannot be read or does not fit; names the key to change.
    """
    read_once: dict[str, CheckpointContents] = {}
    params: Flat = {}
    averages: Flat = {}
    notes: list[str] = []
    by_tower = dict(config.init)
    if (model_init := by_tower.pop(WHOLE, None)) is not None:
        by_tower = {name: by_tower.get(name, model_init) for name in config.towers}
    for name, init in by_tower.items():
        if init.path not in read_once:
            read_once[init.path] = read(init.path)
        source = read_once[init.path]
        if init.head and _reads_words(config, name, source):
            source = as_lexical(source)
        part = _part(config.towers[name], source, init, f"config.init.{name}")
        compatibility.no_surprise(source, init.skip)
        tower = config.towers[name]
        if init.first_layers and (whole := part) is not (part := first_layers(whole, tower)):
            notes.append(f"{name}: the first {tower.depth} of {whole.tower.depth} layers")
        compatibility.same_tower(f"config.towers.{name}", tower, part, source.origin, init.fresh)
        compatibility.same_inputs(config, name, part, source, shapes)
        if tokenizer is not None and tower.modality == "text":
            compatibility.same_tokenizer(source, tokenizer)
        fields = [field for field in config.fields.values() if field.tower == name]
        fitted = fit_tower(tower, part, fields, config.seed)
        anew = compatibility.same_names(
            source.origin, fitted.params, below(shapes, f"{name}/"), init.fresh
        )
        anew += compatibility.same_names(
            source.origin, part.stats, below(stats, f"{name}/"), init.fresh
        )
        params |= {f"{name}/{path}": x for path, x in fitted.params.items()}
        averages |= {f"{name}/{path}": x for path, x in part.stats.items()}
        notes.append(f"{name}: {part.kind.name} of {source.origin}, {_count(fitted.params)}")
        notes += [f"{name}: {note}" for note in fitted.notes]
        notes += compatibility.other_inputs(config, name, part, source)
        notes += [f"{name}: {', '.join(anew)} start anew"] if anew else []
        notes += _heads(config, name, init, part, shapes, params, averages, source.origin)
        if source.unused:
            notes.append(f"{name}: of no use here: {', '.join(source.unused)}")
    if WHOLE in config.init:
        notes += _logit_scale(config, read_once[config.init[WHOLE].path], shapes, params)
    return InitialWeights(params, notes, averages)


def _reads_words(config: Config, tower: str, source: CheckpointContents) -> bool:
    """Returns True if a lexical head of the tower can start from a masked-language head."""
    lexical = any(x.head.lexical for x in config.fields.values() if x.tower == tower)
    return lexical and any(part.masked for part in source.parts.values())


def _count(params: Flat) -> str:
    return f"{sum(x.size for x in params.values()):,} parameters"


def _part(tower: Tower, source: CheckpointContents, init: Init, key: str) -> CheckpointTower:
    """Returns the part of a checkpoint that a tower starts from."""
    if init.tower:
        if init.tower not in source.parts:
            known = ", ".join(sorted(source.parts))
            raise UserError(f"{key}.tower is {init.tower!r}, but {source.origin} has {known}.")
        return source.parts[init.tower]
    same = [part for part in source.parts.values() if type(part.tower) is type(tower)]
    if len(same) == 1:
        return same[0]
    have = ", ".join(f"{name} ({part.kind.name})" for name, part in source.parts.items())
    raise UserError(
        f"{source.origin} has {len(same)} towers of the type {tower.type!r} (it has: {have}); say "
        f"which with {key}.tower, or name another checkpoint."
    )


def _heads(
    config: Config,
    tower: str,
    init: Init,
    part: CheckpointTower,
    shapes: Mapping[str, tuple[int, ...]],
    params: Flat,
    averages: Flat,
    origin: str,
) -> list[str]:
    """Adds the heads of a tower's fields to `params` and `averages`; returns messages."""
    notes = []
    for field, each in config.encoded.items():
        head, path = f"{field}_head/", f"{field}_head/kernel"
        wanted = below(shapes, head)
        if each.tower != tower or not wanted:
            continue
        if each.head.lexical:
            same = part.lexical is not None
        else:
            same = part.lexical is None and set(part.head) == set(wanted)
        if not (init.head and part.head and same):
            notes.append(f"{path if set(wanted) == {'kernel'} else head[:-1]} starts anew")
            continue
        if each.head.lexical:
            fitted = fit_head(f"config.fields.{field}", tower, each.head, part, wanted, origin)
            params |= {head + p: array for p, array in fitted.items()}
            notes.append(f"{head[:-1]}: the lexical head of {origin}, {_count(fitted)}")
            continue
        kernel = part.head.get("kernel")
        if kernel is not None and kernel.shape != shapes[path]:
            raise UserError(
                f"config.fields.{field}.head.dim is {shapes[path][1]}, but the projection of "
                f"{origin} has {kernel.shape[1]}: set it to that, or let the projection start anew "
                f"with config.init.{tower}.head=False."
            )
        compatibility.same_names(origin, part.head, wanted)
        _same_mlp(f"config.fields.{field}.head", each.head, part, wanted, origin)
        params |= {head + p: array for p, array in part.head.items()}
        averages |= {head + p: array for p, array in part.head_stats.items()}
    return notes


def _same_mlp(
    key: str, head: Any, part: CheckpointTower, wanted: Mapping[str, tuple[int, ...]], origin: str
) -> None:
    """Raises a UserError if a two-layer head differs from open_clip's head after a BERT."""
    if not (part.kind.mlp and isinstance(head, Mlp)):
        return
    theirs: Any = part.head_config
    same = {path: array.shape for path, array in part.head.items()} == dict(wanted)
    if head.activation != theirs.activation or not same:
        raise UserError(
            f"{key} must be that of {origin}: set hidden to {theirs.hidden}, dim to {theirs.dim} "
            f"and activation to {theirs.activation!r}."
        )


def _logit_scale(
    config: Config, source: CheckpointContents, shapes: Mapping[str, Any], params: Flat
) -> list[str]:
    """Adds the checkpoint's logit scale, divided by M if scores are sums over M."""
    if source.logit_scale is None:
        return [f"logit_scale: {source.origin} has none, so it starts as configured"]
    value = np.asarray(source.logit_scale, np.float32)
    notes = []
    tokens = config.spheres()
    if config.topology_type == "oblique" and tokens > 1:
        share = tokens / source.spheres
        value = value - np.float32(np.log(share))
        notes.append(f"logit_scale: divided by {share:g}, as scores are sums")
    params |= {name: value.reshape(()) for name in shapes if re.fullmatch(OUR_LOGIT_SCALE, name)}
    return [*notes, f"logit_scale: starts at {float(np.exp(value)):.4g}"]


def replace_arrays(tree: Any, params: Flat) -> Any:
    """Returns a tree of jax arrays with some leaves replaced by path, on the same devices."""

    def put(path: Any, leaf: jax.Array) -> jax.Array:
        name = "/".join(str(key.key) for key in path)
        if name not in params:
            return leaf
        array = np.asarray(params[name], leaf.dtype)
        return jax.make_array_from_callback(array.shape, leaf.sharding, lambda index: array[index])

    return jax.tree_util.tree_map_with_path(put, tree)
