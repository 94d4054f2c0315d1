"""Comparison of a config with a checkpoint; errors name the keys to change."""

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from big_retrieval.config import Config, Tower
from big_retrieval.data.text.tokenizer import FixedLengthTokenizer
from big_retrieval.data.text.tokenizers import load_tokenizer
from big_retrieval.errors import UserError
from big_retrieval.interop.source import CheckpointContents, CheckpointTower

ADDS = {  # attribute that only adds parameters -> one of them
    "norm_first": "ln_pre/scale",
    "patch_bias": "patch_embedding/bias",
    "final_norm": "ln_final/scale",
    "token_types": "token_type_embedding",
    "relative_positions": "relative_bias",
}
PROBES = (  # texts on which tokenizers differ
    "Two dogs, playing!",
    "Caf\u00e9 na\u00efve \u00dcber",
    "\u4eca\u5929 \U0001f600 don't",
    "UPPER  case\tand  spaces",
    "antidisestablishmentarianism 3.14",
)


def same_tower(
    path: str, tower: Tower, part: CheckpointTower, origin: str, fresh: Sequence[str] = ()
) -> None:
    """Checks that a configured tower computes the same as the checkpoint's.

    Args:
      path: location of the tower in the config, such as config.towers.image.
      origin: the file, for messages.
      fresh: patterns of parameters that the checkpoint may lack.

    Raises:
      UserError: names the keys that differ, with the checkpoint's values.
    """
    if type(tower) is not type(part.tower):
        raise UserError(
            f"{path}.type is {tower.type!r}, but {origin} has {part.kind.name}. Name another tower "
            "in config.init."
        )
    keys = [
        key
        for key in tower.computed_by or _keys(tower)
        if getattr(tower, key) != getattr(part.tower, key)
        and not (key in ADDS and not getattr(part.tower, key) and _fits(ADDS[key], fresh))
    ]
    if keys:
        flags = " ".join(f"--{path}.{key}={getattr(part.tower, key)}" for key in keys)
        have = ", ".join(f"{key} {getattr(tower, key)}" for key in keys)
        cut = ""
        if keys == ["depth"] and tower.depth < part.tower.depth and tower.at_depth(1) is not None:
            key = f"--config.init.{path.rpartition('.')[2]}.first_layers=True"
            cut = f", or {key} for its first {tower.depth} layers"
        raise UserError(
            f"{path} differs from {origin} ({part.kind.name}): it has {have}. Give {flags}{cut}."
        )


