"""What an index has of its documents: whole texts and images, in its own store or in files."""

import logging
from typing import Any

from big_retrieval.data.formats.open_files import files_of_flag, table_of
from big_retrieval.data.formats.records import Records
from big_retrieval.data.stores.store import Store
from big_retrieval.errors import UserError
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.dense import DenseIndex
from big_retrieval.retrieval.inverted import InvertedIndex

log = logging.getLogger(__name__)


def open_documents(index: InvertedIndex | DenseIndex) -> tuple[Store, Records | None]:
    """Opens the store of an index, and the records of images that are not files.

    Such images are in shards, tar files or tables, and are shown if these still have the rows that
    the index was built from.

    Returns:
      The store, and the records, None for none.
    """
    store, made = index.store, folders.made_from(index.folder) or {}
    documents: dict[str, Any] = made.get("documents", {})
    column, files = documents.get("image"), index.about.files
    if not column or not files or "inside" not in store.names:
        return store, None
    try:
        table, _ = table_of(files_of_flag("data", files))
        if table.fingerprint == documents["fingerprint"]:
            return store, Records(table, image=(column,), text="")
        reason = "have changed"
    except (UserError, OSError) as error:
        reason = f"cannot be read ({str(error).rstrip('.')})"
    log.warning(
        f"no pictures: the files that {index.folder} was built from {reason}: {files}. Put them "
        "back, or build the index again."
    )
    return store, None
