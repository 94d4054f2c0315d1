"""Options of mining; imports nothing heavy, so that --help starts quickly."""

from dataclasses import dataclass
from typing import Annotated

from big_retrieval.cli.options import AtLeast0, Flag


@dataclass(frozen=True)
class MiningOptions:
    """Choice of a query's hard negatives."""

    count: AtLeast0 = 10  # Maximum number of negatives per query; 0 for no limit
    # Number of best ranks to leave out; positives and the query itself do not count
    skip: AtLeast0 = 0
    # Minimum distance of a negative's score below the best positive's score
    margin: Annotated[float | None, Flag(low=0)] = None
    # Maximum score of a negative as a share of the best positive's score, such as 0.95
    share: Annotated[float | None, Flag(low=0, high=1)] = None
