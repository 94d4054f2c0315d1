"""Published data sets: where they are fetched from, and what a complete folder of each holds.

`big-retrieval data get NAME` prints an entry, and `big-retrieval data check NAME` compares a folder
with it (`complete.py`). Counts and digests are those that the data sets' own pages give, or that
are known of the files; where none is certain, there is none.
"""

from big_retrieval.data.catalogue.entries import DataSet, Download, Expected
from big_retrieval.data.catalogue.images import IMAGES
from big_retrieval.data.catalogue.texts import TEXTS

CATALOGUE = IMAGES | TEXTS

__all__ = ["CATALOGUE", "DataSet", "Download", "Expected"]
