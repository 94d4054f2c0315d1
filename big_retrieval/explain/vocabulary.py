"""Usage of the vocabulary over a data set: `big-retrieval explain vocabulary`.

VDR, appendix D and Figure 7: the average of every term over a data set, and the box plot of the
strongest terms. A "lazy" model gives a few meaningless words large values for any input.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.data.build import make_readers
from big_retrieval.data.damage import SkippedRecords
from big_retrieval.data.sources import evenly_spaced
from big_retrieval.errors import UserError
from big_retrieval.explain import pictures
from big_retrieval.explain.examples import open_data, values_of
from big_retrieval.explain.pages import Listing
from big_retrieval.explain.words import choose_field, represent, words_of
from big_retrieval.report.numbers import number, percent
from big_retrieval.runtime.messages import count_of
from big_retrieval.sparse.listing import name_terms, terms_of

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

REACH = 1.5  # maximum length of a whisker, in box heights (Tukey)
BOXED = 100  # terms of a box plot, as in Figure 7 of the paper
AT_A_TIME = 256  # texts or images whose embeddings are in memory
BOX = (
    "Box: the middle half of the averages, with the median (solid) and the mean (dashed). "
    "Whiskers: values within 1.5 box heights. Circles: words beyond."
)


@dataclass(frozen=True)
class Usage:
    """Averages over embeddings."""

    rows: int  # number of embeddings
    means: np.ndarray  # average value of every term, with zeros, float64 [V]
    shares: np.ndarray  # share of embeddings with a nonzero value, float64 [V]

    @property
    def coverage(self) -> int:
        """Number of terms with a nonzero value in at least one embedding."""
        return int(np.count_nonzero(self.shares))

    @property
    def nonzero(self) -> float:
        """Average number of nonzero terms per embedding."""
        return float(self.shares.sum())

    def weight(self, count: int) -> float:
        """Returns the sum of the `count` largest averages, divided by the sum of all averages."""
        total = float(self.means.sum())
        return float(terms_of(self.means, count)[1].sum()) / total if total else 0.0


@dataclass(frozen=True)
class Box:
    """Box plot of the averages of terms."""

    low: float  # end of the lower whisker: the smallest value within 1.5 box heights of the box
    first: float  # first quartile (linear between values), the lower end of the box
    median: float
    third: float  # third quartile, the upper end of the box
    high: float  # end of the upper whisker
    mean: float
    outside: np.ndarray  # terms beyond the whiskers, largest average first, int64 [n]
    values: np.ndarray  # averages of the terms in `outside`, [n]


def usage_of(chunks: Iterable[Any]) -> Usage:
    """Averages blocks of embeddings [n, V], dense or sparse; raises a UserError without any."""
    rows, sums, counts = 0, np.zeros(1), np.zeros(1)
    for chunk in chunks:
        rows += chunk.shape[0]
        sums = sums + np.asarray(chunk.sum(axis=0, dtype=np.float64)).reshape(-1)  # [V]
        counts = counts + np.asarray((chunk != 0).sum(axis=0)).reshape(-1)  # [V]
    if not rows:
        raise UserError("Nothing to average: the data has no text or image.")
    return Usage(rows, sums / rows, counts / rows)


def usage(model: "TrainedModel", items: Iterable[Any], field: str) -> Usage:
    """Encodes and averages texts or images, with a constant number of embeddings in memory."""
    remaining = iter(items)
    chunks = iter(lambda: list(itertools.islice(remaining, AT_A_TIME)), [])
    return usage_of(represent(model, chunk, field) for chunk in chunks)


def box(means: np.ndarray, count: int | None = BOXED) -> Box:
    """Computes the box plot of the `count` strongest terms (None for all) of their averages [V]."""
    terms, values = terms_of(means, count)
    if not len(values):
        raise UserError("No box to draw: the average of every term is 0.")
    first, median, third = map(float, np.percentile(values, (25, 50, 75)))
    reach = REACH * (third - first)
    inside = (values >= first - reach) & (values <= third + reach)
    # Quartiles are interpolated between values, so a whisker could else end inside the box.
    low = min(float(values[inside].min(initial=np.inf)), first)
    high = max(float(values[inside].max(initial=-np.inf)), third)
    mean = float(values.mean())
    return Box(low, first, median, third, high, mean, terms[~inside], values[~inside])


def vocabulary(
    model: "TrainedModel", data: str, field: str | None, count: int | None, draw: bool
) -> list[Listing]:
    """Lists the averages of all terms over a data set, and the terms outside the box plot.

    Args:
      data: as in `examples.open_data`.
      field: a lexical field; None for the first one.
      count: number of records, evenly spaced; None for all.
    """
    name, skipped = choose_field(model.config, field), SkippedRecords("records")
    reader = make_readers(model.config, model.tokenizer)[name]
    source = open_data(model.config, data, texts=reader.field.modality == "text")
    records = evenly_spaced(len(source), len(source) if count is None else count).tolist()
    rows = (values for _, values in values_of(source, reader, records, skipped))
    averages = usage(model, itertools.chain.from_iterable(rows), name)
    words = words_of(model, name)
    terms, means = terms_of(averages.means)
    strong, boxed = box(averages.means, BOXED), min(BOXED, averages.coverage)
    note = (
        f"{count_of(averages.rows, reader.field.modality)}; {averages.coverage:,} of "
        f"{len(words):,} terms are not 0 somewhere, {number(averages.nonzero, 4)} in an average "
        f"{name}; the strongest {boxed} terms have {percent(averages.weight(BOXED))} of all values"
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
        Listing("vocabulary", title, name_terms(words, terms, means), note=note, drawings=drawn),
        Listing(
            "outside",
            f"outside of the box of the strongest {boxed}",
            name_terms(words, strong.outside, strong.values),
            note=beyond,
        ),
    ]
