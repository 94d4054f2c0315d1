"""Towers, heads and parameters of a checkpoint of another library."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from big_retrieval.config import Bert, Head, Lexical, Mlp, Projection, ViT
from big_retrieval.errors import UserError
from big_retrieval.interop import resnets
from big_retrieval.interop.kinds import LOGIT_SCALE, MTOB, Kind, kinds_of
from big_retrieval.interop.names import LAYOUTS
from big_retrieval.interop.pixels import Pixels
from big_retrieval.interop.settings import Settings

OUR_LOGIT_SCALE = "scalars/.*/logit_scale"  # parameters of ours that hold the logarithm of one
Flat = dict[str, np.ndarray]
T = TypeVar("T")


@dataclass(frozen=True)
class CheckpointTower:
    """One tower of a checkpoint, with its head.

    Attributes:
      kind: architecture.
      tower: configuration; `class_tokens` and lengths are the checkpoint's.
      params: path below the tower -> array.
      head: path below the head -> array; empty without a head.
      names: path -> name in the checkpoint, for messages.
      lexical: configuration of a lexical head; None if `head` is a projection.
      masked: path below a lexical head -> array, of a masked-language head that is not in use.
      masked_names: its names in the checkpoint.
      stats: path below the tower -> running average of a batch norm.
      head_stats: path below the head -> running average of a batch norm.
    """

    kind: Kind
    tower: Any  # of a `config.Tower`
    params: Flat
    head: Flat
    names: dict[str, str]
    lexical: Lexical | None = None
    masked: Flat = field(default_factory=dict)
    masked_names: tuple[str, ...] = ()
    stats: Flat = field(default_factory=dict)
    head_stats: Flat = field(default_factory=dict)

    @property
    def head_config(self) -> Head:
        """Configuration of the head."""
        if self.lexical is not None:
            return self.lexical
        if "fc1/kernel" in self.head:
            hidden, dim = self.head["fc2/kernel"].shape
            return Mlp(hidden=hidden, dim=dim, activation="gelu")
        return Projection(dim=self.head["kernel"].shape[1] if self.head else None)

    @property
    def positions(self) -> int:
        """Rows of the position table."""
        return self.params["position_embedding"].shape[0]

    @property
    def image_size(self) -> int | None:
        """Side of images in pixels; None if the parameters do not depend on it."""
        if self.tower.modality != "image" or "position_embedding" not in self.params:
            return None
        return math.isqrt(self.positions - self.tower.class_tokens) * self.tower.patch


@dataclass(frozen=True)
class CheckpointContents:
    """Contents of a checkpoint.

    Attributes:
      origin: the file or folder, for messages.
      parts: "image" and "text", one or both.
      logit_scale: logarithm of the factor of scores, or None.
      unused: known names that are not imported, as they are not part of the towers.
      unknown: names that are not in any table.
      settings: contents of the settings files.
      spheres: M, sub-spheres of an embedding, which the scores of `logit_scale` are sums over.
    """

    origin: str
    parts: dict[str, CheckpointTower]
    logit_scale: np.ndarray | None
    unused: list[str]
    unknown: list[str]
    settings: Settings = field(default_factory=Settings)
    spheres: int = 1

    def pixels(self, part: CheckpointTower) -> Pixels | None:
        """Returns the preparation of images: the settings' or the architecture's."""
        return self.settings.pixels or part.kind.pixels


def understand(
    origin: str, arrays: Mapping[str, np.ndarray], settings: Settings
) -> CheckpointContents:
    """Finds the towers in a checkpoint.

    Args:
      origin: the file, for messages.

    Raises:
      UserError: no known architecture, or arrays that are missing or contradict the settings.
    """
    arrays = dict(_modern(arrays))
    parts: dict[str, CheckpointTower] = {}
    named: set[str] = set()
    unused: list[str] = []
    for kind, prefix in kinds_of(arrays, settings.model_type):
        own = below(arrays, prefix)
        part = _with_masked(_part(origin, kind, own, settings), arrays)
        parts[kind.side] = part
        unused += part.masked_names
        named |= {prefix + name for name in part.names.values()}
        unused += [prefix + name for name in own if kind.table.is_unused(name)]
    if not parts:
        first = ", ".join(sorted(arrays)[:3])
        raise UserError(
            f"{origin} is no model of a known kind (its first names are {first}); docs/INTEROP.md "
            "lists the kinds that can be imported."
        )
    if set(parts) == {"image", "text"} and parts["text"].kind in MTOB:  # one number for both
        text, tokens = parts["text"], parts["image"].tower.class_tokens
        tower = dataclasses.replace(text.tower, class_tokens=tokens)
        parts["text"] = dataclasses.replace(text, tower=tower)
    logit_scale = next((name for name in LOGIT_SCALE if name in arrays), None)
    known = named | set(unused) | {logit_scale}
    return CheckpointContents(
        origin=origin,
        parts=parts,
        logit_scale=None if logit_scale is None else arrays[logit_scale].reshape(()),
        unused=sorted(set(unused) - named),
        unknown=sorted(set(arrays) - known),
        settings=settings,
        spheres=max(1, *(part.tower.class_tokens for part in parts.values())),
    )


# Names of old files, and what newer ones of the same library have instead.
_RENAMED = (
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
    (r"(predictions|lm_head)\.decoder\.bias$", r"\1.bias"),
    (r"/MultiHeadDotProductAttention_1/", "/MultiHeadDotProductAttention_0/"),
    (r"/LayerNorm_2/", "/LayerNorm_1/"),
    (r"/MlpBlock_3/", "/MlpBlock_0/"),
    (r"Transformer/posembed_input/pos_embedding", "pos_embedding"),
)


def _modern(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields arrays with the names of the tables; big_vision's scanned layers one by one.

    The bias of a masked-language head has two names, mostly for one array. If there are two arrays,
    the decoder's is the one that is added, so it comes last.
    """
    for name in sorted(arrays, key=lambda name: name.endswith(".decoder.bias")):
        array = arrays[name]
        for old, new in _RENAMED:
            name = re.sub(old, new, name)
        if "Transformer/encoderblock/" not in name:
            yield name, array
            continue
        for layer, part in enumerate(array):
            yield name.replace("encoderblock/", f"encoderblock_{layer}/"), part


