"""Records that share a text or an image: how many there are, and what becomes of them in training.

Such records are right answers of each other. In training they get ids by what they hold
(`fields/contents.py`), in evaluations a value answers all values that some record holds beside it
(`evals/positives.py`).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from big_retrieval.config import Config, negatives_field
from big_retrieval.config.labels import PairLabels
from big_retrieval.data.fields.contents import ContentIds, of_text
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.negatives import read_negatives
from big_retrieval.data.sources import RecordSource, evenly_spaced, value_of
from big_retrieval.errors import Damaged, UserError

SIDES = ("query", "document")
log = logging.getLogger(__name__)
ALL, SAMPLE = 200_000, 20_000  # records: all of as many are looked at, of more a sample
IMAGES = 5_000  # images, each read as a whole
MOST_IDS = 8  # of a row: texts of a record that are compared with those of the others
OFF = "config.labels.duplicates=False turns this off"


@dataclass(frozen=True)
class FieldContents:
    """What some records hold of one field.

    Attributes:
      starts: int64 [records + 1]; record r has the values starts[r] .. starts[r + 1] - 1.
      values: int64 [n], equal for equal contents, from 0.
    """

    starts: np.ndarray
    values: np.ndarray

    @property
    def records(self) -> np.ndarray:
        """The record of each value, int64 [n]."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @property
    def most(self) -> int:
        """Values of a record, at most."""
        return int(np.diff(self.starts).max(initial=0))

    def shared(self) -> tuple[int, int]:
        """How many records hold a value that others hold, too, and how many such values."""
        pairs = np.unique(np.stack([self.values, self.records], axis=1), axis=0)  # [m, 2]
        several = np.bincount(pairs[:, 0]) > 1 if len(pairs) else np.zeros(0, bool)
        return len(np.unique(pairs[several[pairs[:, 0]], 1])), int(several.sum())


def field_contents(
    source: RecordSource, reader: FieldReader, records: Sequence[int]
) -> FieldContents | None:
    """What some records hold of a field; None where none of them says so.

    A damaged record, and one that lacks the field, has no values.
    """
    numbers: dict[object, int] = {}
    values: list[int] = []
    starts = np.zeros(len(records) + 1, np.int64)
    for place, record in enumerate(records):
        try:
            found = reader.contents(source, record)
        except (Damaged, UserError):  # some records may lack the column
            found = ()
        values += [numbers.setdefault(each, len(numbers)) for each in found]
        starts[place + 1] = len(values)
    return FieldContents(starts, np.array(values, np.int64)) if values else None


@dataclass(frozen=True)
class SharedValues:
    """How many records share values of one field.

    Attributes:
      seen: records that were looked at.
      records: those that hold a value which others hold, too.
      values: how many such values there are.
    """

    seen: int
    records: int
    values: int
    most: int = 1


@dataclass(frozen=True)
class Duplicates:
    """What a look at the records of a source found.

    Attributes:
      shared: field -> how many share its values; without fields whose contents are not known.
      negatives: records with a hard negative that equals a document of theirs.
    """

    records: int
    shared: Mapping[str, SharedValues]
    negatives: int = 0

    @property
    def any(self) -> bool:
        """Whether there are some, or may be among records that were not looked at."""
        found = self.shared.values()
        return bool(self.negatives) or any(x.records or x.seen < self.records for x in found)

    def sentence(self, name: str) -> str:
        """The numbers in words; "" where no record shares anything."""
        parts = [
            f"{found.records:,} of {found.seen:,} records"
            + (f" (a sample of {self.records:,})" if found.seen < self.records else "")
            + f" share their {field} with others ({found.values:,} different)"
            for field, found in self.shared.items()
            if found.records
        ]
        if self.negatives:
            parts.append(f"{self.negatives:,} have a hard negative that is a document of theirs")
        return f"{name}: {'; '.join(parts)}" if parts else ""


def look(
    source: RecordSource,
    readers: Mapping[str, FieldReader],
    negatives: tuple[str, str] | None = None,
) -> Duplicates:
    """Looks for records that share values.

    Of more than `ALL` records a sample of `SAMPLE` is looked at, of more than `IMAGES` images a
    sample of as many.

    Args:
      readers: the fields that are compared: name -> how it is read.
      negatives: column of hard negatives and the document field that they are read like.
    """
    shared = {}
    for name, reader in readers.items():
        is_image = reader.field.modality == "image"
        records = _chosen(len(source), IMAGES if is_image else ALL)
        found = field_contents(source, reader, records)
        if found is not None:
            shared[name] = SharedValues(len(records), *found.shared(), found.most)
    count = 0
    if negatives is not None:
        chosen = _chosen(len(source), ALL)
        count = _negatives(source, readers[negatives[1]], negatives[0], chosen)
    return Duplicates(len(source), shared, count)


def _chosen(count: int, most: int) -> Sequence[int]:
    """All records, or of more than `most` a sample, evenly spread."""
    if count <= most:
        return range(count)
    return evenly_spaced(count, min(most, SAMPLE)).tolist()


def _negatives(
    source: RecordSource, reader: FieldReader, column: str, records: Sequence[int]
) -> int:
    """Records with a hard negative that equals one of their own documents."""
    titled, count = bool(reader.field.title), 0
    for record in records:
        try:
            value = value_of(source, record, column)
            listed = read_negatives(value, column, source.place(record))
            own = set(reader.contents(source, record))
        except (Damaged, UserError):
            continue
        texts = ((x.title, x.text) if titled else x.text for x in listed)
        count += any(of_text(text) in own for text in texts)
    return count


def compared(config: Config, readers: Mapping[str, FieldReader]) -> dict[str, FieldReader]:
    """The fields of queries and documents whose contents are compared, each value once."""
    return {
        name: reader
        for name, reader in readers.items()
        if config.fields[name].side != "target" and not config.fields[name].same_input_as
    }


def by_content(labels: PairLabels) -> bool:
    """Whether rows get ids by what they hold: it is not off, and no columns of ids are named."""
    return labels.duplicates and not (labels.query or labels.document)


def content_ids(
    config: Config, source: RecordSource, readers: Mapping[str, FieldReader]
) -> ContentIds | None:
    """The ids that training rows get by what they hold; says what was found.

    Returns:
      None where no records share anything, where `config.labels` names columns of ids, where
      `config.labels.duplicates` is off, or where all losses keep false negatives: batches are then
      as they are without ids.
    """
    asked = {getattr(loss, "false_negatives", "keep") for loss in config.losses.values()}
    if not by_content(config.labels) or asked == {"keep"}:
        return None
    name = negatives_field(config)
    negatives = (config.negatives.column, name) if name else None
    found = look(source, compared(config, readers), negatives)
    if sentence := found.sentence(source.name):
        log.info(f"{sentence}; they are no negatives of each other ({OFF})")
    if not found.any:
        return None
    query, document = (tuple(n for n in config.side(side) if n in readers) for side in SIDES)
    return ContentIds(
        query,
        document,
        _ids_of_row(query, found),
        _ids_of_row(document, found),
        name,
        config.negatives.count if name else 0,
    )


def _ids_of_row(names: Sequence[str], found: Duplicates) -> int:
    """How many ids a row has on a side with these fields; several fields have one together."""
    if len(names) != 1 or names[0] not in found.shared:
        return 1
    return max(1, min(found.shared[names[0]].most, MOST_IDS))
