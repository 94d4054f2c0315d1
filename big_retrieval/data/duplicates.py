"""Records that share a text or an image: their number, and their ids in training.

Such records are positives of each other. In training they get ids by content
(`fields/contents.py`). In evaluations, a value is relevant to all values that share a record with
it (`evals/positives.py`).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from big_retrieval.config import Config, negatives_field
from big_retrieval.data.fields.contents import ContentIds, text_key
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.negatives import read_negatives
from big_retrieval.data.sources import RecordSource, evenly_spaced, value_of
from big_retrieval.errors import Damaged, UserError

log = logging.getLogger(__name__)
ALL, SAMPLE = 200_000, 20_000  # in sources of more than ALL records, only SAMPLE are read
IMAGES = 5_000  # maximum number of images to read; a digest needs the whole file
MOST_IDS = 8  # maximum number of ids per row: its text, and other texts of its record
OFF = "config.labels.duplicates=False turns this off"


@dataclass(frozen=True)
class FieldContents:
    """Values of one field in some records.

    Attributes:
      starts: int64 [records + 1]; record r has the values starts[r] .. starts[r + 1] - 1.
      values: int64 [n] from 0, equal for equal contents.
    """

    starts: np.ndarray
    values: np.ndarray

    @property
    def records(self) -> np.ndarray:
        """Record of each value, int64 [n]."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @property
    def most(self) -> int:
        """Maximum number of values per record."""
        return int(np.diff(self.starts).max(initial=0))

    def shared(self) -> tuple[int, int]:
        """Returns the number of records that share a value, and of distinct shared values."""
        pairs = np.unique(np.stack([self.values, self.records], axis=1), axis=0)  # [m, 2]
        several = np.bincount(pairs[:, 0]) > 1 if len(pairs) else np.zeros(0, bool)
        return len(np.unique(pairs[several[pairs[:, 0]], 1])), int(several.sum())


def field_contents(
    source: RecordSource, reader: FieldReader, records: Sequence[int]
) -> FieldContents | None:
    """Returns the values of a field in some records; None if no record has a known value.

    A damaged record, or a record without the field, has no values.
    """
    ids: dict[object, int] = {}
    values: list[int] = []
    starts = np.zeros(len(records) + 1, np.int64)
    for position, record in enumerate(records):
        try:
            contents = reader.contents(source, record)
        except (Damaged, UserError):  # some records may lack the column
            contents = ()
        values += [ids.setdefault(content, len(ids)) for content in contents]
        starts[position + 1] = len(values)
    return FieldContents(starts, np.array(values, np.int64)) if values else None


@dataclass(frozen=True)
class SharedValues:
    """Counts of records that share a value, and of distinct shared values, among `seen` records.

    Attributes:
      most: maximum number of values per record.
    """

    seen: int
    records: int
    values: int
    most: int = 1


@dataclass(frozen=True)
class Duplicates:
    """Records of a source that share values.

    Attributes:
      records: number of all records.
      shared: field -> shared values, if its contents are known.
      negatives: number of records with a hard negative that equals one of their documents.
    """

    records: int
    shared: Mapping[str, SharedValues]
    negatives: int = 0

    @property
    def any(self) -> bool:
        """True if records share values, or may do so because only a sample was read."""
        fields = self.shared.values()
        return bool(self.negatives) or any(x.records or x.seen < self.records for x in fields)

    def sentence(self, name: str) -> str:
        """Returns the numbers in words; empty if no record shares anything."""
        parts = [
            f"{x.records:,} of {x.seen:,} records"
            + (f" (a sample of {self.records:,})" if x.seen < self.records else "")
            + f" share their {field} with others ({x.values:,} different)"
            for field, x in self.shared.items()
            if x.records
        ]
        if self.negatives:
            parts.append(f"{self.negatives:,} have a hard negative that is a document of theirs")
        return f"{name}: {'; '.join(parts)}" if parts else ""


def count_shared(
    source: RecordSource,
    readers: Mapping[str, FieldReader],
    negatives: tuple[str, str] | None = None,
) -> Duplicates:
    """Counts records that share values; in large sources, a sample (`ALL`, `IMAGES`).

    Args:
      negatives: column of hard negatives, and the document field whose reader reads them.
    """
    shared = {}
    for name, reader in readers.items():
        is_image = reader.field.modality == "image"
        records = _sample(len(source), IMAGES if is_image else ALL)
        contents = field_contents(source, reader, records)
        if contents is not None:
            shared[name] = SharedValues(len(records), *contents.shared(), contents.most)
    count = 0
    if negatives is not None:
        column, field = negatives
        count = _count_negatives(source, readers[field], column, _sample(len(source), ALL))
    return Duplicates(len(source), shared, count)


def _sample(count: int, limit: int) -> Sequence[int]:
    """Returns all record indices; above `limit` records, evenly spaced ones."""
    if count <= limit:
        return range(count)
    return evenly_spaced(count, min(limit, SAMPLE)).tolist()


def _count_negatives(
    source: RecordSource, reader: FieldReader, column: str, records: Sequence[int]
) -> int:
    """Counts records with a hard negative that equals one of their documents."""
    titled, count = bool(reader.field.title), 0
    for record in records:
        try:
            value = value_of(source, record, column)
            negatives = read_negatives(value, column, source.place(record))
            documents = set(reader.contents(source, record))
        except (Damaged, UserError):
            continue
        count += any(text_key(x.as_text(titled)) in documents for x in negatives)
    return count


def compared_readers(config: Config, readers: Mapping[str, FieldReader]) -> dict[str, FieldReader]:
    """Returns the readers of queries and documents, without fields that repeat another's input."""
    return {
        name: reader
        for name, reader in readers.items()
        if config.fields[name].side != "target" and not config.fields[name].same_input_as
    }


def content_ids(
    config: Config, source: RecordSource, readers: Mapping[str, FieldReader]
) -> ContentIds | None:
    """Returns the settings of ids by content for training rows; logs the shared values.

    Returns None if no records share anything, if all losses keep false negatives, or if
    `config.labels` names columns of ids or turns `duplicates` off.
    """
    labels, name = config.labels, negatives_field(config)
    policies = {getattr(loss, "false_negatives", "keep") for loss in config.losses.values()}
    if not labels.duplicates or labels.query or labels.document or policies == {"keep"}:
        return None
    negatives = (config.negatives.column, name) if name else None
    duplicates = count_shared(source, compared_readers(config, readers), negatives)
    if sentence := duplicates.sentence(source.name):
        log.info(f"{sentence}; they are not negatives of each other ({OFF})")
    if not duplicates.any:
        return None

    def fields_of(side: str) -> tuple[str, ...]:
        return tuple(field for field in config.side(side) if field in readers)

    def ids_per_row(fields: tuple[str, ...]) -> int:
        """Returns the number of ids per row; several fields together have one id."""
        if len(fields) != 1 or fields[0] not in duplicates.shared:
            return 1
        return max(1, min(duplicates.shared[fields[0]].most, MOST_IDS))

    query, document = fields_of("query"), fields_of("document")
    count = config.negatives.count if name else 0
    return ContentIds(query, document, ids_per_row(query), ids_per_row(document), name, count)
