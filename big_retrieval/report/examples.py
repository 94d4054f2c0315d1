"""Examples of retrieval and classification: queries, their best answers, and which are relevant."""

import itertools
from collections.abc import Sequence
from typing import Any

from big_retrieval.report import attributions
from big_retrieval.report.confusion import confusions
from big_retrieval.report.curves import way
from big_retrieval.report.histogram import histograms
from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import is_number, number
from big_retrieval.report.read import RunFiles
from big_retrieval.report.results import chip

HEADS = {"chosen": "Chosen queries", "spread": "A sample", "deepest": "Hardest queries"}
FIRST = ("chosen", "spread")  # groups in sight; the others are folded
MATCHED = "Under each answer, the words that matched and their shares of its score."
MOST_LETTERS = 24  # of a word that matched

Content = dict[str, Any]  # part of a file: a direction, a group, an example, an answer or a query


def section(runs: Sequence[RunFiles], limit: int | None = None) -> Html:
    """Builds the examples of all evaluators.

    Args:
      limit: maximum number of examples of each kind; None for all.
    """
    evaluators = sorted({name for run in runs for name in run.examples})
    if not evaluators:
        missing = "No examples yet. The end of a run and `big-retrieval evaluate` write them."
        return tag("p", missing, class_="empty")
    if limit == 0:
        return tag("p", "No examples: they would make the page too large.", class_="empty")
    note = None
    if limit is not None:
        note = tag("p", f"At most {limit} of each kind, to keep the page small.", class_="note")
    first, *others = (
        (name, _evaluator(name, [run.examples.get(name, {}) for run in runs], limit))
        for name in evaluators
    )
    folded = (tag("details", tag("summary", tag("bdi", name)), part) for name, part in others)
    return tag("div", note, first[1], folded)


def _evaluator(name: str, files: Sequence[Content], limit: int | None) -> Html:
    steps = {file["step"] for file in files if file}
    step = tag("span", f"step {number(steps.pop())}", class_="note") if len(steps) == 1 else None
    parts = [tag("h3", tag("bdi", name), step)]
    if has_matched(files):
        parts.append(tag("p", MATCHED, class_="note"))
    directions = [{d["name"]: d for d in file.get("directions", ())} for file in files]
    names = dict.fromkeys(direction for known in directions for direction in known)
    if not names:
        parts += [confusions(files), histograms(files), *_groups(files, limit)]
    for direction in names:
        sides = [known.get(direction, {}) for known in directions]
        parts.append(tag("h4", way(direction), tag("span", _counts(sides), class_="note")))
        parts += _groups(sides, limit)
    return tag("div", parts, attributions.section(files, limit), class_="block")


def _counts(sides: Sequence[Content]) -> str:
    side = next(filter(None, sides))
    failed = "; ".join(
        f"{'' if len(sides) == 1 else 'AB'[i] + ': '}{number(d['failed'])} queries without a right "
        "answer at rank 1"
        for i, d in enumerate(sides)
        if d
    )
    return f"{number(side['queries'])} queries against {number(side['answers'])}, {failed}"


def _groups(sides: Sequence[Content], limit: int | None) -> list[Html]:
    """Builds the groups of one direction, of both runs at once."""
    known = [{group["name"]: group for group in side.get("groups", ())} for side in sides]
    by_query = [
        {_key(example): example for group in groups.values() for example in group["examples"]}
        for groups in known
    ]
    out = []
    for name, head in HEADS.items():
        groups = [of_run[name] for of_run in known if name in of_run]
        if not groups:
            continue
        queries = dict.fromkeys(_key(x) for group in groups for x in group["examples"])
        shown = [*queries][:limit]
        body = [_example(key, by_query) for key in shown] or tag("p", "None.", class_="empty")
        content = tag("p", groups[0]["how"], class_="note"), body
        if name in FIRST:
            out.append(tag("div", tag("h5", head), content, class_="group"))
        else:
            summary = tag("summary", f"{head} ({number(len(shown))})")
            out.append(tag("details", summary, content, class_="group"))
    return out


def _key(example: Content) -> tuple[Any, ...]:
    """Returns what identifies a query in both runs: its index and its content."""
    query = example["query"]
    return example["place"], query.get("text"), query.get("picture")


def _example(key: tuple[Any, ...], by_query: Sequence[dict[tuple[Any, ...], Content]]) -> Html:
    """Builds a query with the answers of each run."""
    found = [by_key[key] for by_key in by_query if key in by_key]
    query, blocks = found[0]["query"], []
    for i, by_key in enumerate(by_query):
        mark = chip(i) if len(by_query) == 2 else None
        if key in by_key:
            facts = tag("p", mark, _facts(by_key[key]), class_="facts")
            blocks.append(tag("div", facts, _answers(by_key[key])))
        else:
            blocks.append(tag("p", mark, "not among the examples of this run", class_="facts"))
    columns = len(found) == 2 and not any(map(_has_pictures, found))
    return tag(
        "article",
        tag("div", _item(query, "query"), class_="query"),
        tag("div", blocks, class_="found two" if columns else "found"),
        class_="example seen" if "picture" in query else "example",
    )


