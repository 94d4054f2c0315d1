"""Contrastive retrieval models in JAX/Flax: pretrain, evaluate, search, explain, export.

`load` opens a finished run or a checkpoint folder, and `import_model` a model of another library.
`export` writes a model for another library, and `push` uploads the export. Training starts from the
command line (`python -m big_retrieval.main`) or from `big_retrieval.train.loop.train`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from big_retrieval.exporting.export import export
    from big_retrieval.exporting.push import push
    from big_retrieval.inference.load import load
    from big_retrieval.interop.model import import_model

__version__ = "0.1.0"
__all__ = ["__version__", "export", "import_model", "load", "push"]


_MODULES = {
    "export": "big_retrieval.exporting.export",
    "import_model": "big_retrieval.interop.model",
    "load": "big_retrieval.inference.load",
    "push": "big_retrieval.exporting.push",
}


def __getattr__(name: str) -> Any:
    # Not imported at the top: a command that needs none of them starts faster.
    if name not in _MODULES:
        raise AttributeError(f"module 'big_retrieval' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
