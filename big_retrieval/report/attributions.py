"""Grad-CAM of texts and images: heat maps, and texts with colored words."""

from collections.abc import Mapping, Sequence
from typing import Any

from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import number
from big_retrieval.report.results import chip

READING = (
    "Grad-CAM: the redder a patch or a word, the more it adds to the score. In each picture and "
    "each text the largest value is full red; patches and words of value 0 stay gray or plain. In "
    "addition to the whole score, the pairs of class tokens with the largest scores are shown."
)


def attributions_section(
    files: Sequence[Mapping[str, Any]], limit: int | None = None
) -> Html | None:
    """Builds the Grad-CAM of an evaluator's first `limit` examples of one or two runs."""
    if not any(file.get("attributions") for file in files):
        return None
    parts = [tag("summary", "Parts of the score"), tag("p", READING, class_="note")]
    for run, file in enumerate(files):
        mark = chip(run) if len(files) == 2 else None
        parts += [attributed(x, mark) for x in file.get("attributions", ())[:limit]]
    return tag("details", parts, class_="group")


def attributed(content: Mapping[str, Any], mark: Html | None = None) -> Html:
    """Builds the Grad-CAM of one text with one image.

    The content is from `gradcam.Attribution.describe`, with `record` or `name` of the image.
    """
    name = f"record {number(content['record'])}" if "record" in content else content["name"]
    picture = tag("img", src=content["picture"], alt=name)
    first = tag("li", picture, tag("span", name, class_="note"))
    maps = [_map("whole score", content), *(_map(f"pair {p['pair']}", p) for p in content["pairs"])]
    facts = tag("p", mark, tag("bdi", content["text"]), class_="facts")
    return tag("article", facts, tag("ol", first, maps, class_="maps"), class_="attributed")


def _map(title: str, content: Mapping[str, Any]) -> Html:
    score = "NaN" if content["score"] is None else number(float(content["score"]), 3)
    return tag(
        "li",
        tag("img", src=content["map"], alt=f"heat map, {title}"),
        tag("span", f"{title}: {score}", class_="note"),
        colored(content["words"]),
    )


def colored(words: Sequence[tuple[str, float]]) -> Html:
    """Builds words, each on a background as red as its share (0 to 1) of the largest value."""
    parts = ((tag("b", word, style=f"--s: {100 * share:.0f}%"), " ") for word, share in words)
    return tag("span", tag("bdi", parts), class_="colored", dir="auto")