def _has_pictures(example: Content) -> bool:
    return any("picture" in answer for answer in example["answers"])


def _facts(example: Content) -> str:
    if "metrics" in example:
        return _graded_facts(example)
    facts, answers = [_first_right(example)], example["answers"]
    if (count := example.get("right_answers", 1)) > 1:
        facts.append(f"{number(count)} right answers")
    best = next((a for a in answers if a["right"]), example.get("right", {}))
    if answers and not answers[0]["right"]:
        scores = answers[0]["score"], best.get("score")
        if is_number(scores[0]) and is_number(scores[1]):
            facts.append(f"a wrong one leads by {number(float(scores[0]) - float(scores[1]), 3)}")
    return " · ".join(facts)


def _first_right(example: Content) -> str:
    rank = example["rank"]
    return "right answer at rank 1" if rank == 1 else f"first right answer at rank {number(rank)}"


def _graded_facts(example: Content) -> str:
    """Formats the facts of a query whose documents have relevance."""
    sums = " of ".join(_relevance(example[key]) for key in ("sum", "best_sum"))
    return " · ".join(
        [
            *(f"{name} {number(value, 3)}" for name, value in example["metrics"].items()),
            f"relevance of the first {number(example['summed'])} adds up to {sums}",
            _first_right(example) if example["rank"] else "no relevant document was found",
            f"{number(example['right_answers'])} relevant documents",
        ]
    )


def _relevance(value: float) -> str:
    """Formats a relevance or a sum of them: whole numbers without decimals."""
    return number(int(value) if float(value).is_integer() else value, 4)


def _answers(example: Content) -> Html:
    items, last = [], 0
    for _, same in itertools.groupby(example["answers"], _content):
        answer, *others = same  # records that hold the same are one answer
        first, last = last + 1, last + 1 + len(others)
        items.append(_answer(answer, f"{first}–{last}" if others else str(first)))
    if "right" in example:
        items.append(_answer(example["right"], number(example["rank"]), apart=True))
    return tag("ol", items, class_="tiles" if _has_pictures(example) else "lines")


def _content(answer: Content) -> tuple[Any, ...]:
    """Returns what makes two answers the same to a reader."""
    return tuple(answer.get(key) for key in ("text", "picture", "right", "relevance", "score"))


def _answer(answer: Content, rank: str, *, apart: bool = False) -> Html:
    right, relevance, score = answer["right"], answer.get("relevance"), answer["score"]
    verdict = "✓ right" if right else "✗ wrong"
    if relevance is not None:
        verdict = f"✓ relevance {_relevance(relevance)}" if right else "✗ not relevant"
    wide = " wide" if relevance is not None and "picture" in answer else ""
    return tag(
        "li",
        tag("span", rank, class_="place"),
        tag("span", verdict, class_="mark"),
        tag("span", "NaN" if score is None else number(float(score)), class_="score"),
        _item(answer, f"answer {rank}, {'right' if right else 'wrong'}"),
        matched(answer.get("matched", ())),
        class_=f"{'right' if right else 'wrong'}{' apart' if apart else ''}{wide}",
    )


def _item(item: Content, role: str) -> Html:
    """Builds a picture or a text."""
    if "picture" not in item:
        return _words(item)
    name = f"record {number(item['record'])}"
    if "id" in item:
        name += f" ({item['id']})"
    if "size" in item:
        name += ", {} × {} pixels".format(*map(number, item["size"]))
    image = tag("img", src=item["picture"], alt=f"{role}: {name}", title=name)
    return tag("span", image, _words(item), class_="both") if item.get("text") else image


def _words(item: Content) -> Html:
    """Builds a text, with its length if the file has only its beginning."""
    words, cut = item["text"], item.get("characters")
    more = tag("span", f" … ({number(cut)} characters)", class_="note") if cut else None
    empty = tag("span", "(an empty text)", class_="note") if not words.strip() else None
    return tag("span", tag("bdi", words), more, empty, class_="words", dir="auto")


def has_matched(value: Any) -> bool:
    """Returns True if an evaluator's examples have words that matched."""
    if isinstance(value, dict):
        return bool(value.get("matched")) or any(has_matched(part) for part in value.values())
    return isinstance(value, list) and any(has_matched(part) for part in value)


def matched(words: Sequence[Sequence[Any]]) -> Html | None:
    """Builds words with bars from (word, share of the score); None for no words."""
    if not words:
        return None
    bars = (
        tag(
            "span",
            tag("bdi", word[:MOST_LETTERS]),
            tag("small", f"{100 * share:.0f}%"),
            class_="bar",
            style=f"--s: {100 * min(max(share, 0.0), 1.0):.1f}%",
        )
        for word, share in words
    )
    return tag("span", bars, class_="matched", title="words that matched, share of the score")
