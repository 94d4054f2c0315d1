"""Weights from files (safetensors, torch files, npz) as name -> array; nothing is unpickled."""

import importlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.io.npy import read_npz
from big_retrieval.io.regular import check_zip, read_bytes, read_text

Arrays = dict[str, np.ndarray]

# By preference, if a folder has several.
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
_WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys that training scripts put around it
OPEN_CLIP_CONFIG = "open_clip_config.json"


def weights_file(folder: Path) -> Path:
    """Returns the file with the weights of a model folder.

    open_clip's file is preferred with open_clip's settings: in folders for open_clip and timm, the
    other file has the image tower only.
    """
    is_open_clip = (folder / OPEN_CLIP_CONFIG).is_file()
    for name in sorted(WEIGHT_FILES, key=lambda x: is_open_clip and not x.startswith("open_clip")):
        if (folder / name).is_file():
            return folder / name
    raise UserError(
        f"{folder} has no weights: none of {', '.join(WEIGHT_FILES)}. Give the folder of a model, "
        "or the file itself."
    )


def read_arrays(path: Path) -> Arrays:
    """Reads all arrays of a file, or of the shards of an index file.

    Raises:
      UserError: a file that is missing, of another kind or damaged, or that has pickled objects.
    """
    if path.name.endswith(".index.json"):
        return _from_index(path)
    if not path.is_file():
        raise UserError(f"No such file: {path}.")
    if path.suffix == ".safetensors":
        return _safetensors(path)
    if path.suffix == ".npz":
        return _npz(path)
    if path.suffix in TORCH:
        return _torch(path)
    raise UserError(f"{path} is not a file of weights. Known kinds: {KNOWN}.")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object."""
    content = _json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object with keys. Restore it.")
    return content


def read_json_list(path: Path) -> list[dict[str, Any]]:
    """Reads a JSON list of objects."""
    content = _json(path)
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise UserError(f"{path} is not a JSON list of objects. Restore it.")
    return content


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except OSError as problem:
        raise UserError(f"Cannot read {path}: {problem.strerror}.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not readable JSON. Restore it.") from None


def _from_index(path: Path) -> Arrays:
    shards = read_json(path).get("weight_map")
    if not isinstance(shards, Mapping) or not all(isinstance(x, str) for x in shards.values()):
        raise UserError(f"{path} has no weight_map with the names of files. Restore it.")
    arrays: Arrays = {}
    for name in sorted(set(shards.values())):
        if Path(name).name != name:
            raise UserError(f"{path} names {name!r}, which is not in its folder. Not opened.")
        arrays |= read_arrays(path.parent / name)
    missing = sorted(set(shards) - set(arrays))
    if missing:
        raise UserError(f"{path}: its files lack {missing[0]!r} ({len(missing)} names in all).")
    return arrays


def _safetensors(path: Path) -> Arrays:
    from safetensors import SafetensorError, deserialize

    try:
        views = deserialize(read_bytes(path))
    except (SafetensorError, ValueError) as problem:
        raise UserError(
            f"Cannot read {path} as safetensors ({problem}). Download it again."
        ) from None
    arrays: Arrays = {}
    for name, view in views:
        if view["dtype"] not in _TYPES:
            raise UserError(f"Cannot read {name} of {path}: its type is {view['dtype']}.")
        array = np.frombuffer(view["data"], _TYPES[view["dtype"]])
        arrays[name] = _plain(array.reshape(view["shape"]))
    return arrays


_TYPES: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32,
    "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_, "BF16": ml_dtypes.bfloat16,
}  # fmt: skip


def _npz(path: Path) -> Arrays:
    return {name: _plain(array) for name, array in read_npz(path).items()}


def _torch(path: Path) -> Arrays:
    """Reads a torch file by its loader of tensors and plain containers, which runs no code."""
    try:
        torch: Any = importlib.import_module("torch")  # an extra, not always installed
    except ImportError:
        raise UserError(
            f"{path} is a torch file, which needs PyTorch. Run pip install 'big_retrieval[torch]', "
            "or save the model as safetensors."
        ) from None
    try:
        if zipfile.is_zipfile(path):
            check_zip(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as problem:  # of any kind: damaged, or more than tensors
        raise UserError(
            f"Cannot read {path} as tensors ({_first_line(problem)}); nothing of it was run. "
            "Download it again, or save its state_dict alone, as safetensors."
        ) from None
    for key in _WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
            break
    arrays: Arrays = {}
    for name, value in state.items() if isinstance(state, Mapping) else ():
        if isinstance(name, str) and isinstance(value, torch.Tensor):
            arrays[name.removeprefix("module.")] = _from_tensor(path, name, value)
    if not arrays:
        raise UserError(f"{path} has no tensors by name. Save a model's state_dict.")
    return arrays


def _from_tensor(path: Path, name: str, tensor: Any) -> np.ndarray:
    torch: Any = importlib.import_module("torch")
    try:
        dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
        return _plain((dense.float() if dense.dtype == torch.bfloat16 else dense).numpy())
    except (TypeError, RuntimeError, MemoryError) as problem:  # not plain numbers, or too many
        raise UserError(
            f"Cannot read {name} of {path} ({_first_line(problem)}). Save it as plain float32."
        ) from None


def _first_line(problem: Exception) -> str:
    return str(problem).strip().split("\n")[0][:200]


def _plain(array: np.ndarray) -> np.ndarray:
    """Returns floating-point numbers as float32, other arrays unchanged."""
    wide = array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16
    return array.astype(np.float32) if wide else array
