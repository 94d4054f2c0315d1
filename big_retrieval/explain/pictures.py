"""Pictures of explanations: bars and heat maps by ourselves, clouds and box plots by libraries.

`wordcloud` and `matplotlib` are the extra `explain`; `missing` says whether they are there.
"""

import importlib.util
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from big_retrieval.explain.usage import Box
from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import number
from big_retrieval.sparse.listing import Listed

EXTRA = ("matplotlib", "wordcloud")
WIDTH, LINE, LABEL, VALUE = 420, 19, 130, 62  # of bars, in pixels
MOST_LETTERS = 18  # of a label
SIDE = 224  # pixels of an enlarged picture, at least
CLOUD = 800  # pixels of a cloud's sides
MOST_WORDS = 100  # of a cloud
INKS = ("#3d85c6", "#d0662b", "#38915f", "#a064c0", "#97801f")  # readable on white and on black
HOT = np.array([214, 40, 40], np.float32)  # colour of the largest value of a heat map
NAMED = 12  # words outside of a box that are written beside it


def missing() -> str:
    """A sentence about the libraries that are not there; "": they are."""
    lost = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if not lost:
        return ""
    what = "word clouds or box plots" if "matplotlib" in lost else "word clouds"
    return f"no {what} without {' and '.join(lost)}: pip install 'big_retrieval[explain]'."


def bars(title: str, rows: Sequence[tuple[str, float, str]], *, alone: bool = False) -> Html:
    """Horizontal bars as SVG, the longest the largest value.

    Args:
      title: said to who cannot see it.
      rows: (label, value, what is written behind the bar).
      alone: whether it is a file of its own, which has to name its format.
    """
    most = max((value for _, value, _ in rows), default=0.0) or 1.0
    height = LINE * len(rows) + 6
    parts = []
    for place, (label, value, words) in enumerate(rows):
        short = label if len(label) <= MOST_LETTERS else label[: MOST_LETTERS - 1] + "…"
        y, length = place * LINE + 3, max(value, 0.0) / most * (WIDTH - LABEL - VALUE - 12)
        text: dict[str, Any] = {"y": y + 13, "font_size": 12, "style": "fill:var(--text,#1b2027)"}
        parts += [
            tag("text", short, x=LABEL, text_anchor="end", **text),
            tag("rect", x=LABEL + 6, y=y + 3, width=f"{length:.1f}", height=12, rx=2,
                style="fill:var(--c0,#1f6fb5)"),
            tag("text", words, x=f"{LABEL + 12 + length:.1f}", **text),
        ]  # fmt: skip
    listed = ", ".join(f"{label} {words}" for label, _, words in rows)
    own = {"xmlns": "http://www.w3.org/2000/svg", "font_family": "sans-serif"} if alone else {}
    return tag(
        "svg", parts, viewBox=f"0 0 {WIDTH} {height}", width=WIDTH, height=height, role="img",
        aria_label=f"{title}: {listed}", **own,
    )  # fmt: skip


def cloud(words: Listed, *, log: bool = False) -> Image.Image:
    """A word cloud of 800 x 800 pixels on nothing; the same for the same words.

    Args:
      words: with positive values, of which the first 100 are shown.
      log: whether sizes go by log(1 + value), as for products, instead of the value.
    """
    from wordcloud import WordCloud

    sizes = {word: float(np.log1p(v) if log else v) for word, v in words[:MOST_WORDS] if v > 0}
    places = {word: place for place, word in enumerate(sizes)}
    canvas = WordCloud(
        width=CLOUD, height=CLOUD, max_words=MOST_WORDS, prefer_horizontal=1, random_state=0,
        mode="RGBA", background_color="#00000000",
        color_func=lambda word, **_: INKS[places[word] % len(INKS)],
    )  # fmt: skip
    return canvas.generate_from_frequencies(sizes).to_image()


