"""How records are read, and the hard negatives that pairs bring."""

from dataclasses import dataclass
from typing import Literal

from big_retrieval.config.ranges import AtLeast0, AtLeast1, Share


@dataclass(frozen=True)
class HardNegatives:
    """Further documents that every training pair brings, wrong ones for its query."""

    count: AtLeast0 = 0  # K, of a pair; drawn from its record's list, padded where that is shorter
    # column of a list of texts, or of {"title": ..., "text": ..., "pool": 0}: lower pools first
    column: str = "negatives"
    field: str = ""  # the text field of the documents that they are read like; empty: the only one


@dataclass(frozen=True)
class Loader:
    """How records are read, and what becomes of damaged ones."""

    threads: AtLeast1 = 2
    workers: AtLeast0 = 0  # processes; 0: threads only
    prefetch: AtLeast1 = 4  # batches
    decoder: Literal["pillow", "opencv"] = "pillow"  # opencv: faster, other pixels
    reduced: bool = True  # decode JPEG files at half, a quarter, ... where that is large enough
    max_damaged: Share = 0.01  # share of damaged records that ends a run
