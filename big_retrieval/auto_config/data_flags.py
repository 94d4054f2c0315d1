"""Flags that describe the data of `train --data` and `evaluate --data`."""

import dataclasses
import os
from dataclasses import dataclass
from typing import Annotated, Any

from big_retrieval.cli.options import Flag, select

WithData = Annotated[str | None, Flag(needs="data")]


@dataclass(frozen=True)
class DataFlags:
    """A column per role, and the folder of images; None for a missing flag, "" for no column."""

    image: WithData = None  # Column of images, as files or their content; empty for none
    text: WithData = None  # Column of captions
    query: WithData = None  # Column of questions or queries
    # Column of answers, or of the documents' texts
    document: Annotated[str | None, Flag(needs="data", alias="answer")] = None
    score: WithData = None  # Column of clicks, ranks or other scores; empty for equal weights
    document_id: WithData = None  # Column of the documents' ids, for judged pairs
    images: WithData = None  # Folder that image paths start from; by default their table's folder


def select_data_flags(options: Any) -> DataFlags:
    """Returns the data flags of a command's options; the folder of images is an absolute path."""
    flags = select(DataFlags, options)
    return dataclasses.replace(flags, images=flags.images and os.path.abspath(flags.images))
