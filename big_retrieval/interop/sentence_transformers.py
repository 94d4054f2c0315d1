"""Folders of sentence-transformers: a list of modules, each with a folder."""

import dataclasses
import re
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np

from big_retrieval.data.text.tokenizers import load_tokenizer
from big_retrieval.errors import UserError
from big_retrieval.interop.compatibility import PROBES
from big_retrieval.interop.files import read_arrays, read_json_list, weights_file
from big_retrieval.interop.lexical import as_lexical
from big_retrieval.interop.settings import Settings, read_settings
from big_retrieval.interop.settings_file import SettingsFile
from big_retrieval.interop.settings_keys import (
    DENSE,
    LAYER_NORM,
    MODULE,
    NORMALIZE,
    POOLING,
    SENTENCE_BERT,
    SENTENCE_TRANSFORMERS,
)
from big_retrieval.interop.settings_keys import SPLADE as SPLADE_KEYS
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
# Normalize before a Dense changes nothing if another one follows.
ORDER = "Transformer( Pooling( LayerNorm)?(( Dense)*|( Dense| Normalize)* Normalize))?"
LIBRARY = "config_sentence_transformers.json"
NORM_EPSILON = 1e-5  # of LayerNorm modules, always
SPLADE = {"relu": "log1p_relu", "log1p_relu": "log1p_log1p_relu"}


def read_folder(folder: Path, origin: str) -> CheckpointContents:
    """Reads a folder with modules.json.

    Raises:
      UserError: a file that is missing or damaged, or a module that cannot be imported.
    """
    by_kind: dict[str, list[Path]] = {}
    kinds: list[str] = []
    for values in read_json_list(folder / "modules.json"):
        module = SettingsFile(folder / "modules.json", values, MODULE)
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        kinds.append(kind)
        by_kind.setdefault(kind, []).append(_inside(folder, str(module.get("path", ""))))
        module.finish()
    if "SpladePooling" in by_kind:
        return _splade(folder, origin, by_kind)
    strange = set(by_kind) - {"Transformer", "Pooling", "LayerNorm", "Normalize", "Dense"}
    if strange or len(by_kind.get("Transformer", ())) != 1:
        raise UserError(
            f"{origin}/modules.json has {', '.join(sorted(by_kind))}; what can be imported is one "
            "Transformer with Pooling, and LayerNorm, Dense and Normalize behind it, or with "
            "SpladePooling."
        )
    if not re.fullmatch(ORDER, " ".join(kinds)):
        raise UserError(
            f"{origin}/modules.json has the modules {', '.join(kinds)} in an order that cannot be "
            "imported: Normalize is last, after Transformer, Pooling, LayerNorm and Dense."
        )
    inner = by_kind["Transformer"][0]
    library = SettingsFile.open(folder / LIBRARY, SENTENCE_TRANSFORMERS)
    pooling = by_kind.get("Pooling", [folder])[0]
    for norm in by_kind.get("Normalize", ()):
        if norm != folder:
            SettingsFile.open(norm / "config.json", NORMALIZE).finish()
    settings = _settings(library, inner, "feature-extraction")
    settings = dataclasses.replace(
        settings,
        pool=_pool(pooling, origin, library) if "Pooling" in by_kind else "first",
        normalise="Normalize" in by_kind,
    )
    source = understand(origin, read_arrays(weights_file(inner)), settings)
    if "LayerNorm" in by_kind:
        source = _with_norm(source, by_kind["LayerNorm"][0], list(by_kind))
    for dense in by_kind.get("Dense", ()):
        source = _with_dense(source, dense)
    if (dim := library.number("truncate_dim")) is not None:
        source = _truncated(source, dim, library)
    library.finish()
    return source


def _settings(library: SettingsFile, inner: Path, task: str) -> Settings:
    """Returns the settings of the transformer with the prompts and the length of the library."""
    prompts = library.get("prompts") or {}
    name = library.get("default_prompt_name")
    if not isinstance(prompts, dict) or not (name is None or name in prompts):
        raise library.refused("default_prompt_name", "it is not a key of prompts; restore it")
    similarity = library.get("similarity_fn_name")
    if similarity not in (None, "cosine", "dot", "dot_score", "cos_sim"):
        raise library.refused("similarity_fn_name", "only cosine and dot can be imported")
    return dataclasses.replace(
        found := read_settings(inner),
        length=_length(inner, task) or found.length,
        prompts={str(k): str(v) for k, v in prompts.items() if v and k != name},
        prefix="" if name is None else str(prompts[name]),
    )


