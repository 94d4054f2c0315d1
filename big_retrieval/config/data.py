"""Reading of records, and the hard negatives of pairs."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from big_retrieval.config.ranges import AtLeast0, AtLeast1, Share

if TYPE_CHECKING:
    from big_retrieval.config.run import Config


@dataclass(frozen=True)
class HardNegatives:
    """Further documents of every training pair, non-relevant for its query."""

    count: AtLeast0 = 0  # K per pair, drawn from the record's list; a shorter list is padded
    # column of a list of texts, or of {"title": ..., "text": ..., "pool": 0}: lower pools first
    column: str = "negatives"
    field: str = ""  # text field that reads the hard negatives; empty if documents have one

    def check(self, config: "Config") -> Iterator[str]:
        """Yields an error message for every bad key."""
        path = "config.negatives"
        if not self.count:
            return
        if not self.column:
            yield f"{path}.column is empty; name the column of the records' lists of documents."
        documents = {name: config.fields[name] for name in config.side("document")}
        choices = ", ".join(sorted(documents)) or "none"
        if self.field and (self.field not in documents or documents[self.field].modality != "text"):
            yield (
                f"{path}.field is {self.field!r}, which is no text field of the side 'document' "
                f"(it has: {choices})."
            )
        if not self.field and [field.modality for field in documents.values()] != ["text"]:
            yield (
                f"{path}.count is {self.count}, but the side 'document' is not one text field (it "
                f"has: {choices}): hard negatives are texts; name the field in {path}.field."
            )
        if not config.data.has_negatives:
            yield (
                f"{path}.count is {self.count}, but config.data is of the type "
                f"{config.data.type!r}, whose records have no negatives; use 'dpr' or 'triples', "
                "or own pairs with such a column."
            )


@dataclass(frozen=True)
class Loader:
    """Reading of records, and the limit of damaged records."""

    threads: AtLeast1 = 2
    workers: AtLeast0 = 0  # processes that read; 0 for threads only
    prefetch: AtLeast1 = 4  # number of batches to prepare ahead
    decoder: Literal["pillow", "opencv"] = "pillow"  # opencv is faster; its pixels differ
    reduced: bool = True  # decode JPEG files at half, a quarter, ... if that is large enough
    max_damaged: Share = 0.01  # share of damaged records that ends a run

    def check(self) -> Iterator[str]:
        """Yields an error message if the decoder is not installed."""
        if self.decoder == "opencv" and importlib.util.find_spec("cv2") is None:
            yield (
                "config.loader.decoder is 'opencv', which is not installed; install the extra "
                "big_retrieval[opencv], or use 'pillow'."
            )
