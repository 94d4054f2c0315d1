"""Fingerprint of a result: the SHA-256 of the parameters, and software versions."""

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
    """Returns the SHA-256 over names, types, shapes and bytes of all parameters, sorted by name."""
    digest = hashlib.sha256()
    for name, value in sorted(traverse_util.flatten_dict(params, sep="/").items()):
        array = np.ascontiguousarray(fetch(value) if isinstance(value, jax.Array) else value)
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that a run depends on."""
    python = {"python": platform.python_version(), "backend": jax.default_backend()}
    return python | {name: _version(name) for name in PACKAGES}


@functools.cache  # every checkpoint stores them, and a lookup takes 0.1 s
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
