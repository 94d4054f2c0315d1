"""Weights from files: safetensors, torch files, npz; names to arrays, and nothing is unpickled."""

import importlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.io.npy import read_npz
from big_retrieval.io.regular import check_zip, read_bytes, read_text

Arrays = dict[str, np.ndarray]

# In the order in which they are preferred where a folder has several.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
)
TORCH = (".pt", ".pth", ".bin", ".ckpt")
KNOWN = "safetensors, pt, pth, bin, ckpt, npz"
_WRAPPERS = ("state_dict", "model_state_dict", "model")  # what training scripts save it under


OPEN_CLIP_CONFIG = "open_clip_config.json"


def weights_file(folder: Path) -> Path:
    """The file with the weights of a model folder.

    With open_clip's settings, open_clip's file is preferred: in folders for both open_clip and timm
    the other file has the image tower only.

    Raises:
      UserError: there is none.
    """
    is_open_clip = (folder / OPEN_CLIP_CONFIG).is_file()
    for name in sorted(WEIGHT_FILES, key=lambda x: is_open_clip and not x.startswith("open_clip")):
        if (folder / name).is_file():
            return folder / name
    raise UserError(
        f"{folder} has no weights: none of {', '.join(WEIGHT_FILES)}; give the folder of a model, "
        "or the file itself."
    )


def read_arrays(path: Path) -> Arrays:
    """All arrays of a file, or of the shards that an index file names.

    Raises:
      UserError: no file of a known kind, a damaged one, or one with pickled objects.
    """
    if path.name.endswith(".index.json"):
        return _from_index(path)
    if not path.is_file():
        raise UserError(f"there is no file {path}.")
    if path.suffix == ".safetensors":
        return _safetensors(path)
    if path.suffix == ".npz":
        return _npz(path)
    if path.suffix in TORCH:
        return _torch(path)
    raise UserError(f"{path} is of no known kind of weights; known: {KNOWN}.")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
      UserError: it cannot be read, or is something else.
    """
    found = _json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object with keys; restore it.")
    return found


def read_json_list(path: Path) -> list[dict[str, Any]]:
    """A JSON list of objects.

    Raises:
      UserError: it cannot be read, or is something else.
    """
    found = _json(path)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise UserError(f"{path} holds no JSON list of objects; restore it.")
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not readable JSON; restore it.") from None


def _from_index(path: Path) -> Arrays:
    shards = read_json(path).get("weight_map")
    if not isinstance(shards, Mapping) or not all(isinstance(x, str) for x in shards.values()):
        raise UserError(f"{path} has no weight_map that names the files; restore it.")
    found: Arrays = {}
    for name in sorted(set(shards.values())):
        if Path(name).name != name:
            raise UserError(f"{path} names {name!r}, which is not in its folder; not opened.")
        found |= read_arrays(path.parent / name)
    missing = sorted(set(shards) - set(found))
    if missing:
        raise UserError(f"{path}: its files lack {missing[0]!r} ({len(missing)} names in all).")
    return found


def _safetensors(path: Path) -> Arrays:
    from safetensors import SafetensorError, deserialize

    try:
        views = deserialize(read_bytes(path))
    except (SafetensorError, ValueError) as problem:
        raise UserError(
            f"{path} is no whole safetensors file ({problem}); download it again."
        ) from None
    types = {**_TYPES, "BF16": ml_dtypes.bfloat16}
    found: Arrays = {}
    for name, view in views:
        if view["dtype"] not in types:
            raise UserError(f"{path}: {name} is of the type {view['dtype']}, which is not read.")
        array = np.frombuffer(view["data"], types[view["dtype"]])
        found[name] = _plain(array.reshape(view["shape"]))
    return found


_TYPES: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32,
    "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip


def _npz(path: Path) -> Arrays:
    return {name: _plain(array) for name, array in read_npz(path).items()}


def _torch(path: Path) -> Arrays:
    """A torch file, by its loader that admits nothing but tensors and plain containers."""
    try:
        torch: Any = importlib.import_module("torch")  # an extra, not always there
    except ImportError:
        raise UserError(
            f"{path} is a torch file, which needs PyTorch to be read: pip install "
            "'big_retrieval[torch]', or save the model as safetensors."
        ) from None
    try:
        if zipfile.is_zipfile(path):
            check_zip(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as problem:  # whatever kind it is, the file is not opened
        if type(problem).__name__ == "UnpicklingError":
            raise UserError(
                f"{path} holds pickled objects that are no tensors, and such files can run code "
                "when they are opened; it was not. Save its state_dict alone, as safetensors."
            ) from None
        first = str(problem).strip().split("\n")[0][:200]
        if "TorchScript" in first:
            raise UserError(
                f"{path} is a TorchScript archive, a program with weights, which is not run: save "
                "its state_dict alone, as safetensors."
            ) from None
        raise UserError(f"{path} is no whole torch file ({first}); download it again.") from None
    found = dict(_tensors(path, _unwrapped(loaded)))
    if not found:
        raise UserError(f"{path} holds no tensors by name; save a model's state_dict.")
    return found


def _unwrapped(loaded: Any) -> Any:
    """The state dict inside of what a training script saved."""
    for key in _WRAPPERS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            return loaded[key]
    return loaded


def _tensors(path: Path, state: Any) -> Iterator[tuple[str, np.ndarray]]:
    torch: Any = importlib.import_module("torch")
    for name, value in state.items() if isinstance(state, Mapping) else ():
        if isinstance(name, str) and isinstance(value, torch.Tensor):
            try:
                array = value.detach().to_dense() if value.is_sparse else value.detach()
                array = array.float() if array.dtype == torch.bfloat16 else array
                plain = _plain(array.numpy())
            except (TypeError, RuntimeError, MemoryError) as problem:  # no numbers, or too many
                first = str(problem).strip().split("\n")[0][:200]
                raise UserError(
                    f"{path}: {name} is not read ({first}); save it as plain float32."
                ) from None
            yield name.removeprefix("module."), plain


def _plain(array: np.ndarray) -> np.ndarray:
    """Floating-point numbers as float32, all else as it is."""
    wide = array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16
    return array.astype(np.float32) if wide else array
