"""Examples of a data set with their strongest words, and the words shared with their texts.

VDR, section 6.2 and Figure 4: a picture, its strongest words, and each word's share of the score of
a caption.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.config import Config, Pairs
from big_retrieval.data.build import make_readers, make_source
from big_retrieval.data.damage import SkippedRecords, record_at
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.images import transforms
from big_retrieval.data.sources import RecordSource, column_of
from big_retrieval.errors import Damaged, UserError
from big_retrieval.explain.words import (
    bags_of,
    check_mode,
    choose_field,
    lexical_fields,
    represent,
    words_of,
)
from big_retrieval.sparse import listing
from big_retrieval.sparse.listing import Listed, Shared

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

TOP = 5  # strongest words to compare with the texts, as in `words@5` of evaluations
TEXTS = 3  # maximum number of texts per record to compare with its item


@dataclass(frozen=True)
class ExampleOptions:
    """Selection of examples."""

    data: str  # as in `open_data`
    # Field of the items; None for the first lexical image field, else the last lexical field
    field: str | None = None
    other: str | None = None  # field of the texts; None for the first other lexical text field
    count: int = 24  # maximum number of records to draw
    seed: int = 0  # seed of the draw
    mode: str = "parametric"  # search mode


@dataclass(frozen=True)
class ExplainedRecord:
    """Words of one record."""

    record: int  # record index
    item: Any  # picture, uint8 [H, W, 3], or text
    words: Listed  # words of the item that are not 0, strongest first
    text_words: frozenset[str]  # words of the record's texts
    pairs: Sequence[tuple[str, Shared]]  # first texts, with the words that they share with the item

    @property
    def precision(self) -> float:
        """Share of the item's five strongest words that occur in one of its texts."""
        strongest = [word for word, _ in self.words[:TOP]]
        return sum(word in self.text_words for word in strongest) / max(len(strongest), 1)

    @property
    def unseen(self) -> list[str]:
        """Sorted words of the texts that are 0 in the item."""
        return sorted(self.text_words - {word for word, _ in self.words})


def examples(
    model: "TrainedModel", options: ExampleOptions
) -> tuple[RecordSource, list[ExplainedRecord]]:
    """Draws and explains records; returns the source, and the examples in its order."""
    field, other = fields_of(model, options)
    check_mode(model, other, field, options.mode)
    source = open_data(model.config, options.data)
    readers = make_readers(model.config, model.tokenizer)
    rng = np.random.default_rng(options.seed)
    count = min(options.count, len(source))
    records = np.sort(rng.choice(len(source), count, replace=False)).tolist()
    skipped = SkippedRecords("records")
    items = dict(values_of(source, readers[field], records, skipped))
    texts = dict(values_of(source, readers[other], items, skipped))
    skipped.close()
    first = {record: items[record][0] for record in texts}  # the first of several texts
    return source, _explain(model, field, other, first, [*texts.values()], options.mode)


def open_data(config: Config, data: str, *, texts: bool = True) -> RecordSource:
    """Opens the source of --data.

    Args:
      data: "data" or "evals.NAME" for a source of the config, else a file or folder of pairs.
      texts: True to read the captions of pairs; records without captions are then damaged.
    """
    group, _, name = data.partition(".")
    if data == "data":
        source = config.data
    elif group == "evals" and name in config.evals and config.evals[name].data:
        source = config.evals[name].data
    elif data and (Path(data).exists() or any(sign in data for sign in "*{")):
        # A file of texts has no images; its columns have the names of the fields.
        fields = config.encoded.values()
        image = "image" if any(field.modality == "image" for field in fields) else ""
        text = "captions" if any(field.column == "captions" for field in fields) else ""
        source = Pairs(path=data, image=image, text=text)
    else:
        choices = ", ".join(["data", *(f"evals.{name}" for name in sorted(config.evals))])
        raise UserError(
            f"--data={data} is not a file. Give a file of pairs, or a source of the config: "
            f"{choices}."
        )
    return make_source(source if texts else source.without_texts())


def values_of(
    source: RecordSource, reader: FieldReader, records: Iterable[int], skipped: SkippedRecords
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yields the index and the image or texts of records; damaged records go to `skipped`."""
    used = 0
    for record in records:
        place = source.place(record)
        try:
            with record_at(place):
                if reader.field.modality == "text":
                    values = source_texts(source, record, reader)
                else:
                    column = column_of(source[record], reader.field.column, source.name)
                    values = (transforms.picture(column, place),)
        except Damaged as error:
            skipped.add(error)
        else:
            used += 1
            yield record, values
    if not used:
        skipped.check(skipped.count)


def fields_of(model: "TrainedModel", options: ExampleOptions) -> tuple[str, str]:
    """Returns the field of the items and the field of their texts."""
    config = model.config
    fields = lexical_fields(config, "image") or lexical_fields(config)[::-1]  # documents first
    field = choose_field(config, options.field or next(iter(fields), None))
    other = choose_field(config, options.other, "text", other=field)
    if options.other is None and other == field:
        raise UserError(f"The model has no second lexical text field to compare {field!r} with.")
    return field, other


def _explain(
    model: "TrainedModel",
    field: str,
    other: str,
    items: dict[int, Any],
    texts: Sequence[Sequence[Any]],
    mode: str,
) -> list[ExplainedRecord]:
    """Encodes all items and texts in one call each, and splits the results by record."""
    names = words_of(model, field)
    documents = represent(model, list(items.values()), field, "document", mode)
    first_texts = [text for values in texts for text in values[:TEXTS]]
    queries = represent(model, first_texts, other, "query", mode)
    bags = bags_of(model, [text for values in texts for text in values], other, "query")
    starts = np.cumsum([0, *map(len, texts)])
    query, out = 0, []
    for index, (record, item) in enumerate(items.items()):
        row, pairs = documents[[index]], []
        for text in texts[index][:TEXTS]:
            pairs.append((full_text(text), listing.shared(queries[[query]], row, names)))
            query += 1
        terms = np.unique(bags[starts[index] : starts[index + 1]].indices)
        words = frozenset(names[int(term)] for term in terms)
        out.append(ExplainedRecord(record, item, listing.strongest(row, names, None), words, pairs))
    return out


def full_text(text: Any) -> str:
    """Joins title and text, if there is a title."""
    return text if isinstance(text, str) else " · ".join(filter(None, text))
