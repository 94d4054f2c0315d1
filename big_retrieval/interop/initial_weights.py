"""Initial weights from the checkpoints of `config.init`."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from big_retrieval.config import Config, Init, Lexical, Mlp, Projection, Tower
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.interop import compatibility
from big_retrieval.interop.fit import first_layers, fit_tower
from big_retrieval.interop.lexical import as_lexical
from big_retrieval.interop.read import read
from big_retrieval.interop.source import (
    LOGIT_SCALE_PATH,
    CheckpointContents,
    CheckpointTower,
    Flat,
    below,
)

MODEL = "model"  # name in config.init for all towers and the logit scale
HEAD_KEYS = {  # head -> keys that must equal the checkpoint's; others, as pooling, may differ
    Lexical: ("tied", "transform", "use_bias", "epsilon"),
    Mlp: ("hidden", "dim", "activation"),
    Projection: ("dim",),
}
Shapes = Mapping[str, tuple[int, ...]]  # path -> shape


@dataclasses.dataclass(frozen=True)
class InitialWeights:
    """Arrays that are not random, by path, and messages about changed, unused or random arrays."""

    params: Flat = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    stats: Flat = dataclasses.field(default_factory=dict)  # running averages of batch norms

    def add(self, prefix: str, params: Flat, stats: Flat) -> None:
        """Adds arrays below a prefix."""
        self.params.update({prefix + path: x for path, x in params.items()})
        self.stats.update({prefix + path: x for path, x in stats.items()})


def read_initial_weights(
    config: Config,
    shapes: Shapes,
    stats: Shapes,
    tokenizer: FixedLengthTokenizer | None = None,
) -> InitialWeights:
    """Reads the checkpoints of `config.init` and fits them to the model.

    Args:
      stats: shapes of running averages of batch norms.
      tokenizer: tokenizer to compare with the checkpoints' tokenizers; None to skip this check.

    Raises:
      UserError: a checkpoint cannot be read or does not fit; names the key to change.
    """
    read_once = functools.cache(read)
    inits = dict(config.init)
    model_init = inits.pop(MODEL, None)
    if model_init is not None:
        inits = {name: inits.get(name, model_init) for name in config.towers}
    weights = InitialWeights()
    for name, init in inits.items():
        source = read_once(init.path)
        if init.head and _starts_lexical(config, name, source):
            source = as_lexical(source)
        _add_tower(weights, config, name, init, source, shapes, stats)
        if tokenizer is not None and config.towers[name].modality == "text":
            compatibility.check_tokenizer(source, tokenizer)
    if model_init is not None:
        _add_logit_scale(weights, config, read_once(model_init.path), shapes)
    return weights


def _add_tower(
    weights: InitialWeights,
    config: Config,
    name: str,
    init: Init,
    source: CheckpointContents,
    shapes: Shapes,
    stats: Shapes,
) -> None:
    """Adds the arrays of a tower and its heads."""
    tower, notes = config.towers[name], []
    saved = _select_part(tower, source, init, f"config.init.{name}")
    compatibility.check_unknown(source, init.skip)
    if init.first_layers:
        full, saved = saved, first_layers(saved, tower)
        if saved is not full:
            notes.append(f"the first {tower.depth} of {full.tower.depth} layers")
    compatibility.check_tower(f"config.towers.{name}", tower, saved, source.origin, init.fresh)
    input_notes = compatibility.check_inputs(config, name, saved, source, shapes)
    fields = [field for field in config.fields.values() if field.tower == name]
    fitted = fit_tower(tower, saved, fields, config.seed)
    random = [
        path
        for arrays, expected in ((fitted.params, shapes), (saved.stats, stats))
        for path in compatibility.check_names(
            source.origin, arrays, below(expected, f"{name}/"), init.fresh
        )
    ]
    weights.add(f"{name}/", fitted.params, saved.stats)
    notes.append(f"{saved.kind.name} of {source.origin}, {_count(fitted.params)}")
    notes += [*fitted.notes, *input_notes]
    notes += [f"{', '.join(random)} start randomly"] if random else []
    if source.unused:
        notes.append(f"not used: {', '.join(source.unused)}")
    weights.notes.extend(f"{name}: {note}" for note in notes)
    for field, spec in config.encoded.items():
        if spec.tower == name:
            _add_head(weights, field, spec, init, saved, below(shapes, f"{field}_head/"), source)


def _starts_lexical(config: Config, tower: str, source: CheckpointContents) -> bool:
    """Returns True if a lexical head of the tower can start from a masked-language head."""
    lexical = any(x.head.lexical for x in config.fields.values() if x.tower == tower)
    return lexical and any(part.masked for part in source.parts.values())


def _count(params: Flat) -> str:
    return f"{sum(x.size for x in params.values()):,} parameters"


def _select_part(tower: Tower, source: CheckpointContents, init: Init, key: str) -> CheckpointTower:
    """Returns the part of a checkpoint that a tower starts from."""
    if init.tower:
        if init.tower not in source.parts:
            names = ", ".join(sorted(source.parts))
            raise UserError(f"{key}.tower is {init.tower!r}, but {source.origin} has {names}.")
        return source.parts[init.tower]
    candidates = [part for part in source.parts.values() if type(part.tower) is type(tower)]
    if len(candidates) == 1:
        return candidates[0]
    names = ", ".join(f"{name} ({part.kind.name})" for name, part in source.parts.items())
    raise UserError(
        f"{source.origin} has {len(candidates)} towers of the type {tower.type!r}, but must have "
        f"one. It has {names}. Choose one with {key}.tower, or name another checkpoint."
    )


def _add_head(
    weights: InitialWeights,
    field: str,
    spec: Any,
    init: Init,
    saved: CheckpointTower,
    shapes: Shapes,
    source: CheckpointContents,
) -> None:
    """Adds the head of a field, unless it has no parameters or starts randomly."""
    if not shapes:
        return
    head = spec.head
    matches = head.lexical == (saved.lexical is not None)
    matches = matches and (head.lexical or set(saved.head) == set(shapes))
    if not (init.head and saved.head and matches):
        weights.notes.append(f"{field}_head starts randomly")
        return
    # Two-layer heads of this package are compared by their arrays only.
    keys = next((keys for cls, keys in HEAD_KEYS.items() if isinstance(head, cls)), ())
    if isinstance(head, Mlp) and not saved.kind.mlp:
        keys = ()
    otherwise = f" To start from a random head, give --config.init.{spec.tower}.head=False."
    key = f"config.fields.{field}.head"
    compatibility.check_keys(key, head, saved.head_config, keys, source.origin, otherwise)
    compatibility.check_names(source.origin, saved.head, shapes)
    weights.add(f"{field}_head/", saved.head, saved.head_stats)
    if head.lexical:
        weights.notes.append(f"{field}_head: lexical head, {_count(saved.head)}")


def _add_logit_scale(
    weights: InitialWeights, config: Config, source: CheckpointContents, shapes: Shapes
) -> None:
    """Adds the checkpoint's logit scale, divided by M if scores are sums over M."""
    if source.logit_scale is None:
        weights.notes.append(f"logit_scale: not in {source.origin}, so it starts as configured")
        return
    value = np.asarray(source.logit_scale, np.float32)
    spheres = config.spheres()
    if config.topology_type == "oblique" and spheres > 1:
        share = spheres / source.spheres
        value = value - np.float32(np.log(share))
        weights.notes.append(f"logit_scale: divided by {share:g}, as scores are sums")
    names = [name for name in shapes if re.fullmatch(LOGIT_SCALE_PATH, name)]
    weights.params.update(dict.fromkeys(names, value.reshape(())))
    weights.notes.append(f"logit_scale: starts at {float(np.exp(value)):.4g}")


def replace_arrays(tree: Any, params: Flat) -> Any:
    """Returns a tree of jax arrays with some leaves replaced by path, on the same devices."""

    def put(path: Any, leaf: jax.Array) -> jax.Array:
        name = "/".join(str(key.key) for key in path)
        if name not in params:
            return leaf
        array = np.asarray(params[name], leaf.dtype)
        return jax.make_array_from_callback(array.shape, leaf.sharding, lambda index: array[index])

    return jax.tree_util.tree_map_with_path(put, tree)
