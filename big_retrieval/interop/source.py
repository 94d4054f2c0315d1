"""Towers, heads and parameters of another library's checkpoint."""

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
from big_retrieval.interop.image_names import BIG_VISION
from big_retrieval.interop.kinds import LOGIT_SCALES, MTOB_TEXT, Kind, kinds_of
from big_retrieval.interop.names import LAYOUTS
from big_retrieval.interop.pixels import Pixels
from big_retrieval.interop.settings import Settings

LOGIT_SCALE_PATH = "scalars/.*/logit_scale"  # parameters with the logarithm of a logit scale
Flat = dict[str, np.ndarray]
T = TypeVar("T")


@dataclass(frozen=True)
class CheckpointTower:
    """One tower of a checkpoint, with its head; arrays by their path below tower or head."""

    kind: Kind
    tower: Any  # a `config.Tower` with the checkpoint's class tokens and lengths
    params: Flat
    head: Flat  # empty without a head
    names: frozenset[str] = frozenset()  # used names, without the prefix
    lexical: Lexical | None = None  # None if `head` is dense
    masked: Flat = field(default_factory=dict)  # unused masked-language head
    masked_names: tuple[str, ...] = ()  # its names in the checkpoint
    stats: Flat = field(default_factory=dict)  # running averages of batch norms
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
    """Contents of a checkpoint."""

    origin: str  # file or folder, for messages
    parts: dict[str, CheckpointTower]  # "image", "text"; of a run, its towers by name
    logit_scale: np.ndarray | None  # logarithm of the logit scale; None without one
    unused: list[str]  # known names that are not imported
    unknown: list[str]  # names that are not in any table
    settings: Settings = field(default_factory=Settings)
    spheres: int = 1  # M, number of sub-spheres that scores sum over

    def pixels(self, part: CheckpointTower) -> Pixels | None:
        """Returns the preparation of images: the settings' or the architecture's."""
        return self.settings.pixels or part.kind.pixels


def understand(
    origin: str, arrays: Mapping[str, np.ndarray], settings: Settings
) -> CheckpointContents:
    """Finds the towers in the arrays of a checkpoint.

    Raises:
      UserError: the architecture is unknown, or arrays are missing or contradict the settings.
    """
    arrays = dict(_with_new_names(arrays))
    parts: dict[str, CheckpointTower] = {}
    used: set[str] = set()
    unused: set[str] = set()
    for kind, prefix in kinds_of(arrays, settings.model_type):
        tower_arrays = below(arrays, prefix)
        part = _with_masked(_read_tower(origin, kind, tower_arrays, settings), arrays)
        parts[kind.side] = part
        used |= {prefix + name for name in part.names}
        unused |= {prefix + name for name in tower_arrays if kind.table.is_unused(name)}
        unused |= set(part.masked_names)
    if not parts:
        first = ", ".join(sorted(arrays)[:3])
        raise UserError(
            f"Unknown architecture: {origin}. Its first names are {first}. docs/INTEROP.md lists "
            "the models that can be imported."
        )
    text = parts.get("text")
    if text is not None and text.kind is MTOB_TEXT and "image" in parts:  # equal numbers
        tokens = parts["image"].tower.class_tokens
        tower = dataclasses.replace(text.tower, class_tokens=tokens)
        parts["text"] = dataclasses.replace(text, tower=tower)
    logit_scale = next((name for name in LOGIT_SCALES if name in arrays), "")
    return CheckpointContents(
        origin=origin,
        parts=parts,
        logit_scale=arrays[logit_scale].reshape(()) if logit_scale else None,
        unused=sorted(unused - used),
        unknown=sorted(set(arrays) - used - unused - {logit_scale}),
        settings=settings,
        spheres=max(1, *(part.tower.class_tokens for part in parts.values())),
    )


_RENAMED = (  # names of old files -> names of newer files of the same library
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
    (r"(predictions|lm_head)\.decoder\.bias$", r"\1.bias"),
    (r"/MultiHeadDotProductAttention_1/", "/MultiHeadDotProductAttention_0/"),
    (r"/LayerNorm_2/", "/LayerNorm_1/"),
    (r"/MlpBlock_3/", "/MlpBlock_0/"),
    (r"Transformer/posembed_input/pos_embedding", "pos_embedding"),
)


