"""Examples of retrieval and classification: the query, its best answers, right and wrong marked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from big_retrieval.report.confusion import confusions
from big_retrieval.report.curves import way
from big_retrieval.report.html import Html, tag
from big_retrieval.report.matched import has_matched, matched
from big_retrieval.report.numbers import is_number, number
from big_retrieval.report.read import RunFiles
from big_retrieval.report.results import chip

HEADS = {
    "spread": "A sample",
    "deepest": "Slowest to be found",
    "surprising": "Most surprising",
}
MATCHED = "Under each answer, the words that matched and their shares of its score."
MOST_CHARACTERS = 400  # of a text
PICTURES = ("data:image/png;base64,", "data:image/jpeg;base64,")

Found = dict[str, Any]  # an example of a file


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
    return tag("div", note, (_evaluator(name, runs, limit) for name in evaluators))


def _evaluator(name: str, runs: Sequence[RunFiles], limit: int | None) -> Html:
    files = [run.examples.get(name, {}) for run in runs]
    steps = {_whole(file.get("step")) for file in files if file}
    heading = tag(
        "h3",
        tag("bdi", name),
        tag("span", f"step {number(steps.pop())}", class_="note") if len(steps) == 1 else None,
    )
    reading = tag("p", MATCHED, class_="note") if has_matched(files) else None
    ways = {
        str(direction.get("name")): None
        for file in files
        for direction in _dicts(file.get("directions"))
    }
    if not ways:
        parts: list[Html | None] = [confusions(files)]
        parts += _groups(files, limit)
    else:
        parts = []
        for way_name in ways:
            sides = [
                next(
                    (d for d in _dicts(file.get("directions")) if str(d.get("name")) == way_name),
                    {},
                )
                for file in files
            ]
            parts.append(tag("h4", way(way_name), tag("span", _counts(sides), class_="note")))
            parts += _groups(sides, limit)
    return tag("div", heading, reading, parts, class_="block")


def _counts(sides: Sequence[Found]) -> str:
    side = next(filter(None, sides), {})
    failed = "; ".join(
        f"{'' if len(sides) == 1 else 'AB'[i] + ': '}{number(d.get('failed'))} of them without a "
        "right answer at rank 1"
        for i, d in enumerate(sides)
        if d
    )
    return f"{number(side.get('queries'))} against {number(side.get('answers'))}, {failed}"


def _groups(sides: Sequence[Found], limit: int | None) -> list[Html]:
    """The groups of one direction: the sample for both runs at once, the others run by run."""
    known = [{g.get("name"): g for g in _dicts(side.get("groups"))} for side in sides]
    by_query = [_index(side) for side in sides]
    out = []
    for name, head in HEADS.items():
        shared = name == "spread"
        for number_ in [None] if shared or len(sides) == 1 else range(len(sides)):
            own = range(len(sides)) if number_ is None else (number_,)
            groups = [known[i][name] for i in own if name in known[i]]
            if not groups:
                continue
            shown = _merge([_dicts(g.get("examples")) for g in groups], by_query)[:limit]
            how = next((str(g["how"]) for g in groups if "how" in g), "")
            title = [head, " of ", chip(number_)] if number_ is not None else [head]
            out.append(_group(title, how, shown, len(sides)))
    return out


def _index(side: Found) -> dict[tuple[Any, ...], Found]:
    """All examples of a direction by what was asked."""
    groups = _dicts(side.get("groups"))
    return {_key(e): e for g in groups for e in _dicts(g.get("examples"))}


def _key(example: Found) -> tuple[Any, ...]:
    """What makes a query of two runs the same: its place, and what it shows."""
    query = example.get("query")
    query = query if isinstance(query, dict) else {}
    return (example.get("place"), str(query.get("text")), str(query.get("picture")))


def _merge(
    lists: Sequence[Sequence[Found]], by_query: Sequence[dict[tuple[Any, ...], Found]]
) -> list[Shown]:
    keys: dict[tuple[Any, ...], Found] = {}
    for examples in lists:
        for example in examples:
            keys.setdefault(_key(example), example)
    out = []
    for key, example in keys.items():
        answers = {i: known[key] for i, known in enumerate(by_query) if key in known}
        absent = tuple(i for i in range(len(by_query)) if i not in answers)
        out.append(Shown(_dict(example.get("query")), answers, absent))
    return out


def _group(title: list[Any], how: str, shown: Sequence[Shown], runs: int) -> Html:
    body = [_example(s, runs) for s in shown] or tag("p", "None.", class_="empty")
    return tag("div", tag("h5", title), tag("p", how, class_="note"), body, class_="group")


def _example(shown: Shown, runs: int) -> Html:
    pictures = any(
        "picture" in answer
        for example in shown.answers.values()
        for answer in _dicts(example.get("answers"))
    )
    blocks = []
    for i, example in sorted(shown.answers.items()):
        label = chip(i) if runs == 2 else None
        blocks.append(
            tag("div", tag("p", label, _facts(example), class_="facts"), _answers(example))
        )
    for i in shown.absent:
        blocks.append(tag("p", chip(i), "not among the examples of this run", class_="facts"))
    return tag(
        "article",
        tag("div", _item(shown.query, "query"), class_="query"),
        tag(
            "div",
            blocks,
            class_="found two" if len(shown.answers) == 2 and not pictures else "found",
        ),
        class_="example seen" if "picture" in shown.query else "example",
    )


def _facts(example: Found) -> str:
    if isinstance(example.get("metrics"), dict):
        return _graded_facts(example)
    words = _first_right(example)
    rights = _whole(example.get("right_answers"))
    if rights and rights > 1:
        words += f" · {number(rights)} right answers"
    answers = _dicts(example.get("answers"))
    best = next((a for a in answers if a.get("right")), _dict(example.get("right")))
    if answers and not answers[0].get("right"):
        scores = answers[0].get("score"), best.get("score")
        if is_number(scores[0]) and is_number(scores[1]):
            words += f" · a wrong one leads by {number(float(scores[0]) - float(scores[1]), 3)}"
    return words


def _first_right(example: Found) -> str:
    rank = _whole(example.get("rank"))
    return "right answer at rank 1" if rank == 1 else f"first right answer at rank {number(rank)}"


def _graded_facts(example: Found) -> str:
    """What is said of a query with graded documents."""
    nothing = "no relevant document was found"
    rank = nothing if _whole(example.get("rank")) is None else _first_right(example)
    sums = _relevance(example.get("sum")), _relevance(example.get("best_sum"))
    count = number(_whole(example.get("summed")))
    metrics = _dict(example.get("metrics")).items()
    said = [f"{name} {number(value, 3)}" for name, value in metrics if is_number(value)]
    total = f"relevance of the first {count} adds up to {sums[0]} of {sums[1]}"
    judged = number(_whole(example.get("right_answers")))
    return " · ".join([*said, total, rank, f"{judged} relevant documents"])


def _relevance(value: Any) -> str:
    """A relevance or a sum of them: whole numbers without decimals."""
    whole = is_number(value) and float(value).is_integer()
    return number(int(value) if whole else value, 4)


def _answers(example: Found) -> Html:
    answers = _dicts(example.get("answers"))
    pictures = any("picture" in answer for answer in answers)
    items = [_answer(a, str(i)) for i, a in enumerate(answers, 1)]
    right = _dict(example.get("right"))
    if right:
        items.append(_answer(right, number(_whole(example.get("rank"))), apart=True))
    return tag("ol", items, class_="tiles" if pictures else "lines")


def _answer(answer: Found, place: str, *, apart: bool = False) -> Html:
    right = bool(answer.get("right"))
    value = answer.get("relevance")
    verdict = "✓ right" if right else "✗ wrong"
    if is_number(value):
        verdict = f"✓ relevance {_relevance(value)}" if right else "✗ not relevant"
    mark = tag("span", verdict, class_="mark")
    score = answer.get("score")
    shown = number(float(score), 4) if is_number(score) else "NaN"
    wide = " wide" if is_number(value) and "picture" in answer else ""
    return tag(
        "li",
        tag("span", place, class_="place"),
        mark,
        tag("span", shown, class_="score"),
        _item(answer, f"answer {place}, {'right' if right else 'wrong'}"),
        matched(answer.get("matched")),
        class_=f"{'right' if right else 'wrong'}{' apart' if apart else ''}{wide}",
    )


def _item(item: Found, role: str) -> Html:
    """A picture or a text."""
    picture = item.get("picture")
    if isinstance(picture, str) and picture.startswith(PICTURES):
        name = f"record {number(_whole(item.get('record')))}"
        if isinstance(item.get("id"), str):
            name += f" ({item['id']})"
        size = item.get("size")
        if isinstance(size, list) and len(size) == 2:
            name += f", {number(size[0])} × {number(size[1])} pixels"
        image = tag("img", src=picture, alt=f"{role}: {name}", title=name)
        return tag("span", image, _words(item), class_="both") if item.get("text") else image
    return _words(item)


def _words(item: Found) -> Html:
    """A text, cut where it is very long."""
    words, cut = str(item.get("text", "")), _whole(item.get("characters"))
    if len(words) > MOST_CHARACTERS:
        words, cut = words[:MOST_CHARACTERS], cut or len(words)
    more = tag("span", f" … ({number(cut)} characters)", class_="note") if cut else None
    empty = tag("span", "(an empty text)", class_="note") if not words.strip() else None
    return tag("span", tag("bdi", words), more, empty, class_="words", dir="auto")


def _dicts(value: Any) -> list[Found]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _dict(value: Any) -> Found:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
