"""Indexes of encoded documents, exact search in them, and exports for other tools.

    index = big_retrieval.retrieval.open_index("indexes/products")
    numbers, scores = index.search(queries, depth=10)
    names = index.ids.many(numbers[0])

An index is a folder (`folder.py`) with inverted lists of lexical values (`inverted.py`) or dense
embeddings (`dense.py`). `build_index.py` and `index_search.py` add a model for the commands
`big-retrieval index` and `big-retrieval search`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from big_retrieval.retrieval.dense import DenseIndex
    from big_retrieval.retrieval.inverted import InvertedIndex

__all__ = ["open_index"]


def open_index(folder: str | Path, *, verify: bool = False) -> "InvertedIndex | DenseIndex":
    """Opens an index folder of either kind; its arrays are mapped into memory, not read.

    Args:
      verify: True to verify the checksum of every file, which reads all of them.

    Raises:
      UserError: the folder is not an index, is damaged, has another format version, or was
        replaced while it was opened.
    """
    from big_retrieval.retrieval import folder as folders

    path = Path(folder)
    opened = folders.stamp(path)
    about = folders.open_folder(path, verify=verify)
    if about.kind == folders.DENSE:
        from big_retrieval.retrieval.dense import DenseIndex  # imports jax, which takes a while

        index = DenseIndex(path, about)
    else:
        from big_retrieval.retrieval.inverted import InvertedIndex

        index = InvertedIndex(path, about)
    folders.check_same(path, opened)
    return index
