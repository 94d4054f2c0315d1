"""Training tasks: data, and published weights to start from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from big_retrieval.config import Config
from big_retrieval.config.sources import Source
from big_retrieval.errors import UserError
from big_retrieval.own_data.columns import Roles
from big_retrieval.own_data.records import RecordSample

WORDPIECES = 1.4  # tokens per word, on average
MANY_CUT = 0.1  # share of truncated texts above which the config has a comment


@dataclass(frozen=True)
class TrainingTask:
    """Data to train on.

    Attributes:
      sample: facts about some records for training.
      sources: split -> records; "train", "validation", and splits evaluated at the end.
      records: number of records for training.
      init: folder of published weights; None for random weights.
      limit: highest score of judged pairs.
    """

    roles: Roles
    sample: RecordSample
    sources: Mapping[str, Source]
    records: int
    init: Path | None = None
    limit: float = 100.0

    def length(self, column: str, max_length: int) -> int:
        """Returns a number of tokens that fits 95% of a column's texts, a multiple of 8."""
        words = self.sample.words.get(column)
        count = float(np.percentile(words, 95)) if words else 8.0
        return int(min(max_length, max(16, 8 * math.ceil((count * WORDPIECES + 2) / 8))))

    def cut(self, field: str, column: str, length: int) -> str:
        """Returns a comment if many texts of a column have more than `length` tokens, else ""."""
        words = np.array(self.sample.words.get(column) or [0])
        long = np.mean(words * WORDPIECES + 2 > length)
        if long <= MANY_CUT:
            return ""
        return (
            f"{long:.0%} of the texts in {column!r} are longer than the {length} tokens that are "
            f"read: --config.fields.{field}.length={2 * length} reads more."
        )


def published(folder: str, towers: Sequence[str]) -> Config:
    """Returns the config of published weights, which need these towers and a tokenizer."""
    from big_retrieval.interop.model import config_of
    from big_retrieval.interop.read import read

    config = config_of(read(folder), None)
    missing = [name for name in towers if name not in config.towers]
    if missing:
        raise UserError(
            f"--init={folder} has no {' and no '.join(missing)} tower, which these data need. Give "
            "the folder of another model, or remove --init."
        )
    if not config.tokenizer.path:
        raise UserError(f"--init={folder} has no tokenizer. Give a complete folder.")
    return config
