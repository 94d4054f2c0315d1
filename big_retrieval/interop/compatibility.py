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

ADDS = {  # attribute that only adds parameters -> one added parameter
    "norm_first": "ln_pre/scale",
    "patch_bias": "patch_embedding/bias",
    "final_norm": "ln_final/scale",
    "token_types": "token_type_embedding",
    "relative_positions": "relative_bias",
}
PROBES = (  # texts that tokenizers split differently
    "Two dogs, playing!",
    "Caf\u00e9 na\u00efve \u00dcber",
    "\u4eca\u5929 \U0001f600 don't",
    "UPPER  case\tand  spaces",
    "antidisestablishmentarianism 3.14",
)


def check_tower(
    path: str, tower: Tower, saved: CheckpointTower, origin: str, fresh: Sequence[str] = ()
) -> None:
    """Checks that a configured tower computes the same as the checkpoint's tower.

    Args:
      path: location of the tower in the config, such as config.towers.image.
      fresh: patterns of parameters that the checkpoint may lack.

    Raises:
      UserError: names the keys that differ, with the checkpoint's values.
    """
    if type(tower) is not type(saved.tower):
        raise UserError(
            f"{path}.type is {tower.type!r}, but {origin} has {saved.kind.name}. Name another "
            "tower in config.init."
        )
    added = {
        key
        for key, name in ADDS.items()
        if not getattr(saved.tower, key, True) and _fits(name, fresh)
    }
    # Checkpoints of this package may have any tower.
    keys = tower.computed_by or [key.name for key in dataclasses.fields(saved.tower)]
    keys = [key for key in keys if key not in added]
    otherwise = ""
    if tower.depth < saved.tower.depth and tower.at_depth(1) is not None:
        flag = f"--config.init.{path.rpartition('.')[2]}.first_layers=True"
        otherwise = f" If only the depth differs, {flag} takes the first {tower.depth} layers."
    check_keys(path, tower, saved.tower, keys, f"{origin} ({saved.kind.name})", otherwise)


def check_keys(
    path: str, current: Any, expected: Any, keys: Sequence[str], origin: str, otherwise: str = ""
) -> None:
    """Raises a UserError if keys of a config's part differ from the checkpoint's part."""
    keys = [key for key in keys if getattr(current, key) != getattr(expected, key)]
    if keys:
        flags = " ".join(f"--{path}.{key}={getattr(expected, key)}" for key in keys)
        values = ", ".join(f"{key} {getattr(current, key)}" for key in keys)
        raise UserError(f"{path} differs from {origin}: it has {values}. Give {flags}.{otherwise}")


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def check_inputs(
    config: Config,
    tower: str,
    saved: CheckpointTower,
    source: CheckpointContents,
    shapes: Mapping[str, tuple[int, ...]],
) -> list[str]:
    """Checks that a tower gets inputs as in the checkpoint's training: vocabulary and pixels.

    Args:
      tower: its name in the config.
      shapes: path -> shape of the model's parameters.

    Returns:
      Messages about fields that prepare inputs differently.

    Raises:
      UserError: another number of words, or another mean or deviation of pixels.
    """
    table_shape = shapes.get(f"{tower}/token_embedding")
    if table_shape is not None and table_shape[0] != (
        rows := saved.params["token_embedding"].shape[0]
    ):
        raise UserError(
            f"{source.origin} has {rows:,} words, config.towers.{tower} {table_shape[0]:,}. Set "
            f"config.tokenizer.path to its tokenizer ({source.settings.tokenizer or 'unknown'}). "
            f"If the table has more rows, set config.towers.{tower}.vocab_size to {rows}."
        )
    pixels, notes = source.pixels(saved), []
    for name, field in config.encoded.items():
        if field.tower != tower:
            continue
        expected: dict[str, Any] = {}
        if field.modality == "image" and pixels is not None:
            expected = pixels.field_keys()
        elif field.modality == "text":
            expected = {"prefix": source.settings.prefix}
        for key in ("mean", "std"):
            value, trained = getattr(field, key, None), expected.pop(key, None)
            if trained is not None and not np.allclose(value, trained, atol=1e-3):  # type: ignore
                raise UserError(
                    f"config.fields.{name}.{key} is {value}, but {source.origin} was trained with "
                    f"{trained}. Set it to that value."
                )
        flags = " ".join(
            f"--config.fields.{name}.{key}={value!r}"
            for key, value in expected.items()
            if getattr(field, key) != value
        )
        if flags:
            notes.append(
                f"config.fields.{name} prepares its values differently from {source.origin}, "
                f"which has {flags}"
            )
    return notes


def check_tokenizer(source: CheckpointContents, tokenizer: FixedLengthTokenizer) -> None:
    """Checks that a run's tokenizer gives the ids of the checkpoint's tokenizer, if it has one.

    Raises:
      UserError: shows a text that differs.
    """
    path = source.settings.tokenizer
    if path is None:
        return
    original = load_tokenizer("auto", str(path))
    check_end(source, original)
    for text in PROBES:
        ids, expected = _ids(tokenizer, text), _ids(original, text)
        if ids != expected:
            raise UserError(
                f"config.tokenizer is not the tokenizer of {source.origin}: {text!r} becomes "
                f"{ids[:6]} instead of {expected[:6]}. Set config.tokenizer.path={path}."
            )


def check_end(source: CheckpointContents, tokenizer: FixedLengthTokenizer) -> None:
    """Checks that texts end with the token that the checkpoint's library pools at."""
    end, ends = source.settings.end, tokenizer.frame()["end"]
    if end is None or source.parts["text"].tower.pool != "last":
        return
    pooled = tokenizer.vocab_size - 1 if end == "largest" else end
    if ends != (pooled,):
        raise UserError(
            f"{source.origin} pools texts at the {'largest ' * (end == 'largest')}id {pooled}, but "
            f"its tokenizer ends them with {', '.join(map(str, ends)) or 'nothing'}. Restore its "
            "settings or its tokenizer."
        )


def _ids(tokenizer: FixedLengthTokenizer, text: str) -> list[int]:
    ids, mask = tokenizer.encode([text], 64)
    return ids[mask].tolist()


def check_names(
    origin: str,
    arrays: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    fresh: Sequence[str] = (),
) -> list[str]:
    """Checks that a tower has all parameters; returns the parameters that start from random values.

    Args:
      arrays: path -> array, from the checkpoint.
      shapes: path -> shape, of the model.
      fresh: patterns of paths that the checkpoint may lack.

    Raises:
      UserError: names parameters that are missing, superfluous, or of another shape.
    """
    missing = sorted(set(shapes) - set(arrays))
    random = [name for name in missing if _fits(name, fresh)]
    problems = {
        "lacks": [name for name in missing if name not in random],
        "has too much": sorted(set(arrays) - set(shapes)),
        "has another shape of": [
            f"{name} ({list(arrays[name].shape)} instead of {list(shapes[name])})"
            for name in sorted(set(arrays) & set(shapes))
            if arrays[name].shape != shapes[name]
        ],
    }
    for verb, names in problems.items():
        if names:
            raise UserError(f"{origin} {verb}: {_first_names(names)}.")
    return random


def check_unknown(source: CheckpointContents, skip: Sequence[str]) -> None:
    """Raises a UserError for unknown arrays of a checkpoint that match no pattern of `skip`."""
    names = [name for name in source.unknown if not _fits(name, skip)]
    if names:
        raise UserError(
            f"{source.origin} has unknown parameters: {_first_names(names)}. To ignore them, list "
            "them in `skip` of config.init."
        )


def _first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