def _splade(folder: Path, origin: str, by_kind: dict[str, list[Path]]) -> CheckpointContents:
    """Reads a SPLADE model: a masked-language model, then SpladePooling."""
    inner = [*by_kind.pop("Transformer", ()), *by_kind.pop("MLMTransformer", ())]
    pooling = by_kind.pop("SpladePooling")
    if by_kind or len(inner) != 1 or len(pooling) != 1:
        names = ", ".join(sorted(by_kind)) or "several of the same kind"
        raise UserError(
            f"{origin}/modules.json has {names} beside SpladePooling; what can be imported is one "
            "masked-language model with SpladePooling behind it."
        )
    config = SettingsFile.open(pooling[0] / "config.json", SPLADE_KEYS)
    config.choice("pooling_strategy", {"max": "max"}, "max")
    activation = config.choice("activation_function", SPLADE, "relu")
    config.finish()
    library = SettingsFile.open(folder / LIBRARY, SENTENCE_TRANSFORMERS)
    settings = _settings(library, inner[0], "fill-mask")
    kept = library.number("max_active_dims")
    library.finish()
    settings = dataclasses.replace(settings, normalise=False)
    source = understand(origin, read_arrays(weights_file(inner[0])), settings)
    return as_lexical(source, activation, kept or None)


def _inside(folder: Path, path: str) -> Path:
    """Returns a module's folder, which must be inside of the model's."""
    place = (folder / path).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise UserError(f"{folder}/modules.json names {path!r}, outside of its folder; not opened.")
    return place


def _pool(folder: Path, origin: str, library: SettingsFile) -> str:
    prompts = [name for name, text in (library.get("prompts") or {}).items() if text]
    config = SettingsFile.open(folder / "config.json", POOLING)
    modes = [key for key in POOLING if key.startswith("pooling_mode_") and config.get(key) is True]
    mode = config.get("pooling_mode")
    modes = modes if mode is None else mode if isinstance(mode, list) else [mode]
    if config.get("include_prompt", True) is not True and prompts:
        raise config.refused(
            "include_prompt", f"pooling without the prompts ({', '.join(prompts)}) is not imported"
        )
    config.finish()
    if len(modes) != 1 or modes[0] not in POOLS:
        raise UserError(
            f"{origin} pools by {', '.join(map(str, modes)) or 'nothing'}; what can be imported "
            "is one of cls, mean and lasttoken."
        )
    return POOLS[modes[0]]


def _length(folder: Path, task: str) -> int | None:
    file = SettingsFile.open(folder / "sentence_bert_config.json", SENTENCE_BERT)
    if "modality_config" in file:
        file.inside("modality_config").inside("text")
    file.choice("transformer_task", {task: task}, task)
    if file.get("do_lower_case", False):
        _check_lower_case(file, folder)
    length = file.number("max_seq_length")
    file.finish()
    return int(length) if length else None


def _check_lower_case(file: SettingsFile, folder: Path) -> None:
    """Checks that lower-casing texts before the tokenizer changes nothing."""
    tokenizer = load_tokenizer("auto", str(folder))
    as_given, lower = (
        tokenizer.encode([change(text) for text in (*PROBES, *ascii_uppercase)], 64)[0]
        for change in (str, str.lower)
    )
    if (as_given != lower).any():
        raise file.refused("do_lower_case", "the tokenizer keeps upper case; convert the tokenizer")


def _truncated(source: CheckpointContents, dim: int, library: SettingsFile) -> CheckpointContents:
    """Returns a model whose projection gives the first dimensions only."""
    (name, part), *_ = source.parts.items()
    width = part.tower.width
    kernel = part.head.get("kernel", np.eye(width, dtype=np.float32))
    if dim != int(dim) or not 0 < dim <= kernel.shape[1]:
        raise library.refused("truncate_dim", f"it must be 1 to {kernel.shape[1]}")
    note = f"embeddings are cut to {dim:g} dimensions"
    if source.settings.normalise:
        note += ", then normalized again, which changes no cosine"
    settings = dataclasses.replace(source.settings, notes=(*source.settings.notes, note))
    part = dataclasses.replace(part, head={"kernel": kernel[:, : int(dim)]})
    return dataclasses.replace(source, parts={name: part}, settings=settings)


def _with_norm(source: CheckpointContents, folder: Path, kinds: list[str]) -> CheckpointContents:
    """Adds a norm after the pooling: the tower's final norm, if the first position is pooled."""
    SettingsFile.open(folder / "config.json", LAYER_NORM).finish()
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
    """Adds a projection after the pooling: a linear module without bias."""
    config = SettingsFile.open(folder / "config.json", DENSE)
    arrays = read_arrays(weights_file(folder))
    bias = arrays.get("linear.bias", np.zeros(1))
    linear = str(config.get("activation_function", "")).endswith("Identity")
    config.finish()
    (name, part), *rest = source.parts.items()
    if rest or part.head or not linear or np.any(bias) or "linear.weight" not in arrays:
        raise UserError(
            f"{folder} is a Dense module with a bias, an activation or a Dense before it; only one "
            "linear projection without bias can be imported."
        )
    head = {"kernel": arrays["linear.weight"].T}
    return dataclasses.replace(source, parts={name: dataclasses.replace(part, head=head)})
