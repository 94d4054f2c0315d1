"""Options of the four-way split; imports nothing heavy, so that --help starts quickly."""

from dataclasses import dataclass

from big_retrieval.cli.options import AtLeast0


@dataclass(frozen=True)
class SplitOptions:
    """Shares and seed of the four-way split."""

    seed: AtLeast0 = 0  # Seed of the random draw
    query_share: float = 0.8  # Share of the queries for training
    document_share: float = 0.5  # Share of the documents for training
    # Share of the training queries, and of the new queries, for development
    dev_share: float = 0.2
    # Column of the documents; documents with the same value stay together
    group_column: str = ""