def _keys(tower: Any) -> list[str]:
    """Returns all keys of a tower; a checkpoint of this package may have any tower."""
    return [key.name for key in dataclasses.fields(tower)]


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def same_inputs(
    config: Config,
    tower: str,
    part: CheckpointTower,
    source: CheckpointContents,
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Checks that a tower gets the words and pixels that the checkpoint was trained with.

    Args:
      tower: its name in the config.
      shapes: shapes of the model's parameters.

    Raises:
      UserError: another number of words, or another mean or deviation of pixels.
    """
    words = shapes.get(f"{tower}/token_embedding")
    if words is not None and words[0] != (rows := part.params["token_embedding"].shape[0]):
        place = source.settings.tokenizer
        raise UserError(
            f"{source.origin} has {rows:,} words, config.towers.{tower} {words[0]:,}: set "
            f"config.tokenizer.path to its tokenizer{f' ({place})' if place else ''}, or, where "
            f"the table has more rows than that, config.towers.{tower}.vocab_size to {rows}."
        )
    pixels = source.pixels(part)
    for name, field in config.encoded.items():
        if field.tower != tower or field.modality != "image" or pixels is None:
            continue
        for key in ("mean", "std"):
            mine, theirs = getattr(field, key), getattr(pixels, key)
            if not np.allclose(mine, theirs, atol=1e-3):
                raise UserError(
                    f"config.fields.{name}.{key} is {mine}, but {source.origin} was trained with "
                    f"{theirs}: set it to that."
                )


def other_inputs(
    config: Config, tower: str, part: CheckpointTower, source: CheckpointContents
) -> list[str]:
    """Returns messages about fields that prepare inputs differently from the checkpoint."""
    pixels, notes = source.pixels(part), list(source.settings.notes)
    for name, field in config.encoded.items():
        if field.tower != tower:
            continue
        library: dict[str, Any] = {}
        if field.modality == "image" and pixels is not None:
            library = {k: v for k, v in pixels.keys().items() if k not in ("mean", "std")}
        elif field.modality == "text":
            library = {"prefix": source.settings.prefix}
        have: Any = field
        keys = [key for key, value in library.items() if getattr(have, key) != value]
        if keys:
            flags = " ".join(f"--config.fields.{name}.{key}={library[key]!r}" for key in keys)
            notes.append(
                f"config.fields.{name} prepares its values in another way than {source.origin}; "
                f"its own: {flags}"
            )
    return notes


def same_tokenizer(source: CheckpointContents, tokenizer: FixedLengthTokenizer) -> None:
    """Checks that a run's tokenizer gives the ids of the checkpoint's tokenizer, if it has one.

    Raises:
      UserError: shows a text that differs.
    """
    place = source.settings.tokenizer
    if place is None:
        return
    own = load_tokenizer("auto", str(place))
    check_end(source, own)
    for text in PROBES:
        mine, theirs = _ids(tokenizer, text), _ids(own, text)
        if mine != theirs:
            raise UserError(
                f"config.tokenizer is not the tokenizer of {source.origin}: {text!r} becomes "
                f"{mine[:6]} instead of {theirs[:6]}; set config.tokenizer.path={place}."
            )


def check_end(source: CheckpointContents, tokenizer: FixedLengthTokenizer) -> None:
    """Checks that texts end with the token that the checkpoint's library pools at."""
    wanted, ends = source.settings.end, tokenizer.frame()["end"]
    if wanted is None or source.parts["text"].tower.pool != "last":
        return
    largest = tokenizer.vocab_size - 1
    if ends != (largest if wanted == "largest" else wanted,):
        place = f"the largest id, {largest}" if wanted == "largest" else f"the id {wanted}"
        raise UserError(
            f"{source.origin} pools texts at {place}, but its tokenizer ends them with "
            f"{', '.join(map(str, ends)) or 'nothing'}: restore its settings or its tokenizer."
        )


def _ids(tokenizer: FixedLengthTokenizer, text: str) -> list[int]:
    ids, mask = tokenizer.encode([text], 64)
    return ids[mask].tolist()


def same_names(
    origin: str,
    fitted: Mapping[str, np.ndarray],
    wanted: Mapping[str, tuple[int, ...]],
    fresh: Sequence[str] = (),
) -> list[str]:
    """Checks that a tower has all parameters; returns the parameters that start from random values.

    Args:
      fitted: path -> array, from the checkpoint.
      wanted: path -> shape, of the model.
      fresh: patterns of paths that the checkpoint may lack.

    Raises:
      UserError: names parameters that are missing, superfluous, or of another shape.
    """
    missing = sorted(set(wanted) - set(fitted))
    anew = [name for name in missing if _fits(name, fresh)]
    lacking = [name for name in missing if name not in anew]
    extra = sorted(set(fitted) - set(wanted))
    other = [
        f"{name} ({list(fitted[name].shape)} instead of {list(wanted[name])})"
        for name in sorted(set(fitted) & set(wanted))
        if fitted[name].shape != wanted[name]
    ]
    for what, found in (
        ("lacks", lacking),
        ("has too much", extra),
        ("has another shape of", other),
    ):
        if found:
            raise UserError(f"{origin} {what}: {_some(found)}.")
    return anew


def no_surprise(source: CheckpointContents, skip: Sequence[str]) -> None:
    """Raises a UserError for unknown arrays of a checkpoint that match no pattern of `skip`."""
    strange = [name for name in source.unknown if not _fits(name, skip)]
    if strange:
        raise UserError(
            f"{source.origin} has parameters that are not understood: {_some(strange)}; if they "
            "are not wanted, name them in skip of config.init."
        )


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + rest
