"""What a result was computed with: the SHA-256 of parameters, and versions of the software."""

import functools
import hashlib
import importlib.metadata
import platform
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from big_retrieval.parallel import fetch

PACKAGES = ("big_retrieval", "jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def params_sha256(params: Any) -> str:
    """SHA-256 over names, types, shapes and bytes of all parameters, in the order of names."""
    digest = hashlib.sha256()
    for name, value in sorted(traverse_util.flatten_dict(params, sep="/").items()):
        array = np.ascontiguousarray(fetch(value) if isinstance(value, jax.Array) else value)
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of what a run depends on."""
    found = {"python": platform.python_version(), "backend": jax.default_backend()}
    return found | {name: _version(name) for name in PACKAGES}


@functools.cache  # every checkpoint has them, and finding them takes 0.1 s
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
