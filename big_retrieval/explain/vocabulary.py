"""How a model uses its vocabulary for a set: `big-retrieval explain vocabulary`.

VDR, appendix D and Figure 7: the average of every term over a set, and the box plot of the
strongest. A model that is "lazy" gives a few meaningless words large values whatever the input is.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.data.damage import SkippedRecords
from big_retrieval.data.sources import evenly_spaced
from big_retrieval.errors import UserError
from big_retrieval.explain import pictures
from big_retrieval.explain.items import open_data, reader_of, values_of
from big_retrieval.explain.pages import Listing
from big_retrieval.explain.words import check_field, lexical_fields, represent, words_of
from big_retrieval.report.numbers import count_of, number
from big_retrieval.sparse.listing import named, terms_of

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

REACH = 1.5  # whiskers end at values at most so many box heights away (Tukey)
BOXED = 100  # terms of a box plot, as in Figure 7 of the paper
AT_A_TIME = 256  # texts or images of which all embeddings are held
BOX = (
    "Box: the middle half of the averages. Solid line in it: median; dashed: mean. Whiskers: "
    "values within 1.5 box heights. Circles: words beyond."
)


@dataclass(frozen=True)
class Usage:
    """Averages over a set of n embeddings.

    Attributes:
      rows: n.
      means: average value of every term, zeros included, float64 [V].
      shares: share of the embeddings in which a term is not 0, float64 [V].
    """

    rows: int
    means: np.ndarray
    shares: np.ndarray

    @property
    def coverage(self) -> int:
        """How many terms are not 0 in at least one embedding."""
        return int(np.count_nonzero(self.shares))

    @property
    def nonzero(self) -> float:
        """How many terms of an average embedding are not 0."""
        return float(self.shares.sum())

    def weight(self, count: int) -> float:
        """Share of the sum of all averages that the strongest `count` terms have."""
        total = float(self.means.sum())
        return float(terms_of(self.means, count)[1].sum()) / total if total else 0.0


@dataclass(frozen=True)
class Box:
    """A box plot of the averages of some terms.

    Attributes:
      low: where the lower whisker ends: the smallest value within 1.5 box heights of the box.
      first: lower end of the box, the first quartile (linear between values).
      median: middle.
      third: upper end of the box.
      high: where the upper whisker ends.
      mean: of all values.
      outside: int64 [n], terms beyond the whiskers, largest average first.
      values: their averages [n].
    """

    low: float
    first: float
    median: float
    third: float
    high: float
    mean: float
    outside: np.ndarray
    values: np.ndarray


def usage_of(chunks: Iterable[Any]) -> Usage:
    """Averages over embeddings that come in parts.

    Args:
      chunks: each [n, V], dense or sparse.

    Raises:
      UserError: there is none.
    """
    rows, sums, counts = 0, np.zeros(1), np.zeros(1)
    for chunk in chunks:
        rows += chunk.shape[0]
        sums = sums + np.asarray(chunk.sum(axis=0, dtype=np.float64)).reshape(-1)  # [V]
        counts = counts + np.asarray((chunk != 0).sum(axis=0)).reshape(-1)  # [V]
    if not rows:
        raise UserError("there is nothing to average: give at least one text or image.")
    return Usage(rows, sums / rows, counts / rows)


def usage(model: "TrainedModel", items: Iterable[Any], field: str) -> Usage:
    """How the model uses its vocabulary for some texts or images, which may be very many.

    Raises:
      UserError: as `words.represent`, or there is no item.
    """
    rest = iter(items)
    parts = iter(lambda: list(itertools.islice(rest, AT_A_TIME)), [])
    return usage_of(represent(model, part, field) for part in parts)


def box(means: np.ndarray, count: int | None = BOXED) -> Box:
    """The box plot of the strongest terms.

    Args:
      means: [V], not negative.
      count: of so many of the strongest terms; None: of all that are not 0.

    Raises:
      UserError: every average is 0.
    """
    terms, values = terms_of(means, count)
    if not len(values):
        raise UserError("every term is 0 on average: there is no box to draw.")
    first, median, third = map(float, np.percentile(values, (25, 50, 75)))
    reach = REACH * (third - first)
    inside = (values >= first - reach) & (values <= third + reach)
    # The box itself lies between values, so that a whisker may not begin inside of it.
    low = min(float(values[inside].min(initial=np.inf)), first)
    high = max(float(values[inside].max(initial=-np.inf)), third)
    mean = float(values.mean())
    return Box(low, first, median, third, high, mean, terms[~inside], values[~inside])


def vocabulary(
    model: "TrainedModel", data: str, field: str | None, count: int | None, draw: bool
) -> list[Listing]:
    """How a model uses its vocabulary for a set of texts or images (VDR, Figure 7).

    Args:
      model: with lexical heads.
      data: see `items.open_data`.
      field: of the set; None: the first lexical one.
      count: records, evenly spaced; None: all.
      draw: whether the box plot is wanted.

    Raises:
      UserError: there is no such field or data, no record can be used, or it has no value at all.
    """
    name = field or next(iter(lexical_fields(model.config)), "")
    check_field(model.config, name)
    reader, skipped = reader_of(model, name), SkippedRecords("records")
    source = open_data(model.config, data, texts=reader.field.modality == "text")
    records = evenly_spaced(len(source), len(source) if count is None else count)
    values = (value for _, value in values_of(source, reader, records, skipped))
    found, words = usage(model, values, name), words_of(model, name)
    terms, means = terms_of(found.means)
    strong, boxed = box(found.means, BOXED), min(BOXED, found.coverage)
    note = (
        f"{count_of(found.rows, reader.field.modality)}; {found.coverage:,} of {len(words):,} "
        f"terms are not 0 somewhere, {number(found.nonzero, 4)} in an average {name}; the "
        f"strongest {boxed} terms have {pictures.percent(found.weight(BOXED))} of all value"
    )
    if skipped.count:
        note += f"; {count_of(skipped.count, 'record')} skipped"
    title = f"average values of {name}, {source.name}"
    drawn = []
    if draw:
        drawn = [("box", BOX, pictures.box_plot(f"{title}: strongest {boxed}", strong, words))]
    ends = " ".join(
        number(x, 3) for x in (strong.low, strong.first, strong.median, strong.third, strong.high)
    )
    beyond = f"whisker, quartile, median, quartile, whisker: {ends}; mean {number(strong.mean, 3)}"
    return [
        Listing("vocabulary", title, named(words, terms, means), note=note, drawings=drawn),
        Listing(
            "outside",
            f"outside of the box of the strongest {boxed}",
            named(words, strong.outside, strong.values),
            note=beyond,
        ),
    ]
