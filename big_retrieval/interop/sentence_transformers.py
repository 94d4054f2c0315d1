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

POOLS = {  # pooling in old and new settings files -> pool of a tower
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "cls": "first",
    "mean": "mean",
    "lasttoken": "last",
}
# Normalize before a Dense changes nothing if another Normalize follows.
DENSE_ORDER = "Transformer( Pooling( LayerNorm)?(( Dense)*|( Dense| Normalize)* Normalize))?"
SPLADE_ORDER = "(Transformer|MLMTransformer) SpladePooling"
LIBRARY = "config_sentence_transformers.json"
NORM_EPSILON = 1e-5  # of LayerNorm modules, always
# SpladePooling applies log(1 + x) after its activation function.
SPLADE = {"relu": "log1p_relu", "log1p_relu": "log1p_log1p_relu"}


def read_folder(folder: Path, origin: str) -> CheckpointContents:
    """Reads a folder with modules.json.

    Raises:
      UserError: a file that is missing or damaged, or a module that cannot be imported.
    """
    modules: dict[str, list[Path]] = {}
    order: list[str] = []
    for values in read_json_list(folder / "modules.json"):
        module = SettingsFile(folder / "modules.json", values, MODULE)
        module_class = str(module.get("type", "")).rsplit(".", 1)[-1]
        order.append(module_class)
        modules.setdefault(module_class, []).append(_inside(folder, str(module.get("path", ""))))
        module.finish()
    library = SettingsFile.open(folder / LIBRARY, SENTENCE_TRANSFORMERS)
    if re.fullmatch(SPLADE_ORDER, " ".join(order)):
        source = _read_splade(origin, modules[order[0]][0], modules["SpladePooling"][0], library)
    elif re.fullmatch(DENSE_ORDER, " ".join(order)):
        source = _read_dense(folder, origin, modules, library)
    else:
        raise UserError(
            f"{origin}/modules.json has the modules {', '.join(order)}. Only a Transformer can be "
            "imported, followed by Pooling, LayerNorm, Dense and Normalize in this order, or by "
            "SpladePooling."
        )
    library.finish()
    return source


def _read_dense(
    folder: Path, origin: str, modules: dict[str, list[Path]], library: SettingsFile
) -> CheckpointContents:
    inner = modules["Transformer"][0]
    for norm in modules.get("Normalize", ()):
        if norm != folder:
            SettingsFile.open(norm / "config.json", NORMALIZE).finish()
    settings = dataclasses.replace(
        _settings(library, inner, "feature-extraction"),
        pool=_pool(modules["Pooling"][0], origin, library) if "Pooling" in modules else "first",
        normalise="Normalize" in modules,
    )
    source = understand(origin, read_arrays(weights_file(inner)), settings)
    if "LayerNorm" in modules:
        source = _with_norm(source, modules["LayerNorm"][0])
    for dense in modules.get("Dense", ()):
        source = _with_dense(source, dense)
    return source


def _read_splade(
    origin: str, inner: Path, pooling: Path, library: SettingsFile
) -> CheckpointContents:
    """Reads a SPLADE model: a masked-language model, then SpladePooling."""
    config = SettingsFile.open(pooling / "config.json", SPLADE_KEYS)
    config.choice("pooling_strategy", {"max": "max"}, "max")
    activation = config.choice("activation_function", SPLADE, "relu")
    config.finish()
    settings = dataclasses.replace(_settings(library, inner, "fill-mask"), normalise=False)
    source = understand(origin, read_arrays(weights_file(inner)), settings)
    return as_lexical(source, activation, library.number("max_active_dims") or None)


def _settings(library: SettingsFile, inner: Path, task: str) -> Settings:
    """Returns the settings of the transformer with the prompts and the length of the library."""
    prompts = library.get("prompts") or {}
    name = library.get("default_prompt_name")
    if not isinstance(prompts, dict) or not (name is None or name in prompts):
        raise library.refused("default_prompt_name", "it is not a key of prompts; restore it")
    similarity = library.get("similarity_fn_name")
    if similarity not in (None, "cosine", "dot", "dot_score", "cos_sim"):
        raise library.refused("similarity_fn_name", "only cosine and dot can be imported")
    settings = read_settings(inner)
    return dataclasses.replace(
        settings,
        length=_length(inner, task) or settings.length,
        prompts={str(k): str(v) for k, v in prompts.items() if v and k != name},
        prefix="" if name is None else str(prompts[name]),
    )


def _inside(folder: Path, path: str) -> Path:
    """Returns a module's folder, which must be inside of the model's."""
    inner = (folder / path).resolve()
    if not inner.is_relative_to(folder.resolve()):
        raise UserError(f"Not opened: {folder}/modules.json names {path!r}, outside of its folder.")
    return inner


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
            f"{origin} pools by {', '.join(map(str, modes)) or 'nothing'}. Only one of cls, mean "
            "and lasttoken can be imported."
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
    texts = [*PROBES, *ascii_uppercase]
    ids, lower_ids = (tokenizer.encode(x, 64)[0] for x in (texts, [t.lower() for t in texts]))
    if (ids != lower_ids).any():
        raise file.refused("do_lower_case", "the tokenizer keeps upper case; convert the tokenizer")


def _with_norm(source: CheckpointContents, folder: Path) -> CheckpointContents:
    """Adds a norm after the pooling: the tower's final norm, if the first position is pooled."""
    SettingsFile.open(folder / "config.json", LAYER_NORM).finish()
    arrays = read_arrays(weights_file(folder))
    (name, part), *others = source.parts.items()
    tower: Any = part.tower
    fits = set(arrays) == {"norm.weight", "norm.bias"} and tower.epsilon == NORM_EPSILON
    if not fits or tower.pool != "first" or tower.final_norm or others:
        raise UserError(
            f"{folder} is a LayerNorm that cannot be imported. It must follow a pooling of the "
            f"first token, and norms of the encoder need an epsilon of {NORM_EPSILON:g}."
        )
    final = {"ln_final/scale": arrays["norm.weight"], "ln_final/bias": arrays["norm.bias"]}
    tower = dataclasses.replace(tower, final_norm=True)
    part = dataclasses.replace(part, tower=tower, params={**part.params, **final})
    return dataclasses.replace(source, parts={name: part})


def _with_dense(source: CheckpointContents, folder: Path) -> CheckpointContents:
    """Adds a projection after the pooling: a linear module without bias."""
    config = SettingsFile.open(folder / "config.json", DENSE)
    arrays = read_arrays(weights_file(folder))
    bias = arrays.get("linear.bias", np.zeros(1))
    linear = str(config.get("activation_function", "")).endswith("Identity")
    config.finish()
    (name, part), *others = source.parts.items()
    if others or part.head or not linear or np.any(bias) or "linear.weight" not in arrays:
        raise UserError(
            f"{folder} is a Dense module with a bias, an activation or a Dense before it; only one "
            "linear projection without bias can be imported."
        )
    head = {"kernel": arrays["linear.weight"].T}
    return dataclasses.replace(source, parts={name: dataclasses.replace(part, head=head)})
