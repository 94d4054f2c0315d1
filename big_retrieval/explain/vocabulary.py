"""How a model uses its vocabulary for a set: `big-retrieval explain vocabulary`."""

from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.data.skipped import LeftOut
from big_retrieval.explain import pictures
from big_retrieval.explain.items import evenly, open_data, reader_of, values_of
from big_retrieval.explain.show import Listing
from big_retrieval.explain.usage import box
from big_retrieval.explain.words import check_field, lexical_fields, usage, words_of
from big_retrieval.report.numbers import count_of, number

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

BOX = (
    "Box: the middle half of the averages. Solid line in it: median; dashed: mean. Whiskers: "
    "values within 1.5 box heights. Circles: words beyond."
)
BOXED = 100  # columns of a box plot, as in Figure 7 of the paper


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
    reader, left_out = reader_of(model, name), LeftOut("records")
    source = open_data(model.config, data, texts=reader.field.modality == "text")
    values = (value for _, value in values_of(source, reader, evenly(source, count), left_out))
    found, words = usage(model, values, name), words_of(model, name)
    order = np.argsort(-found.means, kind="stable")
    listed: Any = [(words[c], float(found.means[c])) for c in order.tolist() if found.means[c]]
    strong = box(found.means, BOXED)
    boxed = min(BOXED, found.used)
    note = (
        f"{count_of(found.rows, reader.field.modality)}; {found.used:,} of {len(words):,} columns "
        f"are used, {number(found.active, 4)} at a time; the strongest {boxed} have "
        f"{pictures.percent(found.weight(BOXED))} of all value"
    )
    if left_out.count:
        note += f"; {count_of(left_out.count, 'record')} left out"
    title = f"average values of {name}, {source.name}"
    drawn = []
    if draw and not pictures.missing():
        drawn = [("box", BOX, pictures.box_plot(f"{title}: strongest {boxed}", strong, words))]
    outside = [
        (words[int(c)], float(value))
        for c, value in zip(strong.outside, strong.values, strict=True)
    ]
    ends = " ".join(
        number(x, 3) for x in (strong.low, strong.first, strong.median, strong.third, strong.high)
    )
    beyond = f"whisker, quartile, median, quartile, whisker: {ends}; mean {number(strong.mean, 3)}"
    return [
        Listing("vocabulary", title, listed, note=note, drawings=drawn),
        Listing("outside", f"outside of the box of the strongest {boxed}", outside, note=beyond),
    ]
