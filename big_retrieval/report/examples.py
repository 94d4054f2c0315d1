"""Examples of retrieval and classification: the query, its best answers, right and wrong marked."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from big_retrieval.report import attributions
from big_retrieval.report.confusion import confusions
from big_retrieval.report.curves import way
from big_retrieval.report.histogram import histograms
from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import is_number, number
from big_retrieval.report.read import MALFORMED, RunFiles
from big_retrieval.report.results import chip

HEADS = {
    "chosen": "Chosen queries",
    "spread": "A sample",
    "deepest": "Hardest queries",
    "surprising": "Most surprising",
}
FIRST = ("chosen", "spread")  # in sight; the others are behind folds
MATCHED = "Under each answer, the words that matched and their shares of its score."
MOST_CHARACTERS = 400  # of a text
MOST_LETTERS = 24  # of a word that matched

Found = dict[str, Any]  # a part of a file: a direction, an example, an answer, or a query


@dataclass(frozen=True)
class Shown:
    """One query with what each run answered.

    Attributes:
      query: the item.
      answers: run number -> its example.
      absent: runs of a comparison that have no answers to it.
    """

    query: Found
    answers: dict[int, Found]
    absent: tuple[int, ...]


def section(runs: Sequence[RunFiles], limit: int | None = None) -> Html:
    """The examples of all evaluators.

    Args:
      runs: one or two.
      limit: examples of each kind at most; None: all.
    """
    evaluators = sorted({name for run in runs for name in run.examples})
    if not evaluators or limit == 0:
        why = (
            "No examples: they would have made the page too large."
            if evaluators
            else "No examples yet: they are written when a run ends, and by "
            "big-retrieval evaluate --run=RUN."
        )
        return tag("p", why, class_="empty")
    note = None
    if limit is not None:
        note = tag("p", f"At most {limit} of each kind, to keep the page small.", class_="note")
    first, *others = evaluators
    folded = (
        tag("details", tag("summary", tag("bdi", name)), _readable(name, runs, limit))
        for name in others
    )
    return tag("div", note, _readable(first, runs, limit), folded)


def _readable(name: str, runs: Sequence[RunFiles], limit: int | None) -> Html:
    """The examples of one evaluator, or a sentence where its file cannot be understood."""
    try:
        return _evaluator(name, [run.examples.get(name, {}) for run in runs], limit)
    except MALFORMED:
        why = f"{name}: the file of examples is damaged, or of another version."
        return tag("p", why, class_="empty")


def _evaluator(name: str, files: Sequence[Found], limit: int | None) -> Html:
    steps = {file["step"] for file in files if file}
    step = tag("span", f"step {number(steps.pop())}", class_="note") if len(steps) == 1 else None
    parts = [tag("h3", tag("bdi", name), step)]
    if has_matched(files):
        parts.append(tag("p", MATCHED, class_="note"))
    directions = [{d["name"]: d for d in file.get("directions", ())} for file in files]
    names = dict.fromkeys(each for known in directions for each in known)
    if not names:
        parts += [confusions(files), histograms(files), *_groups(files, limit)]
    for direction in names:
        sides = [known.get(direction, {}) for known in directions]
        parts.append(tag("h4", way(direction), tag("span", _counts(sides), class_="note")))
        parts += _groups(sides, limit)
    return tag("div", parts, attributions.section(files, limit), class_="block")


def _counts(sides: Sequence[Found]) -> str:
    side = next(filter(None, sides))
    failed = "; ".join(
        f"{'' if len(sides) == 1 else 'AB'[i] + ': '}{number(d['failed'])} queries without a right "
        "answer at rank 1"
        for i, d in enumerate(sides)
        if d
    )
    return f"{number(side['queries'])} queries against {number(side['answers'])}, {failed}"


def _groups(sides: Sequence[Found], limit: int | None) -> list[Html]:
    """The groups of one direction: the sample for both runs at once, the others run by run."""
    known = [{group["name"]: group for group in side.get("groups", ())} for side in sides]
    by_query = [_index(side) for side in sides]
    out = []
    for name, head in HEADS.items():
        together = name in FIRST or len(sides) == 1
        for number_ in [None] if together else range(len(sides)):
            own = range(len(sides)) if number_ is None else (number_,)
            groups = [known[i][name] for i in own if name in known[i]]
            if not groups:
                continue
            shown = _merge([group["examples"] for group in groups], by_query)[:limit]
            title = [head, " of ", chip(number_)] if number_ is not None else [head]
            body = [_example(each, len(sides)) for each in shown] or tag(
                "p", "None.", class_="empty"
            )
            how = tag("p", groups[0].get("how"), class_="note")
            if name in FIRST:
                out.append(tag("div", tag("h5", title), how, body, class_="group"))
                continue
            summary = tag("summary", title, f" ({number(len(shown))})")
            out.append(tag("details", summary, how, body, class_="group"))
    return out


def _index(side: Found) -> dict[tuple[Any, ...], Found]:
    """All examples of a direction by what was asked."""
    return {_key(e): e for group in side.get("groups", ()) for e in group["examples"]}


def _key(example: Found) -> tuple[Any, ...]:
    """What makes a query of two runs the same: its place, and what it shows."""
    query = example["query"]
    return (example.get("place"), query.get("text"), query.get("picture"))


def _merge(
    lists: Sequence[Sequence[Found]], by_query: Sequence[dict[tuple[Any, ...], Found]]
) -> list[Shown]:
    queries = {_key(example): example["query"] for examples in lists for example in examples}
    out = []
    for key, query in queries.items():
        answers = {i: known[key] for i, known in enumerate(by_query) if key in known}
        absent = tuple(i for i in range(len(by_query)) if i not in answers)
        out.append(Shown(query, answers, absent))
    return out


def _example(shown: Shown, runs: int) -> Html:
    blocks = []
    for i, example in sorted(shown.answers.items()):
        facts = tag("p", chip(i) if runs == 2 else None, _facts(example), class_="facts")
        blocks.append(tag("div", facts, _answers(example)))
    for i in shown.absent:
        blocks.append(tag("p", chip(i), "not among the examples of this run", class_="facts"))
    beside = len(shown.answers) == 2 and not any(map(_has_pictures, shown.answers.values()))
    return tag(
        "article",
        tag("div", _item(shown.query, "query"), class_="query"),
        tag("div", blocks, class_="found two" if beside else "found"),
        class_="example seen" if "picture" in shown.query else "example",
    )


def _has_pictures(example: Found) -> bool:
    return any("picture" in answer for answer in example["answers"])


def _facts(example: Found) -> str:
    if "metrics" in example:
        return _graded_facts(example)
    words, answers = _first_right(example), example["answers"]
    rights = example["right_answers"]
    if rights and rights > 1:
        words += f" · {number(rights)} right answers"
    best = next((a for a in answers if a["right"]), example.get("right", {}))
    if answers and not answers[0]["right"]:
        scores = answers[0].get("score"), best.get("score")
        if is_number(scores[0]) and is_number(scores[1]):
            words += f" · a wrong one leads by {number(float(scores[0]) - float(scores[1]), 3)}"
    return words


def _first_right(example: Found) -> str:
    rank = example["rank"]
    return "right answer at rank 1" if rank == 1 else f"first right answer at rank {number(rank)}"


def _graded_facts(example: Found) -> str:
    """What is said of a query whose documents have relevance."""
    found = example["rank"] is not None
    sums = " of ".join(_relevance(example[key]) for key in ("sum", "best_sum"))
    return " · ".join(
        [
            *(f"{name} {number(value, 3)}" for name, value in example["metrics"].items()),
            f"relevance of the first {number(example['summed'])} adds up to {sums}",
            _first_right(example) if found else "no relevant document was found",
            f"{number(example['right_answers'])} relevant documents",
        ]
    )


def _relevance(value: Any) -> str:
    """A relevance or a sum of them: whole numbers without decimals."""
    whole = is_number(value) and float(value).is_integer()
    return number(int(value) if whole else value, 4)


def _answers(example: Found) -> Html:
    items, last = [], 0
    for _, same in itertools.groupby(example["answers"], _content):
        answer, *others = same  # records that hold the same are one answer
        first, last = last + 1, last + 1 + len(others)
        items.append(_answer(answer, f"{first}–{last}" if others else str(first)))
    if "right" in example:
        items.append(_answer(example["right"], number(example["rank"]), apart=True))
    return tag("ol", items, class_="tiles" if _has_pictures(example) else "lines")


def _content(answer: Found) -> tuple[Any, ...]:
    """What makes two answers the same to a reader."""
    return tuple(answer.get(key) for key in ("text", "picture", "right", "relevance", "score"))


def _answer(answer: Found, place: str, *, apart: bool = False) -> Html:
    right, value, score = bool(answer["right"]), answer.get("relevance"), answer["score"]
    verdict = "✓ right" if right else "✗ wrong"
    if is_number(value):
        verdict = f"✓ relevance {_relevance(value)}" if right else "✗ not relevant"
    wide = " wide" if is_number(value) and "picture" in answer else ""
    return tag(
        "li",
        tag("span", place, class_="place"),
        tag("span", verdict, class_="mark"),
        tag("span", number(float(score), 4) if is_number(score) else "NaN", class_="score"),
        _item(answer, f"answer {place}, {'right' if right else 'wrong'}"),
        matched(answer.get("matched")),
        class_=f"{'right' if right else 'wrong'}{' apart' if apart else ''}{wide}",
    )


def _item(item: Found, role: str) -> Html:
    """A picture or a text."""
    if not item.get("picture", "").startswith(attributions.PICTURES):
        return _words(item)
    name = f"record {number(item['record'])}"
    if "id" in item:
        name += f" ({item['id']})"
    if "size" in item:
        name += ", {} × {} pixels".format(*map(number, item["size"]))
    image = tag("img", src=item["picture"], alt=f"{role}: {name}", title=name)
    return tag("span", image, _words(item), class_="both") if item.get("text") else image


def _words(item: Found) -> Html:
    """A text, cut where it is very long."""
    words, cut = str(item.get("text", "")), item.get("characters")
    if len(words) > MOST_CHARACTERS:
        words, cut = words[:MOST_CHARACTERS], cut or len(words)
    more = tag("span", f" … ({number(cut)} characters)", class_="note") if cut else None
    empty = tag("span", "(an empty text)", class_="note") if not words.strip() else None
    return tag("span", tag("bdi", words), more, empty, class_="words", dir="auto")


def has_matched(value: Any) -> bool:
    """Whether anything of an evaluator's examples names words that matched."""
    if isinstance(value, dict):
        return bool(value.get("matched")) or any(has_matched(part) for part in value.values())
    return isinstance(value, list) and any(has_matched(part) for part in value)


def matched(value: Any) -> Html | None:
    """Words with bars; None where there are none, as of dense models.

    Args:
      value: lists of a word and its share of the score, from a file.
    """
    rows = [
        (str(row[0])[:MOST_LETTERS], float(row[1]))
        for row in (value if isinstance(value, list) else ())
        if isinstance(row, list) and len(row) == 2 and is_number(row[1]) and math.isfinite(row[1])
    ]
    if not rows:
        return None
    bars = (
        tag(
            "span",
            tag("bdi", word),
            tag("small", f"{100 * share:.0f}%"),
            class_="bar",
            style=f"--s: {100 * min(max(share, 0.0), 1.0):.1f}%",
        )
        for word, share in rows
    )
    return tag("span", bars, class_="matched", title="words that matched, share of the score")
