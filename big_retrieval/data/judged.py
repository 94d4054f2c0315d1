"""What evaluations with grades ask of a source."""

from typing import Protocol, runtime_checkable

from big_retrieval.data.judgements import Judgements
from big_retrieval.data.sources import Source


@runtime_checkable
class JudgedSource(Source, Protocol):
    """A source whose records are judged pairs, with their queries and documents as sources."""

    @property
    def queries(self) -> Source:
        """A record for each judged query."""
        ...

    @property
    def documents(self) -> Source:
        """A record for each document that is ranked, judged or not."""
        ...

    @property
    def judgements(self) -> Judgements:
        """Which documents were judged for which queries, by their numbers in these sources."""
        ...