def _with_new_names(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields arrays with the names of the tables; big_vision's scanned layers one by one.

    The bias of a masked-language head has two names, mostly for the same array. If the arrays
    differ, the library adds the decoder's bias, so the decoder's bias comes last and replaces the
    other.
    """
    for name in sorted(arrays, key=lambda name: name.endswith(".decoder.bias")):
        array = arrays[name]
        for old, new in _RENAMED:
            name = re.sub(old, new, name)
        if "Transformer/encoderblock/" not in name:
            yield name, array
            continue
        for index, layer in enumerate(array):
            yield name.replace("encoderblock/", f"encoderblock_{index}/"), layer


def below(paths: Mapping[str, T], prefix: str) -> dict[str, T]:
    """Returns the entries with a prefix, without the prefix."""
    return {path[len(prefix) :]: x for path, x in paths.items() if path.startswith(prefix)}


def _read_tower(origin: str, kind: Kind, arrays: Flat, settings: Settings) -> CheckpointTower:
    rows = list(kind.table.to_jax(arrays))
    params = {path: array for _, path, array in rows}
    names = {name for name, _, _ in rows}
    if kind.table is BIG_VISION and "cls" in arrays:
        params = _with_class_position(params)
    head: Flat = {}
    for entry in filter(None, (kind.head, *kind.mlp)):
        if entry.source_name in arrays:
            (head[entry.jax_path],) = LAYOUTS[entry.layout].to_jax(arrays[entry.source_name])
            names.add(entry.source_name)
    if kind.stats is not None:
        rows = list(kind.stats.to_jax(arrays))
        stats = {path: array for _, path, array in rows}
        tower = resnets.recognize(origin, kind.name, params, stats)
        names |= {name for name, _, _ in rows}
        return CheckpointTower(kind, tower, params, head, frozenset(names), stats=stats)
    read_config = _vision_config if kind.side == "image" else _text_config
    tower = read_config(origin, kind, params, settings)
    return CheckpointTower(kind, tower, params, head, frozenset(names))


def _with_class_position(params: Flat) -> Flat:
    """Adds a zero position of the class token if big_vision added positions to patches only."""
    positions = params.get("position_embedding")
    if positions is None or math.isqrt(len(positions)) ** 2 != len(positions):
        return params  # none, or with the class token's row
    return params | {"position_embedding": np.pad(positions, ((1, 0), (0, 0)))}


def _with_masked(part: CheckpointTower, arrays: Flat) -> CheckpointTower:
    """Returns the tower with its masked-language head, if the checkpoint has one."""
    if part.kind.masked is None:
        return part
    table = part.kind.masked.table
    rows = list(table.to_jax(arrays))
    head = {path: array for _, path, array in rows}
    word_table = part.params.get("token_embedding")
    if "kernel" in head and word_table is not None and np.array_equal(head["kernel"], word_table):
        del head["kernel"]  # a copy of the word table
    names = [name for name, _, _ in rows] + [name for name in arrays if table.is_unused(name)]
    return dataclasses.replace(part, masked=head, masked_names=tuple(names))


def _common_keys(origin: str, kind: Kind, params: Flat, settings: Settings, width: int) -> dict:
    layers = {int(m[1]) for path in params if (m := re.match(r"layers_(\d+)/", path))}
    if layers != set(range(len(layers))) or not layers:
        raise UserError(f"{origin}: {kind.name} has the layers {sorted(layers)}, not 0, 1, ...")
    keys = settings.for_side(kind.side)
    if keys.get("depth") not in (None, len(layers)):
        raise UserError(
            f"{origin}: {kind.name} has {len(layers)} layers, its settings file has "
            f"{keys['depth']}. Restore the file that is wrong."
        )
    heads = keys.get("heads") or (kind.head_width and max(1, width // kind.head_width))
    if heads is None:
        raise UserError(
            f"{origin}: the arrays do not determine how many attention heads {kind.name} has. Give "
            "the folder with its config.json instead of the bare file."
        )
    settings_keys = {k: keys[k] for k in ("activation", "epsilon") if keys.get(k) is not None}
    return {
        "width": width,
        "depth": len(layers),
        "heads": heads,
        "mlp": _shape(origin, kind, params, "layers_0/mlp/fc1/bias")[0],
        **kind.fixed,
        **kind.usual,
        **settings_keys,
    }


def _shape(origin: str, kind: Kind, params: Flat, path: str) -> tuple[int, ...]:
    if path not in params:
        raise UserError(f"{origin} looks like {kind.name}, but lacks its {path}.")
    return params[path].shape


def _vision_config(origin: str, kind: Kind, params: Flat, settings: Settings) -> ViT:
    pixels, width = _shape(origin, kind, params, "patch_embedding/kernel")
    tokens = params["class_embedding"].shape[0] if "class_embedding" in params else 0
    rows = _shape(origin, kind, params, "position_embedding")[0]
    patch, keys = math.isqrt(pixels // 3), settings.for_side("image")
    _check_size(origin, settings, patch, math.isqrt(rows - tokens))
    norm_first = "ln_pre/scale" in params
    if keys.get("norm_first", norm_first) != norm_first:
        raise UserError(
            f"{origin}: no_ln_pre contradicts the arrays, which {'' if norm_first else 'do not '}"
            "have ln_pre. Restore the file that is wrong."
        )
    return ViT(
        patch=patch,
        class_tokens=tokens,
        pool=keys.get("pool", "first") if tokens else "mean",
        norm_first=norm_first,
        patch_bias="patch_embedding/bias" in params,
        **_common_keys(origin, kind, params, settings, width),
    )


def _check_size(origin: str, settings: Settings, patch: int, grid: int) -> None:
    """Checks the image size of the settings files against the positions of patches."""
    sizes = (settings.for_side("image").get("image_size"), settings.pixels and settings.pixels.size)
    for size in filter(None, sizes):
        if size % patch or size // patch != grid:
            raise UserError(
                f"{origin}: the settings files have images of {size} pixels, the arrays have "
                f"positions for {grid * patch}, in patches of {patch}. Restore the file that is "
                "wrong; an image size must be a multiple of the patch size."
            )


def _text_config(origin: str, kind: Kind, params: Flat, settings: Settings) -> Bert:
    rows, width = _shape(origin, kind, params, "token_embedding")
    _shape(origin, kind, params, "position_embedding")
    types, relative = (params.get(f"{key}") for key in ("token_type_embedding", "relative_bias"))
    keys = _common_keys(origin, kind, params, settings, width)
    default_pool = keys.pop("pool", "first")
    return Bert(
        pool=settings.pool or default_pool,
        norm="post" if "ln_embedding/scale" in params else "pre",
        final_norm="ln_final/scale" in params,
        token_types=0 if types is None else types.shape[0],
        relative_positions=0 if relative is None else relative.shape[0],
        vocab_size=rows,
        **keys,
    )
