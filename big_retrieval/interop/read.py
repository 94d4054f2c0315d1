"""Reads a checkpoint: a file, a model folder of any library, a run of this package, or the hub."""

import re
from pathlib import Path
from typing import Any

from flax import traverse_util

from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.interop import published
from big_retrieval.interop.files import TORCH, read_arrays, read_json, weights_file
from big_retrieval.interop.kinds import Kind
from big_retrieval.interop.names import NameTable
from big_retrieval.interop.pixels import Pixels
from big_retrieval.interop.settings import Settings, read_settings
from big_retrieval.interop.source import (
    LOGIT_SCALE_PATH,
    CheckpointContents,
    CheckpointTower,
    below,
    understand,
)
from big_retrieval.interop.torch_weights import CONFIG, read_folder
from big_retrieval.io import hub, manifest

CERTIFICATE = "certificate.json"  # of exporting/certificate.py
HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.npz")
_TORCH_FILES = ("*pytorch_model*.bin",)  # if a model has no other weights
_PREFIXES = ("local-dir:", "hf-hub:")  # as open_clip writes them


def read(path: str) -> CheckpointContents:
    """Reads a checkpoint and recognizes its towers.

    Args:
      path: a weight file; a folder of Hugging Face, open_clip, timm or sentence-transformers; a run
        or checkpoint folder; the name of a published file; or a name on the hub.

    Raises:
      UserError: the path does not exist, cannot be read, or has an unknown architecture.
    """
    location, origin = locate(path)
    if location is None:
        weights, tokenizer = published.fetch(origin)
        return understand(
            origin, read_arrays(weights), Settings(pixels=Pixels(), tokenizer=tokenizer)
        )
    if location.is_dir():
        return _read_folder(location, origin)
    return understand(origin, read_arrays(location), read_settings(location.parent))


def locate(path: str) -> tuple[Path | None, str]:
    """Returns the file or folder of a path or of a name on the hub, and its name for messages.

    The path is None for the name of a published file.
    """
    if not path:
        raise UserError("The path of the weights is empty. Give a file, a folder or a hub name.")
    for prefix in _PREFIXES:
        path = path.removeprefix(prefix)
    location, origin = Path(path).expanduser(), path
    if location.exists():
        origin = str(location)
    elif (name := published.find(path)) is not None:
        return None, name
    elif location.suffix in (*TORCH, ".safetensors", ".npz") or location.is_absolute():
        raise UserError(f"No such file or folder: {path}.")
    else:
        location = _download(path)
    _check_complete(location)
    return location, origin


def _check_complete(folder: Path) -> None:
    """Raises a UserError if an export lacks a file: it could be read as another model."""
    try:
        files = read_json(folder / CERTIFICATE)["files"]
        names = [name for name in files if name.endswith((".json", ".safetensors"))]
    except (UserError, KeyError, TypeError, AttributeError):  # no export, or a damaged certificate
        return
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"{folder} lacks {name}, which its {CERTIFICATE} lists. Export again.")


def is_run(folder: Path) -> bool:
    """Returns True if a folder is a run, or a checkpoint, of this package."""
    return (folder / "checkpoints").is_dir() or (folder / manifest.MANIFEST).is_file()


def is_exported(folder: Path) -> bool:
    """Returns True if a folder is an export that has a config of this package."""
    return (folder / CONFIG).is_file()


def _read_folder(folder: Path, origin: str) -> CheckpointContents:
    if is_run(folder):
        from big_retrieval.inference.saved import find, read_config, restore_weights

        checkpoint = find(folder)
        config = read_config(checkpoint)
        return _contents(checkpoint, config, restore_weights(checkpoint, config))
    if is_exported(folder):
        return _contents(folder, *read_folder(folder))
    if (folder / "modules.json").is_file():
        from big_retrieval.interop import sentence_transformers

        return sentence_transformers.read_folder(folder, origin)
    return understand(origin, read_arrays(weights_file(folder)), read_settings(folder))


def _download(name: str) -> Path:
    """Downloads a model of the hub, or returns it from the cache."""
    import huggingface_hub

    def load(cached: bool) -> str:
        if cached:
            return huggingface_hub.snapshot_download(name, local_files_only=True)
        files = huggingface_hub.HfApi().list_repo_files(name)
        has_plain = any(file.endswith((".safetensors", ".npz")) for file in files)
        patterns = [*HUB_FILES, *(() if has_plain else _TORCH_FILES)]
        return huggingface_hub.snapshot_download(name, allow_patterns=patterns)

    otherwise = "download it elsewhere and give its folder"
    return Path(hub.fetch(name, load, label="the model", otherwise=otherwise))


def _contents(folder: Path, config: Config, weights: Any) -> CheckpointContents:
    """Returns a model of this package as a checkpoint; its towers are parts, by their names."""
    params: Any = traverse_util.flatten_dict(weights, sep="/")
    parts = {}
    for name, tower in config.towers.items():
        field = next(key for key, spec in config.encoded.items() if spec.tower == name)
        side: Any = tower.modality
        head = config.fields[field].head
        parts[name] = CheckpointTower(
            kind=Kind("a tower of big_retrieval", side, "", NameTable(())),
            tower=tower,
            params=below(params, f"{name}/"),
            head=below(params, f"{field}_head/"),
            lexical=head if head.lexical else None,
            stats=below(params, f"batch_stats/{name}/"),
            head_stats=below(params, f"batch_stats/{field}_head/"),
        )
    scales = [x for name, x in params.items() if re.fullmatch(LOGIT_SCALE_PATH, name)]
    images = [field for field in config.encoded.values() if field.modality == "image"]
    return CheckpointContents(
        origin=str(folder),
        parts=parts,
        logit_scale=scales[0] if scales else None,
        unused=[],
        unknown=[],
        spheres=config.spheres(),
        settings=Settings(
            tokenizer=folder / "tokenizer.json", pixels=_pixels(images[0]) if images else None
        ),
    )


def _pixels(field: Any) -> Pixels:
    return Pixels(
        field.size,
        field.mean,
        field.std,
        field.eval_resize,
        field.eval_squash,
        field.interpolation,
        field.eval_margin,
    )
