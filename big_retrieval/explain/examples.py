"""Records of a set with what a model sees in them: strongest words, own words, pairs.

After VDR, section 6.2 and Figure 4: a picture, its strongest words, and the share of the score that
each word of a caption has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.data.damage import SkippedRecords
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import Damaged, UserError
from big_retrieval.explain.items import open_data, reader_of, values_of
from big_retrieval.explain.words import (
    bags_of,
    check_field,
    check_mode,
    lexical_fields,
    represent,
    words_of,
)
from big_retrieval.sparse import listing
from big_retrieval.sparse.listing import Listed, Shared

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

TOP = 5  # strongest words of which the share of own words is told, as `words@5` of evaluations
TEXTS = 3  # texts of a record that are compared with it


@dataclass(frozen=True)
class ExampleOptions:
    """Which examples.

    Attributes:
      data: see `items.open_data`.
      field: what is shown; None: the first lexical image field, else the first of documents.
      other: the texts that it is compared with; None: the first other lexical text field.
      count: records, drawn from the set; all where it has fewer.
      seed: of the draw.
      mode: of the search: "parametric", "bag" or "binary".
    """

    data: str
    field: str | None = None
    other: str | None = None
    count: int = 24
    seed: int = 0
    mode: str = "parametric"


@dataclass(frozen=True)
class ExplainedRecord:
    """One record.

    Attributes:
      record: its number in the set.
      item: the picture, uint8 [H, W, 3], or the text.
      words: of the item, all that are not 0, strongest first.
      own: words of the record's texts.
      pairs: the first of its texts, and what each shares with the item.
    """

    record: int
    item: Any
    words: Listed
    own: frozenset[str]
    pairs: Sequence[tuple[str, Shared]]

    @property
    def right(self) -> float:
        """The share of the item's five strongest words that one of its texts holds."""
        strongest = [word for word, _ in self.words[:TOP]]
        return sum(word in self.own for word in strongest) / max(len(strongest), 1)

    @property
    def unseen(self) -> list[str]:
        """The words of the texts that the item has not, sorted."""
        return sorted(self.own - {word for word, _ in self.words})


def examples(
    model: "TrainedModel", options: ExampleOptions
) -> tuple[RecordSource, list[ExplainedRecord]]:
    """Draws records of a set and explains them.

    Args:
      model: with lexical heads.
      options: which.

    Returns:
      The set, and the examples in its order; damaged records are skipped.

    Raises:
      UserError: there is no such field or data, no record can be used, or the mode needs words of
        an image.
    """
    field, other = fields_of(model, options)
    check_mode(model, other, field, options.mode)
    source = open_data(model.config, options.data)
    rng = np.random.default_rng(options.seed)
    count = min(options.count, len(source))
    records = np.sort(rng.choice(len(source), count, replace=False))
    items: dict[int, Any] = {}
    texts: dict[int, list[Any]] = {}
    skipped = SkippedRecords("records")
    for record, value in values_of(source, reader_of(model, field), records, skipped):
        items.setdefault(record, value)  # of several texts the first
    for record in [*items]:
        try:
            texts[record] = list(source_texts(source, record, reader_of(model, other)))
        except Damaged as problem:
            skipped.add(problem)
            del items[record]
    skipped.check(count)
    skipped.close()
    return source, _explained(model, (field, other), items, [*texts.values()], options.mode)


def fields_of(model: "TrainedModel", options: ExampleOptions) -> tuple[str, str]:
    """The field of the items and that of their texts.

    Raises:
      UserError: there is no such field, or no second one.
    """
    config = model.config
    known = lexical_fields(config, "image") or lexical_fields(config)[::-1]  # documents come last
    field = options.field or next(iter(known), "")
    check_field(config, field)
    texts = [name for name in lexical_fields(config, "text") if name != field]
    other = options.other or next(iter(texts), "")
    if not other:
        raise UserError(f"the model has no lexical text field besides {field!r} to compare with.")
    check_field(config, other, "text")
    return field, other


def _explained(
    model: "TrainedModel",
    fields: tuple[str, str],
    items: dict[int, Any],
    texts: Sequence[Sequence[Any]],
    mode: str,
) -> list[ExplainedRecord]:
    """Encodes everything at once, then takes it apart.

    Args:
      model: with lexical heads.
      fields: that of the items, that of the texts.
      items: record -> picture or text.
      texts: of each record.
      mode: of the search.
    """
    field, other = fields
    names = words_of(model, field)
    found = represent(model, list(items.values()), field, "document", mode)
    asked = represent(model, [text for own in texts for text in own[:TEXTS]], other, "query", mode)
    bags = bags_of(model, [text for own in texts for text in own], other, "query")
    starts = np.cumsum([0, *(len(own) for own in texts)])
    query, out = 0, []
    for place, (record, item) in enumerate(items.items()):
        row, pairs = found[[place]], []
        for text in texts[place][:TEXTS]:
            pairs.append((shown(text), listing.shared(asked[[query]], row, names)))
            query += 1
        own = bags[starts[place] : starts[place + 1]].indices  # of all texts
        words = frozenset(names[int(term)] for term in np.unique(own))
        out.append(ExplainedRecord(record, item, listing.strongest(row, names, None), words, pairs))
    return out


def shown(text: Any) -> str:
    """A text, or its title and text, as one."""
    return text if isinstance(text, str) else " · ".join(filter(None, text))