def below(paths: Mapping[str, T], prefix: str) -> dict[str, T]:
    """Returns the entries with a prefix, without the prefix."""
    return {path[len(prefix) :]: x for path, x in paths.items() if path.startswith(prefix)}


def _part(origin: str, kind: Kind, arrays: Flat, settings: Settings) -> CheckpointTower:
    params: Flat = {}
    names: dict[str, str] = {}
    for name, path, array in kind.table.to_ours(arrays):
        params[path], names[path] = array, name
    head: Flat = {}
    for entry in (*(() if kind.head is None else (kind.head,)), *kind.mlp):
        if entry.theirs in arrays:
            head[entry.ours] = LAYOUTS[entry.layout].ours(arrays[entry.theirs])[0]
            names[f"head/{entry.ours}"] = entry.theirs
    if isinstance(arrays.get("cls"), np.ndarray) and kind.table.find("cls"):
        params = _with_class_position(params)
    if kind.stats is not None:
        found = list(kind.stats.to_ours(arrays))
        names |= {path: name for name, path, _ in found}
        stats = {path: array for _, path, array in found}
        tower = resnets.recognise(origin, kind.name, params, stats)
        return CheckpointTower(kind, tower, params, head, names, stats=stats)
    make = _vision if kind.side == "image" else _text
    return CheckpointTower(kind, make(origin, kind, params, settings), params, head, names)


def _with_masked(part: CheckpointTower, arrays: Flat) -> CheckpointTower:
    """Returns the tower with its masked-language head, if the checkpoint has one."""
    if part.kind.masked is None:
        return part
    table = part.kind.masked.table
    found = {path: (name, array) for name, path, array in table.to_ours(arrays)}
    head = {path: array for path, (_, array) in found.items()}
    words = part.params.get("token_embedding")
    if "kernel" in head and words is not None and np.array_equal(head["kernel"], words):
        del head["kernel"]  # a copy of the word table
    names = [name for name, _ in found.values()]
    names += [name for name in arrays if table.is_unused(name)]
    return dataclasses.replace(part, masked=head, masked_names=tuple(names))