def enlarged(picture: np.ndarray) -> np.ndarray:
    """A picture [S, S, 3] by a whole factor, to at least 224 pixels: uint8 [T, T, 3]."""
    factor = -(-SIDE // picture.shape[0])
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def heat(picture: np.ndarray, values: np.ndarray, most: float) -> Image.Image:
    """A grey picture with its patches in red, the more the larger their value.

    Args:
      picture: uint8 [S, S, 3].
      values: [R, R]; 0 is left grey.
      most: the value that is the reddest.
    """
    base = enlarged(picture).astype(np.float32)  # [T, T, 3]
    grey = np.repeat(base.mean(axis=-1, keepdims=True), 3, axis=-1)
    strength = np.clip(values / most, 0, 1) if most > 0 else np.zeros_like(values)
    at = np.arange(len(base)) * len(values) // len(base)  # the patch of each pixel
    share = 0.75 * strength[at][:, at, None]  # [T, T, 1]
    return Image.fromarray(np.rint(grey * (1 - share) + HOT * share).astype(np.uint8))


def marked(picture: np.ndarray, chosen: np.ndarray) -> Image.Image:
    """A picture whose other patches are pale, with a line around the chosen ones.

    Args:
      picture: uint8 [S, S, 3].
      chosen: bool [R, R].
    """
    base = enlarged(picture).astype(np.float32)
    size, side = len(base), len(chosen)
    at = np.arange(size) * side // size
    share = np.where(chosen[at][:, at, None], 0.0, 0.6)
    image = Image.fromarray(np.rint(base * (1 - share) + 255 * share).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    edges = [round(i * size / side) for i in range(side + 1)]
    for row, column in np.argwhere(chosen).tolist():
        top, bottom, left, right = (
            edges[row], edges[row + 1] - 1, edges[column], edges[column + 1] - 1
        )  # fmt: skip
        for (r, c), line in {
            (row - 1, column): (left, top, right, top),
            (row + 1, column): (left, bottom, right, bottom),
            (row, column - 1): (left, top, left, bottom),
            (row, column + 1): (right, top, right, bottom),
        }.items():
            if not (0 <= r < side and 0 <= c < side and chosen[r, c]):
                pen.line(line, fill=(214, 40, 40), width=2)
    return image


def box_plot(title: str, found: Box, words: Sequence[str]) -> Image.Image:
    """The box plot of averages, with the names of the strongest words outside.

    Args:
      title: what is shown.
      found: the box.
      words: of all columns.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.add_subplot()
    stats = {
        "whislo": found.low, "q1": found.first, "med": found.median, "q3": found.third,
        "whishi": found.high, "mean": found.mean, "fliers": found.values,
    }  # fmt: skip
    axes.bxp([stats], showmeans=True, meanline=True, widths=0.4)
    named = found.values[:NAMED].tolist()
    reach = max(found.high, *named, 0.0) - found.low
    places = apart(named, 0.035 * reach)
    for column, value, place in zip(found.outside.tolist(), named, places, strict=False):
        word = words[int(column)].replace("$", r"\$")  # no formula
        axes.annotate(
            word, (1.015, value), xytext=(1.12, place), fontsize=9, va="center",
            arrowprops={"arrowstyle": "-", "color": "0.7", "linewidth": 0.7},
        )  # fmt: skip
    axes.set_xticks([])
    axes.set_ylabel("average value")
    axes.set_title(title.replace("$", r"\$"), fontsize=10)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return Image.open(stream)


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Places for labels beside values, each at its value or a gap below the one before.

    Args:
      values: largest first.
      gap: between two labels.
    """
    out: list[float] = []
    for value in values:
        out.append(min(value, out[-1] - gap) if out else value)
    return out


def percent(share: float) -> str:
    """A share of a score."""
    return f"{100 * share:.1f}%"


def bar_rows(words: Listed, shares: Sequence[float] = ()) -> list[tuple[str, float, str]]:
    """Rows of `bars`: values, with shares where there are some."""
    if not shares:
        return [(word, value, number(value, 3)) for word, value in words]
    return [
        (word, value, percent(share)) for (word, value), share in zip(words, shares, strict=True)
    ]
