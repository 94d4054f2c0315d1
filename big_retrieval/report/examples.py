"""Examples of retrieval and classification: queries and their best answers, with relevance."""

import itertools
from collections.abc import Sequence
from typing import Any

from big_retrieval.report import attributions
from big_retrieval.report.confusion import confusions
from big_retrieval.report.curves import direction_words
from big_retrieval.report.histogram import histograms
from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import is_number, number
from big_retrieval.report.read import RunFiles
from big_retrieval.report.results import chip

HEADS = {"chosen": "Chosen queries", "spread": "A sample", "deepest": "Hardest queries"}
FIRST = ("chosen", "spread")  # unfolded groups
MATCHED = "Under each answer, the words that matched and their shares of its score."
MOST_LETTERS = 24  # of a word that matched

Content = dict[str, Any]  # a direction, a group, an example, an answer or a query of a file


def examples_section(runs: Sequence[RunFiles], limit: int | None = None) -> Html:
    """Builds at most `limit` examples of each kind, of all evaluators."""
    evaluators = sorted({name for run in runs for name in run.examples})
    if not evaluators:
        missing = "No examples yet. The end of a run and `big-retrieval evaluate` write them."
        return tag("p", missing, class_="empty")
    if limit == 0:
        return tag("p", "No examples: they would make the page too large.", class_="empty")
    note = None
    if limit is not None:
        note = tag("p", f"At most {limit} of each kind, to keep the page small.", class_="note")
    first, *more = (
        (name, _evaluator(name, [run.examples.get(name, {}) for run in runs], limit))
        for name in evaluators
    )
    folded = (tag("details", tag("summary", tag("bdi", name)), content) for name, content in more)
    return tag("div", note, first[1], folded)


def _evaluator(name: str, files: Sequence[Content], limit: int | None) -> Html:
    steps = {file["step"] for file in files if file}
    step = tag("span", f"step {number(steps.pop())}", class_="note") if len(steps) == 1 else None
    parts = [tag("h3", tag("bdi", name), step)]
    if has_matched(files):
        parts.append(tag("p", MATCHED, class_="note"))
    by_name = [{d["name"]: d for d in file.get("directions", ())} for file in files]
    names = dict.fromkeys(name for directions in by_name for name in directions)
    if not names:
        parts += [confusions(files), histograms(files), *_groups(files, limit)]
    for name in names:
        sides = [directions.get(name, {}) for directions in by_name]
        note = tag("span", _counts(sides), class_="note")
        parts += [tag("h4", direction_words(name), note), *_groups(sides, limit)]
    return tag("div", parts, attributions.attributions_section(files, limit), class_="block")


def _counts(sides: Sequence[Content]) -> str:
    side = next(filter(None, sides))
    marks = ("",) if len(sides) == 1 else ("A: ", "B: ")
    failed = "; ".join(
        f"{mark}{number(d['failed'])} queries without a right answer at rank 1"
        for mark, d in zip(marks, sides, strict=True)
        if d
    )
    return f"{number(side['queries'])} queries against {number(side['answers'])}, {failed}"


def _groups(sides: Sequence[Content], limit: int | None) -> list[Html]:
    """Builds the groups of one direction, of both runs."""
    by_name = [{group["name"]: group for group in side.get("groups", ())} for side in sides]
    by_query = [
        {_key(example): example for group in groups.values() for example in group["examples"]}
        for groups in by_name
    ]
    out = []
    for name, head in HEADS.items():
        groups = [of_run[name] for of_run in by_name if name in of_run]
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
    """Returns the index and content of a query, which are equal in both runs."""
    query = example["query"]
    return example["place"], query.get("text"), query.get("picture")


def _example(key: tuple[Any, ...], by_query: Sequence[dict[tuple[Any, ...], Content]]) -> Html:
    """Builds a query with the answers of each run."""
    examples = [by_key.get(key) for by_key in by_query]
    present = [example for example in examples if example]
    query, blocks = present[0]["query"], []
    for i, example in enumerate(examples):
        mark = chip(i) if len(examples) == 2 else None
        if example:
            facts = tag("p", mark, _facts(example), class_="facts")
            blocks.append(tag("div", facts, _answer_list(example)))
        else:
            blocks.append(tag("p", mark, "not among the examples of this run", class_="facts"))
    columns = len(present) == 2 and not any(map(_has_pictures, present))
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
    if answers and not answers[0]["right"]:
        best = next((a for a in answers if a["right"]), example.get("right", {}))
        first, second = answers[0]["score"], best.get("score")
        if is_number(first) and is_number(second):
            facts.append(f"a wrong one leads by {number(float(first) - float(second), 3)}")
    return " · ".join(facts)


