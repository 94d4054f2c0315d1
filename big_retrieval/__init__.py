"""Contrastive retrieval models in JAX/Flax: pretrain, evaluate, search, explain, export.

`load` opens a finished run or a checkpoint folder for use, `import_model` a model of another
library, `export` writes one for another library, and `push` uploads such an export. Training starts
from the command line (`python -m big_retrieval.main`) or from `big_retrieval.train.loop.train`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from big_retrieval.exporting.export import export
    from big_retrieval.exporting.push import push
    from big_retrieval.inference.load import load
    from big_retrieval.interop.model import import_model

__version__ = "0.1.0"
__all__ = ["__version__", "export", "import_model", "load", "push"]


def __getattr__(name: str) -> Any:
    # Not imported at the top: reading a config must not cost the import of jax.
    if name == "export":
        from big_retrieval.exporting.export import export

        return export
    if name == "load":
        from big_retrieval.inference.load import load

        return load
    if name == "import_model":
        from big_retrieval.interop.model import import_model

        return import_model
    if name == "push":
        from big_retrieval.exporting.push import push

        return push
    raise AttributeError(f"module 'big_retrieval' has no attribute {name!r}")
