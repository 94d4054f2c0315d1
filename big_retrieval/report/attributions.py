"""Grad-CAM of texts and images: heat maps, and texts with their words coloured."""

from collections.abc import Mapping, Sequence
from typing import Any

from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import is_number, number
from big_retrieval.report.results import chip

READING = (
    "Grad-CAM: the redder a patch or a word, the more it adds to the score. In each picture and "
    "each text the largest value is full red; what adds nothing stays grey or plain. Besides the "
    "whole score, the pairs of class tokens with the largest scores of their own."
)
PICTURES = ("data:image/png;base64,", "data:image/jpeg;base64,")


def section(files: Sequence[Mapping[str, Any]], limit: int | None = None) -> list[Html]:
    """What the examples of an evaluator show of Grad-CAM; [] where there is none.

    Args:
      files: of one or two runs.
      limit: records at most; None: all.
    """
    if not any(file.get("attributions") for file in files):
        return []
    parts = [tag("summary", "What the score comes from"), tag("p", READING, class_="note")]
    for run, file in enumerate(files):
        mark = chip(run) if len(files) == 2 else None
        parts += [attributed(each, mark) for each in file.get("attributions", ())[:limit]]
    return [tag("details", parts, class_="group")]


def attributed(found: Mapping[str, Any], mark: Html | None = None) -> Html:
    """One text with one image.

    Args:
      found: as `gradcam.Attribution.describe` gives it, perhaps out of a file, with the
        `record` or the `name` of the image.
      mark: of the run.
    """
    name = f"record {number(found['record'])}" if "record" in found else str(found["name"])
    maps = [_map("whole score", found), *(_map(f"pair {p['pair']}", p) for p in found["pairs"])]
    picture = tag("li", _picture(found["picture"], name), tag("span", name, class_="note"))
    facts = tag("p", mark, tag("bdi", found["text"]), class_="facts")
    return tag("article", facts, tag("ol", picture, maps, class_="maps"), class_="attributed")


def _map(title: str, found: Mapping[str, Any]) -> Html:
    score = found["score"]
    head = f"{title}: {number(float(score), 3) if is_number(score) else 'NaN'}"
    return tag(
        "li",
        _picture(found["map"], f"heat map, {title}"),
        tag("span", head, class_="note"),
        coloured(found["words"]),
    )


def _picture(uri: str, alt: str) -> Html | None:
    return tag("img", src=uri, alt=alt) if uri.startswith(PICTURES) else None


def coloured(words: Sequence[Sequence[Any]]) -> Html:
    """Words, each on a background as red as its share of the largest value.

    Args:
      words: (word, share from 0 to 1).
    """
    parts: list[Any] = []
    for word, share in words:
        strength = min(max(float(share), 0.0), 1.0)
        parts += [tag("b", str(word), style=f"--s: {100 * strength:.0f}%"), " "]
    return tag("span", tag("bdi", parts), class_="coloured", dir="auto")
