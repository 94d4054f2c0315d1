"""Pictures of explanations: marked patches, box plots and word clouds.

Word clouds need the extra `explain`; `missing` checks if it is installed.
"""

import importlib.util
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from scipy.ndimage import binary_erosion

from big_retrieval.report.heat_maps import HOT, enlarged
from big_retrieval.sparse.listing import Listed

if TYPE_CHECKING:
    from big_retrieval.explain.vocabulary import Box

EXTRA = "wordcloud"
STYLE: Any = {"text.parse_math": False}  # no formulas in words with dollar signs
OUTLINE = 2  # pixels
CLOUD = 800  # pixels of a cloud's sides
MAX_WORDS = 100  # of a cloud
INKS = ("#3d85c6", "#d0662b", "#38915f", "#a064c0", "#97801f")  # readable on white and on black
NAMED = 12  # maximum number of labeled words outside a box


def missing() -> str:
    """Returns a message if the library of the extra is missing; "" if it is installed."""
    if importlib.util.find_spec(EXTRA):
        return ""
    return f"no word clouds without {EXTRA}: pip install 'big_retrieval[explain]'."


def cloud(words: Listed, *, log: bool = False) -> Image.Image:
    """Draws a deterministic word cloud of 800 x 800 pixels on a transparent background.

    Args:
      words: (word, value); the first 100 with positive values are shown.
      log: True for sizes of log(1 + value), as for products.
    """
    from wordcloud import WordCloud

    sizes = {word: float(np.log1p(v) if log else v) for word, v in words[:MAX_WORDS] if v > 0}
    index_of = {word: index for index, word in enumerate(sizes)}
    canvas = WordCloud(
        width=CLOUD, height=CLOUD, max_words=MAX_WORDS, prefer_horizontal=1, random_state=0,
        mode="RGBA", background_color="#00000000",
        color_func=lambda word, **_: INKS[index_of[word] % len(INKS)],
    )  # fmt: skip
    return canvas.generate_from_frequencies(sizes).to_image()


def marked(picture: np.ndarray, mask: np.ndarray) -> Image.Image:
    """Outlines patches in `mask`, bool [R, R], of a picture uint8 [S, S, 3]; fades the others."""
    base = enlarged(picture).astype(np.float32)
    at = np.arange(len(base)) * len(mask) // len(base)  # the patch of each pixel
    pixels = mask[at][:, at]
    share = np.where(pixels[..., None], 0.0, 0.6)
    image = np.rint(base * (1 - share) + 255 * share).astype(np.uint8)
    image[pixels & ~binary_erosion(pixels, iterations=OUTLINE)] = HOT
    return Image.fromarray(image)


def box_plot(title: str, box: "Box", words: Sequence[str]) -> Image.Image:
    """Draws a box plot, with labels of the strongest words outside; `words` are all terms."""
    import matplotlib
    from matplotlib.figure import Figure

    stats = {
        "whislo": box.low, "q1": box.first, "med": box.median, "q3": box.third,
        "whishi": box.high, "mean": box.mean, "fliers": box.values,
    }  # fmt: skip
    labeled = box.values[:NAMED].tolist()
    heights = apart(labeled, 0.035 * (max(box.high, *labeled, 0.0) - box.low))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6, 6), layout="constrained")
        axes = figure.add_subplot(xticks=[], ylabel="average value")
        axes.set_title(title, fontsize=10)
        axes.bxp([stats], showmeans=True, meanline=True, widths=0.4)
        for term, value, height in zip(box.outside.tolist(), labeled, heights, strict=False):
            axes.annotate(
                str(words[term]), (1.015, value), xytext=(1.12, height), fontsize=9, va="center",
                arrowprops={"arrowstyle": "-", "color": "0.7", "linewidth": 0.7},
            )  # fmt: skip
        axes.set_xticks([])
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=110)
    return Image.open(stream)


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Returns the heights of labels for values, largest first, with a minimum gap between them."""
    out: list[float] = []
    for value in values:
        out.append(min(value, out[-1] - gap) if out else value)
    return out
