"""The records that an index was made of, so that a demo shows whole texts and pictures."""

import dataclasses
import logging
from typing import Any

from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.dense import DenseIndex
from big_retrieval.retrieval.documents import DocumentReader, open_records, sample
from big_retrieval.retrieval.encode import document_fields
from big_retrieval.retrieval.inverted import InvertedIndex
from big_retrieval.retrieval.preparing import IndexOptions, files_of, reader_for

log = logging.getLogger(__name__)


def records_of(
    index: InvertedIndex | DenseIndex, config: Config, wanted: IndexOptions
) -> tuple[Any, DocumentReader]:
    """The records of an index, None: they are not at hand; and what reads them.

    Args:
      index: what they are the documents of.
      config: of its model.
      wanted: with the files of --data; "": those that the index was made of, if they are there as
        they were.

    Raises:
      UserError: --data cannot be read, or has other rows than the index was made of.
    """
    files, made = index.about.files, folders.made_from(index.folder)
    if wanted.documents:
        return _opened(index, config, wanted)
    if files and made is not None:
        try:
            if files_of(files) == made["documents"]["files"]:
                return _opened(index, config, _as_made(wanted, files, made))
        except (UserError, OSError):
            pass
        log.info(
            f"the files that {index.folder} was made of are not there or have changed: no pictures "
            f"and no whole texts; --data=FILES names them ({files})"
        )
    return None, DocumentReader("documents")


def _opened(
    index: InvertedIndex | DenseIndex, config: Config, wanted: IndexOptions
) -> tuple[Any, DocumentReader]:
    """Opens records, and compares some of them with what the index was made of.

    Files with as many bytes may have other rows, or the same ones in another order; and where ids
    are numbers of rows, nothing else tells.

    Raises:
      UserError: they cannot be read, or are others.
    """
    fields = document_fields(config, index.about.field)
    opened = open_records("data", wanted.documents, reader_for(wanted, config, fields))
    made = folders.made_from(index.folder)
    if made is None:
        return opened
    as_made, compared = _as_made(wanted, wanted.documents, made), opened
    if as_made != wanted:  # such as another column to be shown
        try:
            compared = open_records("data", as_made.documents, reader_for(as_made, config, fields))
        except UserError:  # its columns have other names
            return opened
    if sample(*compared) != made["documents"]["sample"]:
        raise UserError(
            f"--data={wanted.documents} has other rows than the index {index.folder} was made of, "
            "or in another order; give the files as they were, or build the index again."
        )
    return opened


def _as_made(options: IndexOptions, files: str, made: dict[str, Any]) -> IndexOptions:
    """Options with the columns that an index was made with."""
    flags = {name: made[name] for name in ("title", "image", "show", "id", "join")}
    return dataclasses.replace(options, documents=files, text=tuple(made["text"]), **flags)
