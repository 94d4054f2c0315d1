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

WEIGHT_FILES = (  # by preference, if a folder has several
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
)
TORCH = (".pt", ".pth", ".bin", ".ckpt")
_WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys of training scripts
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
        f"{folder} has no weights ({', '.join(WEIGHT_FILES)}). Give the folder of a model, or the "
        "file itself."
    )


def read_arrays(path: Path) -> Arrays:
    """Reads all arrays of a file, or of all shards in an index file.

    Raises:
      UserError: a file is missing, damaged, of another format, or has pickled objects.
    """
    if path.name.endswith(".index.json"):
        return _from_index(path)
    if not path.is_file():
        raise UserError(f"No such file: {path}.")
    if path.suffix == ".safetensors":
        return _safetensors(path)
    if path.suffix == ".npz":
        return {name: _as_float32(array) for name, array in read_npz(path).items()}
    if path.suffix in TORCH:
        return _torch(path)
    raise UserError(f"{path} is not a file of weights ({', '.join(TORCH)}, .safetensors, .npz).")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object."""
    content = _json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object with keys. Restore it.")
    return content


def read_json_list(path: Path) -> list[dict[str, Any]]:
    """Reads a JSON list of objects."""
    content = _json(path)
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise UserError(f"{path} is not a JSON list of objects. Restore it.")
    return content


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
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
    except (SafetensorError, ValueError) as error:
        raise UserError(
            f"Cannot read {path} as safetensors ({error}). Download it again."
        ) from None
    arrays: Arrays = {}
    for name, view in views:
        if view["dtype"] not in _TYPES:
            raise UserError(f"Cannot read {name} of {path}: its type is {view['dtype']}.")
        array = np.frombuffer(view["data"], _TYPES[view["dtype"]])
        arrays[name] = _as_float32(array.reshape(view["shape"]))
    return arrays


_TYPES: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32,
    "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_, "BF16": ml_dtypes.bfloat16,
}  # fmt: skip


def _torch(path: Path) -> Arrays:
    """Reads a torch file with PyTorch's loader of tensors and plain containers: no code is run."""
    try:
        torch: Any = importlib.import_module("torch")  # an extra, not always installed
    except ImportError:
        raise UserError(
            f"{path} needs PyTorch. Run `pip install 'big_retrieval[torch]'`, or save the model as "
            "safetensors."
        ) from None
    try:
        if zipfile.is_zipfile(path):
            check_zip(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as error:  # any exception: the file is damaged, or has more than tensors
        raise UserError(
            f"Cannot read {path} as tensors ({_first_line(error)}). None of it was run. Download "
            "it again, or save only its state_dict, as safetensors."
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
        return _as_float32((dense.float() if dense.dtype == torch.bfloat16 else dense).numpy())
    except (TypeError, RuntimeError, MemoryError) as error:  # not plain numbers, or too many
        raise UserError(
            f"Cannot read {name} of {path} ({_first_line(error)}). Save it as plain float32."
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]


def _as_float32(array: np.ndarray) -> np.ndarray:
    """Returns floating-point numbers as float32, other arrays unchanged."""
    wide = array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16
    return array.astype(np.float32) if wide else array
