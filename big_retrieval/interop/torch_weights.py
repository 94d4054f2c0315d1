"""Reads exports of the target `torch`, with rules for the names and layouts of parameters.

| here | in PyTorch |
| --- | --- |
| `image/layers_3/mlp/fc1/kernel` [I, O] | `image.layers.3.mlp.fc1.weight` [O, I] |
| `kernel` of a convolution [H, W, I, O] | `weight` [O, I, H, W] |
| `input_kernel` [I, O] | `input_weight` [O, I] |
| `gru/input_kernel` [I, 3 H], `hidden_bias` | `gru.weight_ih_l0` [3 H, I], `bias_hh_l0` |
| `forward/...`, `backward/...` of two GRUs | `gru_forward...`; a module has a method `forward` |
| `scale` of a norm | `weight` |
| `batch_stats/image/bn/mean`, `var` | `image.bn.running_mean`, `running_var` |
| all others, such as `image/position_embedding` | the same name and shape |
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util

from big_retrieval.config import Config, load_saved, schema
from big_retrieval.errors import PluginNeeded, UserError
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.interop.files import read_arrays, read_json
from big_retrieval.interop.source import Flat
from big_retrieval.io.manifest import to_json

CONFIG, WEIGHTS = "big_retrieval.json", "model.safetensors"  # files of a folder
STATS = "batch_stats/"
LISTED = r"(layers|layer\d+)"  # lists of modules, also in ResNets
_GRU_NAMES = (  # end of a path (once kernels are weights), end of its name in PyTorch
    ("/input_weight", "/weight_ih_l0"),
    ("/hidden_weight", "/weight_hh_l0"),
    ("/input_bias", "/bias_ih_l0"),
    ("/hidden_bias", "/bias_hh_l0"),
)


def to_torch(params: Flat) -> Flat:
    """Returns parameters and running averages under their names in PyTorch."""
    arrays = {}
    for path, array in params.items():
        name = re.sub(rf"/{LISTED}_(\d+)(?=/)", r"/\1/\2", path)
        if name.startswith(STATS):
            name = re.sub("(mean|var)$", r"running_\1", name.removeprefix(STATS))
        elif name.endswith("kernel"):
            name, array = name.removesuffix("kernel") + "weight", np.transpose(array, _order(array))
        else:
            name = re.sub("/scale$", "/weight", name)
        name = re.sub("/(forward|backward)/", r"/gru_\1/", name)
        for jax_end, torch_end in _GRU_NAMES:
            name = re.sub(f"{jax_end}$", torch_end, name)
        arrays[name.replace("/", ".")] = array
    return arrays


def from_torch(arrays: Mapping[str, np.ndarray]) -> Flat:
    """Returns the inverse of `to_torch`, without integers, which are not parameters."""
    params = {}
    for key, array in arrays.items():
        if not np.issubdtype(array.dtype, np.floating):
            continue
        path = re.sub(rf"/{LISTED}/(\d+)(?=/)", r"/\1_\2", key.replace(".", "/"))
        path = re.sub("/gru_(forward|backward)/", r"/\1/", path)
        for jax_end, torch_end in _GRU_NAMES:
            path = re.sub(f"{torch_end}$", jax_end, path)
        if re.search("/running_(mean|var)$", path):
            path = STATS + path.replace("/running_", "/")
        elif path.endswith("weight") and array.ndim > 1:
            path = path.removesuffix("weight") + "kernel"
            array = np.transpose(array, np.argsort(_order(array)))
        else:
            path = re.sub("/weight$", "/scale", path)
        params[path] = array
    return params


def _order(kernel: np.ndarray) -> tuple[int, ...]:
    """Returns the axes of a kernel in PyTorch's order: outputs, inputs, then rows and columns."""
    return (kernel.ndim - 1, kernel.ndim - 2, *range(kernel.ndim - 2))


def write_config(config: Config, params: Flat, folder: Path) -> None:
    """Writes the config and the digest of parameters, which an import needs with the weights."""
    digest = params_sha256(traverse_util.unflatten_dict(params, sep="/"))
    saved = {"config": schema.to_plain(config), "params_sha256": digest}
    (folder / CONFIG).write_bytes(to_json(saved))


def read_folder(folder: Path) -> tuple[Config, Any]:
    """Reads the config and the weights of an export.

    Raises:
      UserError: a file is missing, damaged or from another export, or a user-defined part is not
        imported.
    """
    saved = read_json(folder / CONFIG)
    if not (folder / WEIGHTS).is_file():
        raise UserError(
            f"{folder} has no {WEIGHTS}, as in exports for onnx. Import the run, or an export with "
            "--to=torch."
        )
    params = traverse_util.unflatten_dict(from_torch(read_arrays(folder / WEIGHTS)), sep="/")
    # Parameters that PyTorch trained are saved without a digest.
    digest = saved.get("params_sha256")
    if digest is not None and params_sha256(params) != digest:
        raise UserError(
            f"{folder / WEIGHTS} differs from the exported parameters (SHA-256 of {CONFIG}). "
            "Export again."
        )
    try:
        return load_saved(saved["config"]), params
    except PluginNeeded:
        raise
    except (UserError, KeyError) as error:
        raise UserError(f"{folder / CONFIG} has no config of this version: {error}") from None