def _first_right(example: Content) -> str:
    rank = example["rank"]
    return "right answer at rank 1" if rank == 1 else f"first right answer at rank {number(rank)}"


def _graded_facts(example: Content) -> str:
    """Formats the facts of a query whose documents have relevance."""
    sums = " of ".join(_relevance(example[key]) for key in ("sum", "best_sum"))
    facts = [f"{name} {number(value, 3)}" for name, value in example["metrics"].items()]
    facts.append(f"relevance of the first {number(example['summed'])} adds up to {sums}")
    facts.append(_first_right(example) if example["rank"] else "no relevant document was found")
    return " · ".join([*facts, f"{number(example['right_answers'])} relevant documents"])


def _relevance(value: float) -> str:
    """Formats a relevance, or a sum: integers without decimals."""
    return number(int(value) if float(value).is_integer() else value, 4)


def _answer_list(example: Content) -> Html:
    tiles, last = [], 0
    for _, group in itertools.groupby(example["answers"], _visible):
        answer, *duplicates = group  # records with the same contents are one answer
        first, last = last + 1, last + 1 + len(duplicates)
        tiles.append(_answer(answer, f"{first}–{last}" if duplicates else str(first)))
    if "right" in example:
        tiles.append(_answer(example["right"], number(example["rank"]), " apart"))
    return tag("ol", tiles, class_="tiles" if _has_pictures(example) else "lines")


def _visible(answer: Content) -> tuple[Any, ...]:
    return tuple(answer.get(key) for key in ("text", "picture", "right", "relevance", "score"))


def _answer(answer: Content, rank: str, look: str = "") -> Html:
    relevance, score = answer.get("relevance"), answer["score"]
    style, verdict = ("right", "✓ right") if answer["right"] else ("wrong", "✗ wrong")
    if relevance is not None:
        verdict = f"✓ relevance {_relevance(relevance)}" if answer["right"] else "✗ not relevant"
        look += " wide" if "picture" in answer else ""
    return tag(
        "li",
        tag("span", rank, class_="place"),
        tag("span", verdict, class_="mark"),
        tag("span", "NaN" if score is None else number(float(score)), class_="score"),
        _item(answer, f"answer {rank}, {style}"),
        matched(answer.get("matched", ())),
        class_=f"{style}{look}",
    )


def _item(content: Content, role: str) -> Html:
    """Builds a picture or a text."""
    if "picture" not in content:
        return _words(content)
    name = f"record {number(content['record'])}"
    if "id" in content:
        name += f" ({content['id']})"
    if "size" in content:
        name += ", {} × {} pixels".format(*map(number, content["size"]))
    image = tag("img", src=content["picture"], alt=f"{role}: {name}", title=name)
    return tag("span", image, _words(content), class_="both") if content.get("text") else image


def _words(content: Content) -> Html:
    """Builds a text, with its length if the file has only its beginning."""
    text, cut = content["text"], content.get("characters")
    more = tag("span", f" … ({number(cut)} characters)", class_="note") if cut else None
    empty = tag("span", "(an empty text)", class_="note") if not text.strip() else None
    return tag("span", tag("bdi", text), more, empty, class_="words", dir="auto")


def has_matched(value: Any) -> bool:
    """Returns True if an evaluator's examples have words that matched."""
    if isinstance(value, dict):
        return bool(value.get("matched")) or any(has_matched(child) for child in value.values())
    return isinstance(value, list) and any(has_matched(child) for child in value)


def matched(matches: Sequence[Sequence[Any]]) -> Html | None:
    """Builds words with bars from (word, share of the score); None without words."""
    if not matches:
        return None
    bars = (
        tag(
            "span",
            tag("bdi", word[:MOST_LETTERS]),
            tag("small", f"{100 * share:.0f}%"),
            class_="bar",
            style=f"--s: {100 * min(max(share, 0.0), 1.0):.1f}%",
        )
        for word, share in matches
    )
    return tag("span", bars, class_="matched", title="words that matched, share of the score")
