"""Indexes of encoded documents, exact search in them, and exports for other tools.

    index = big_retrieval.retrieval.open_index("indexes/products")
    numbers, scores = index.search(queries, depth=10)
    names = index.ids.many(numbers[0])

An index is a folder (`folder.py`) with inverted lists of lexical values (`inverted.py`) or dense
embeddings (`dense.py`). `making.py` and `searching.py` add a model for the commands
`big-retrieval index` and `big-retrieval search`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from big_retrieval.retrieval.dense import DenseIndex
    from big_retrieval.retrieval.inverted import InvertedIndex

__all__ = ["open_index"]


def open_index(
    folder: str | Path, *, verify: bool = False, engine: str = "exact"
) -> "InvertedIndex | DenseIndex":
    """Opens an index folder of either kind; its arrays are mapped into memory, not read.

    Args:
      verify: True to verify the checksum of every file, which reads all of them.
      engine: "exact", or "faiss" for a dense index (the extra `faiss` installs it).

    Raises:
      UserError: it is no index, damaged, of another version, was replaced while it was opened, or
        does not have this engine.
    """
    from big_retrieval.errors import UserError
    from big_retrieval.retrieval import folder as folders

    path = Path(folder)
    opened = folders.stamp(path)
    about = folders.open_folder(path, verify=verify)
    if about.kind == folders.DENSE:
        from big_retrieval.retrieval.dense import DenseIndex  # imports jax, which takes a while

        index: Any = DenseIndex(path, about, engine=engine)
    elif engine != "exact":
        raise UserError(
            f"--engine={engine} is for dense indexes, and {folder} is lexical. Leave --engine out."
        )
    else:
        from big_retrieval.retrieval.inverted import InvertedIndex

        index = InvertedIndex(path, about)
    folders.check_same(path, opened)
    return index