def _with_class_position(params: Flat) -> Flat:
    """Adds a zero position of the class token: big_vision adds positions to patches only."""
    table = params["position_embedding"]
    if math.isqrt(table.shape[0]) ** 2 != table.shape[0]:
        return params  # the class token's row is there
    return params | {"position_embedding": np.concatenate([np.zeros_like(table[:1]), table])}


def _common(origin: str, kind: Kind, params: Flat, settings: Settings, width: int) -> dict:
    layers = {int(m[1]) for path in params if (m := re.match(r"layers_(\d+)/", path))}
    if layers != set(range(len(layers))) or not layers:
        raise UserError(f"{origin}: {kind.name} has the layers {sorted(layers)}, not 0, 1, ...")
    given = settings.of(kind.side)
    usual = max(1, width // kind.head_width) if kind.head_width else None
    if given.get("depth") not in (None, len(layers)):
        raise UserError(
            f"{origin}: {kind.name} has {len(layers)} layers, but its settings file says "
            f"{given['depth']}; restore one of the two."
        )
    heads = given.get("heads") or usual
    if heads is None:
        raise UserError(
            f"{origin}: the arrays do not tell how many attention heads {kind.name} has; give the "
            "folder with its config.json instead of the bare file."
        )
    told = {k: v for k, v in given.items() if k in ("activation", "epsilon") and v is not None}
    return {
        "width": width,
        "depth": len(layers),
        "heads": heads,
        "mlp": _shape(origin, kind, params, "layers_0/mlp/fc1/bias")[0],
        **kind.fixed,
        **kind.usual,
        **told,
    }


def _shape(origin: str, kind: Kind, params: Flat, path: str) -> tuple[int, ...]:
    if path not in params:
        raise UserError(f"{origin} looks like {kind.name}, but lacks its {path}.")
    return params[path].shape


def _vision(origin: str, kind: Kind, params: Flat, settings: Settings) -> ViT:
    pixels, width = _shape(origin, kind, params, "patch_embedding/kernel")
    tokens = params["class_embedding"].shape[0] if "class_embedding" in params else 0
    rows = _shape(origin, kind, params, "position_embedding")[0]
    patch, given = math.isqrt(pixels // 3), settings.of("image")
    _check_size(origin, settings, patch, math.isqrt(rows - tokens))
    norm_first = "ln_pre/scale" in params
    if given.get("norm_first", norm_first) != norm_first:
        raise UserError(
            f"{origin}: no_ln_pre contradicts the arrays, which {'' if norm_first else 'do not '}"
            "have ln_pre; restore one of the two."
        )
    return ViT(
        patch=patch,
        class_tokens=tokens,
        pool=given.get("pool", "first") if tokens else "mean",
        norm_first=norm_first,
        patch_bias="patch_embedding/bias" in params,
        **_common(origin, kind, params, settings, width),
    )


def _check_size(origin: str, settings: Settings, patch: int, grid: int) -> None:
    """Checks the size of images that settings files give against the positions of patches."""
    stated = [settings.of("image").get("image_size"), settings.pixels and settings.pixels.size]
    for size in filter(None, stated):
        if size % patch:
            raise UserError(
                f"{origin}: images of {size} pixels are no multiple of the patch size {patch}; "
                "such models cannot be imported."
            )
        if size // patch != grid:
            raise UserError(
                f"{origin}: its settings files say images of {size} pixels, but it has positions "
                f"for {grid * patch}; restore one of the two."
            )


def _text(origin: str, kind: Kind, params: Flat, settings: Settings) -> Bert:
    rows, width = _shape(origin, kind, params, "token_embedding")
    _shape(origin, kind, params, "position_embedding")
    types, relative = (params.get(f"{key}") for key in ("token_type_embedding", "relative_bias"))
    found = _common(origin, kind, params, settings, width)
    usual = found.pop("pool", "first")
    pool: Any = settings.pool or usual
    found["norm"] = "post" if "ln_embedding/scale" in params else "pre"
    return Bert(
        pool=pool,
        final_norm="ln_final/scale" in params,
        token_types=0 if types is None else types.shape[0],
        relative_positions=0 if relative is None else relative.shape[0],
        vocab_size=rows,
        **found,
    )
