"""Folders of sentence-transformers: a list of modules, each with a folder of its own."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.interop.files import read_arrays, read_json, read_json_list, weights_file
from big_retrieval.interop.lexical import as_lexical
from big_retrieval.interop.settings import read_settings
from big_retrieval.interop.source import CheckpointContents, understand

POOLS = {  # as their settings call them, old and new -> as we do
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "cls": "first",
    "mean": "mean",
    "lasttoken": "last",
}
# SpladePooling applies log(1 + x) to what its activation function gives.
NORM_EPSILON = 1e-5  # of LayerNorm modules, always
SPLADE = {"relu": "log1p_relu", "log1p_relu": "log1p_log1p_relu"}


def read_folder(folder: Path, origin: str) -> CheckpointContents:
    """Reads a folder with modules.json.

    Args:
      folder: the model's.
      origin: its name for messages.

    Raises:
      UserError: a file that is missing or damaged, or a module that we have no counterpart of.
    """
    modules = read_json_list(folder / "modules.json")
    by_kind: dict[str, list[Path]] = {}
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        by_kind.setdefault(kind, []).append(_inside(folder, str(module.get("path", ""))))
    if "SpladePooling" in by_kind:
        return _splade(folder, origin, by_kind)
    strange = set(by_kind) - {"Transformer", "Pooling", "LayerNorm", "Normalize", "Dense"}
    if strange or len(by_kind.get("Transformer", ())) != 1:
        raise UserError(
            f"{origin}/modules.json has {', '.join(sorted(by_kind))}; what can be imported is one "
            "Transformer with Pooling, and LayerNorm, Dense and Normalize behind it, or with "
            "SpladePooling."
        )
    inner = by_kind["Transformer"][0]
    settings = dataclasses.replace(
        read_settings(inner),
        pool=_pool(by_kind["Pooling"][0], origin) if "Pooling" in by_kind else "first",
        normalise="Normalize" in by_kind,
        length=_length(inner),
        prompts=_prompts(folder),
    )
    source = understand(origin, read_arrays(weights_file(inner)), settings)
    if "LayerNorm" in by_kind:
        source = _with_norm(source, by_kind["LayerNorm"][0], list(by_kind))
    for dense in by_kind.get("Dense", ()):
        source = _with_dense(source, dense)
    return source


def _splade(folder: Path, origin: str, by_kind: dict[str, list[Path]]) -> CheckpointContents:
    """A SPLADE model: a masked-language model with SpladePooling behind it."""
    inner = [*by_kind.pop("Transformer", ()), *by_kind.pop("MLMTransformer", ())]
    pooling = by_kind.pop("SpladePooling")
    if by_kind or len(inner) != 1 or len(pooling) != 1:
        names = ", ".join(sorted(by_kind)) or "several of the same kind"
        raise UserError(
            f"{origin}/modules.json has {names} beside SpladePooling; what can be imported is one "
            "masked-language model with SpladePooling behind it."
        )
    config = read_json(pooling[0] / "config.json")
    how = config.get("pooling_strategy", "max")
    if how != "max":
        raise UserError(
            f"{pooling[0]}: pooling_strategy is {how!r}; only 'max' can be imported, as no lexical "
            "head of ours adds up over positions."
        )
    activation = config.get("activation_function", "relu")
    if activation not in SPLADE:
        known = ", ".join(SPLADE)
        raise UserError(
            f"{pooling[0]}: activation_function is {activation!r}; what can be imported: {known}."
        )
    settings = dataclasses.replace(
        read_settings(inner[0]),
        normalise=False,
        length=_length(inner[0]),
        prompts=_prompts(folder),
    )
    source = understand(origin, read_arrays(weights_file(inner[0])), settings)
    source = as_lexical(source, SPLADE[activation])
    return dataclasses.replace(source, unused=[*source.unused, *_dropped(folder)])


def _dropped(folder: Path) -> list[str]:
    """Settings of a sparse encoder that change what it gives and that we do not follow."""
    path = folder / "config_sentence_transformers.json"
    config = read_json(path) if path.is_file() else {}
    return [f"max_active_dims of {path.name}"] if config.get("max_active_dims") else []


def _inside(folder: Path, path: str) -> Path:
    """A module's folder, which must lie in the model's."""
    place = (folder / path).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise UserError(f"{folder}/modules.json names {path!r}, outside of its folder; not opened.")
    return place


def _pool(folder: Path, origin: str) -> str:
    config = read_json(folder / "config.json")
    chosen = [
        POOLS.get(key, key)
        for key, on in config.items()
        if key.startswith("pooling_") and on is True
    ]
    mode = config.get("pooling_mode")
    if mode is not None:
        chosen = [POOLS.get(each, each) for each in (mode if isinstance(mode, list) else [mode])]
    if len(chosen) != 1 or chosen[0] not in ("first", "mean", "last"):
        raise UserError(
            f"{origin} pools by {', '.join(map(str, chosen)) or 'nothing'}; what can be imported "
            "is one of cls, mean and lasttoken."
        )
    return chosen[0]


def _length(folder: Path) -> int | None:
    path = folder / "sentence_bert_config.json"
    value = read_json(path).get("max_seq_length") if path.is_file() else None
    return int(value) if value else None


def _prompts(folder: Path) -> dict[str, str]:
    path = folder / "config_sentence_transformers.json"
    prompts = read_json(path).get("prompts") if path.is_file() else None
    return {str(k): str(v) for k, v in prompts.items() if v} if isinstance(prompts, dict) else {}


def _with_norm(source: CheckpointContents, folder: Path, kinds: list[str]) -> CheckpointContents:
    """A norm behind the pooling: where that takes the first position, the tower's final norm."""
    arrays = read_arrays(weights_file(folder))
    (name, part), *rest = source.parts.items()
    tower: Any = part.tower
    fits = set(arrays) == {"norm.weight", "norm.bias"} and tower.epsilon == NORM_EPSILON
    fits = fits and tower.pool == "first" and not tower.final_norm and not rest
    if not fits or kinds[:3] != ["Transformer", "Pooling", "LayerNorm"]:
        raise UserError(
            f"{folder} is a LayerNorm that cannot be imported: it has to follow a pooling of the "
            f"first token, and norms of the encoder need an epsilon of {NORM_EPSILON:g}."
        )
    final = {"ln_final/scale": arrays["norm.weight"], "ln_final/bias": arrays["norm.bias"]}
    part = dataclasses.replace(
        part,
        tower=dataclasses.replace(tower, final_norm=True),
        params={**part.params, **final},
    )
    return dataclasses.replace(source, parts={name: part})


def _with_dense(source: CheckpointContents, folder: Path) -> CheckpointContents:
    """A projection behind the pooling: linear ones without bias are a head of ours."""
    config: dict[str, Any] = read_json(folder / "config.json")
    arrays = read_arrays(weights_file(folder))
    bias = arrays.get("linear.bias", np.zeros(1))
    linear = str(config.get("activation_function", "")).endswith("Identity")
    (name, part), *rest = source.parts.items()
    if rest or part.head or not linear or np.any(bias) or "linear.weight" not in arrays:
        raise UserError(
            f"{folder} is a Dense module with a bias, an activation or a Dense before it; only one "
            "linear projection without bias can be imported."
        )
    head = {"kernel": arrays["linear.weight"].T}
    return dataclasses.replace(source, parts={name: dataclasses.replace(part, head=head)})
