"""Cases: files, and what opens them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Data:
    """A path for `train --data`, with its flags for columns."""

    path: str = "data"
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Documents:
    """A path for `index --data` with a model of one text field."""

    path: str


@dataclass(frozen=True)
class Case:
    """Files and what opens them.

    Attributes:
      files: name -> content, text as UTF-8.
      opens: source of a config, or `Data`, or `Documents`.
      columns: columns of a source that batches read, the query first; empty for no batches.
      negatives: hard negatives per record.
      changes: rule by which stores change the digests; empty if they keep them.
    """

    files: Mapping[str, str | bytes]
    opens: Any
    columns: tuple[str, ...] = ()
    negatives: int = 0
    changes: str = ""
