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
    OUR_LOGIT_SCALE,
    CheckpointContents,
    CheckpointTower,
    below,
    understand,
)
from big_retrieval.interop.torch_weights import CONFIG, read_folder
from big_retrieval.io import hub, manifest

CERTIFICATE = "certificate.json"  # of exporting/certificate.py
HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.npz")
_TORCH_FILES = ("*pytorch_model*.bin",)  # where a model has nothing else
_PREFIXES = ("local-dir:", "hf-hub:")  # as open_clip writes them


def read(path: str) -> CheckpointContents:
    """Reads a checkpoint and recognizes its towers.

    Args:
      path: a weight file; a folder of Hugging Face, open_clip, timm or sentence-transformers; a run
        or checkpoint folder; the name of a published file; or a name on the hub.

    Raises:
      UserError: nothing is there, it cannot be read, or its architecture is unknown.
    """
    place, origin = locate(path)
    if place is None:
        weights, words = published.fetch(origin)
        return understand(origin, read_arrays(weights), Settings(pixels=Pixels(), tokenizer=words))
    if place.is_dir():
        return _folder(place, origin)
    return understand(origin, read_arrays(place), read_settings(place.parent))


def locate(path: str) -> tuple[Path | None, str]:
    """Returns the file or folder of a path or of a name on the hub, and its name for messages.

    None instead of a file for the name of a published file.
    """
    if not path:
        raise UserError("the path of the weights is empty; give a file, a folder or a hub name.")
    for prefix in _PREFIXES:
        path = path.removeprefix(prefix)
    place = Path(path).expanduser()
    if place.exists():
        _check_whole(place)
        return place, str(place)
    if (name := published.find(path)) is not None:
        return None, name
    if place.suffix in (*TORCH, ".safetensors", ".npz") or place.is_absolute():
        raise UserError(f"there is no file or folder {path}.")
    place = _download(path)
    _check_whole(place)
    return place, path


def _check_whole(place: Path) -> None:
    """Raises a UserError if an export of ours lacks a file: it could be read as another model."""
    try:
        listed = read_json(place / CERTIFICATE)["files"]
        names = [name for name in listed if name.endswith((".json", ".safetensors"))]
    except (UserError, KeyError, TypeError, AttributeError):  # no export, or a damaged certificate
        return
    for name in names:
        if not (place / name).is_file():
            raise UserError(f"{place} lacks {name}, which its {CERTIFICATE} lists; export again.")


def is_ours(folder: Path) -> bool:
    """Returns True if a folder is a run, or a checkpoint, of this package."""
    return (folder / "checkpoints").is_dir() or (folder / manifest.MANIFEST).is_file()


def is_exported(folder: Path) -> bool:
    """Returns True if a folder is an export that has a config of this package."""
    return (folder / CONFIG).is_file()


def _folder(folder: Path, origin: str) -> CheckpointContents:
    if is_ours(folder):
        return _ours(folder)
    if is_exported(folder):
        return _contents(folder, *read_folder(folder))
    if (folder / "modules.json").is_file():
        from big_retrieval.interop import sentence_transformers

        return sentence_transformers.read_folder(folder, origin)
    file = weights_file(folder)
    return understand(origin, read_arrays(file), read_settings(folder))


def _download(name: str) -> Path:
    """Downloads a model of the hub, or returns it from the cache."""
    import huggingface_hub

    def load(cached: bool) -> str:
        if cached:
            return huggingface_hub.snapshot_download(name, local_files_only=True)
        files = huggingface_hub.HfApi().list_repo_files(name)
        plain = any(file.endswith((".safetensors", ".npz")) for file in files)
        wanted = [*HUB_FILES, *(() if plain else _TORCH_FILES)]
        return huggingface_hub.snapshot_download(name, allow_patterns=wanted)

    otherwise = "download it elsewhere and give its folder"
    return Path(hub.fetch(name, load, what="the model", otherwise=otherwise))


def _ours(folder: Path) -> CheckpointContents:
    """Reads the checkpoint of a run that `load` opens."""
    from big_retrieval.inference.saved import find, read_config, restore_weights

    found = find(folder)
    config = read_config(found)
    return _contents(found, config, restore_weights(found, config))


def _contents(folder: Path, config: Config, weights: Any) -> CheckpointContents:
    """Returns a model of this package as a checkpoint; its towers are parts, by their names."""
    params: Any = traverse_util.flatten_dict(weights, sep="/")
    parts = {}
    for name, tower in config.towers.items():
        field = next(key for key, each in config.encoded.items() if each.tower == name)
        side: Any = tower.modality
        own, head = below(params, f"{name}/"), config.fields[field].head
        parts[name] = CheckpointTower(
            kind=Kind("a tower of ours", side, "", (), NameTable(())),
            tower=tower,
            params=own,
            head=below(params, f"{field}_head/"),
            names={path: path for path in own},
            lexical=head if head.lexical else None,
            stats=below(params, f"batch_stats/{name}/"),
            head_stats=below(params, f"batch_stats/{field}_head/"),
        )
    return CheckpointContents(
        origin=str(folder),
        parts=parts,
        logit_scale=next(
            (x for name, x in params.items() if re.fullmatch(OUR_LOGIT_SCALE, name)), None
        ),
        unused=[],
        unknown=[],
        spheres=config.spheres(),
        settings=Settings(tokenizer=folder / "tokenizer.json", pixels=_pixels(config)),
    )


def _pixels(config: Any) -> Pixels | None:
    for field in config.encoded.values():
        if field.modality == "image":
            return Pixels(
                field.size,
                field.mean,
                field.std,
                field.eval_resize,
                field.eval_squash,
                field.interpolation,
                field.eval_margin,
            )
    return None
