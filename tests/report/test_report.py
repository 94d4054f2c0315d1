"""Reports of finished, partial and unusual runs: complete, well-formed, self-contained."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.errors import UserError
from big_retrieval.report import page
from big_retrieval.report.read import read_run
from tests.report import run_folders as folders

LONE = {"meta", "img", "br"}


class Checker(HTMLParser):
    """Checks that elements are closed in order, without scripts and external addresses."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.words: list[str] = []
        self.pictures = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "iframe", "object", "link", "form")
        values = dict(attrs)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name not in ("src", "href") or str(value).startswith(("data:image/", "#"))
        self.ids |= {str(values["id"])} if "id" in values else set()
        self.links |= {str(values["href"])[1:]} if "href" in values else set()
        self.pictures += tag == "img"
        if tag == "img":
            assert values["alt"]
        if tag not in LONE:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass  # elements of SVG, such as <path .../>

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)


def check(path: Path) -> Checker:
    """Checks and parses a page; the text is in `words`."""
    raw = path.read_bytes()
    text = raw.decode("utf-8")
    assert len(raw) <= page.MOST_BYTES
    assert "\x00" not in text
    assert not re.search(r"url\(|@import|https?:", text)
    for drawing in re.findall(r"<svg.*?</svg>", text):
        assert not re.search(r' (?:[xy][12]?|c[xy]|d)="[^"]*(?:nan|inf)', drawing)
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert checker.links <= checker.ids
    return checker


def text_of(path: Path) -> str:
    """All words of a page."""
    return " ".join(" ".join(check(path).words).split())


def test_page_of_an_ordinary_run(tmp_path: Path) -> None:
    run = folders.ordinary(tmp_path / "run")
    found = page.write_report(run)
    assert found == run / "report.html"
    checker, text = check(found), text_of(found)
    assert checker.ids == {
        "summary", "results", "curves", "examples", "data", "configuration", "environment",
    }  # fmt: skip
    assert checker.links == checker.ids
    assert checker.pictures == 3
    for words in (
        "Finished 40 steps.", "1 min 15 s", "image → text", "R@1, %", "84.0", "mean rank",
        "training loss", "learning rate", "✓ right", "✗ wrong", "a red circle", "a blue square",
        "first right answer at rank 7 · 2 right answers · a wrong one leads by 0.400",
        "rank 1", "(10,000 characters)", "Most frequent confusions", "class 0", "75.0", "3 of 4",
        "python -m big_retrieval.main", "2 × cpu, 2 processes", "Starts of run", "jax 0.10.2",
        "6.40 epochs of 100 records", "best retrieval/test/image_to_text/R@1 84.0% at step 40",
        "batch_size 16 256", "A sample", "Hardest queries",
        "pairs, 30", "all others, 870",
    ):  # fmt: skip
        assert words in text, words
    assert found.read_text().count("<svg") >= 8
    once = found.read_bytes()  # a pure function of the files
    assert page.write_report(run).read_bytes() == once
    assert page.write_report(run, out=tmp_path / "elsewhere.html").read_bytes() == once
    assert [path.name for path in run.iterdir() if "partial" in path.name] == []


def test_page_folds_long_parts_and_stacks_wide_tables(tmp_path: Path) -> None:
    run = folders.ordinary(tmp_path / "run", **{f"key_{i}": i for i in range(30)})
    second = {**folders.examples(), "evaluator": "retrieval/zweite"}
    (run / "examples" / "2.json").write_text(json.dumps(second))
    written = page.write_report(run).read_text()
    check(run / "report.html")
    for folded in ("<bdi>retrieval/zweite</bdi>", "Hardest queries (0)"):
        assert f"<summary>{folded}</summary>" in written, folded
    assert "<h5>A sample</h5>" in written
    assert re.search(r"<h3>Differences from the defaults</h3><details><summary>\d+ keys", written)
    wide, narrow = written.split("<h3><bdi>retrieval/test</bdi></h3>")[1].split("</table>")[:2]
    assert '<td class="n" data-head="R@1, %">84.0</td>' in wide
    assert "data-head" not in narrow


@pytest.mark.parametrize("group", ["removed", "optimizer"])
def test_page_of_a_run_of_another_version(tmp_path: Path, group: str) -> None:
    run = folders.ordinary(tmp_path / "run", **{group: {"averaging": {"type": "removed"}}})
    assert f"{group}.averaging.type removed" in text_of(page.write_report(run))


def test_headlines_start_with_the_search(tmp_path: Path) -> None:
    run = folders.ordinary(tmp_path / "run")
    config = folders.config(best_metric="retrieval/test/text_to_image/R@1")
    config["evals"]["test"] |= {"query": "text", "document": "image"}
    (run / "config.json").write_text(json.dumps(config))
    initial = {"step": 0, **folders.recalls(0.9)}  # better than the trained weights
    folders.write_rows(run / "metrics.jsonl", [initial, *folders.rows(40)])
    text = text_of(page.write_report(run))
    cards = text.split("Results")[1].split("Finished")[0]
    assert cards.index("text → image") < cards.index("image → text")
    assert "before training 94.5% 95% interval 71.5% to 91.7% (50 queries)" in cards
    assert "best retrieval/test/text_to_image/R@1 84.0% at step 40" in text


def test_page_of_two_runs(tmp_path: Path) -> None:
    first = folders.ordinary(tmp_path / "first")
    second = folders.ordinary(tmp_path / "second", shift=-0.02, batch_size=32)
    found = page.write_report(first, second)
    assert found == first / "report-vs-second.html"
    text = text_of(found)
    for words in (
        "A first B second", "B − A −2.1", "batch_size 16 32 256", "A R@1", "B R@1",
        "Differences between A and B", "Starts of second",
        # The query is shown once with the answers of both runs.
        "A first right answer at rank 7", "B first right answer at rank 7",
    ):  # fmt: skip
        assert words in text, words
    assert "not among the examples" not in text
    difference = text.split("Differences between A and B")[1].split("Differences from")[0]
    assert difference.split() == ["key", "A", "B", "batch_size", "16", "32"]


def test_page_of_runs_with_the_same_name_and_different_queries(tmp_path: Path) -> None:
    first = folders.ordinary(tmp_path / "a" / "run")
    second = folders.ordinary(tmp_path / "b" / "run")
    path = second / "examples" / "0.json"
    path.write_text(json.dumps(folders.examples("a green star")))
    text = text_of(page.write_report(first, second))
    assert "A a/run B b/run" in text
    assert text.count("not among the examples of this run") == 2
    assert "a green star" in text


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["No step has been logged yet.", "No evaluator has run yet.", "No examples yet"]),
        (
            {"metrics": folders.rows(17), "environment": folders.ENVIRONMENT},
            ["Not finished: step 17 of 40 is the last one logged.", "21.0", "last logged values"],
        ),
        (
            {"metrics": [{"step": 3, "loss": math.nan}]},
            ["no finite value", "not finite at 1 step(s), first at 3", "NaN"],
        ),
        (
            {"metrics": folders.rows(3), "nonfinite-4": {}},
            ["Ended at step 4: a number was not finite."],
        ),
    ],
)
def test_page_of_partial_runs(tmp_path: Path, files: dict[str, Any], words: list[str]) -> None:
    run = folders.write(tmp_path / "run", config=folders.config(), **files)
    text = text_of(page.write_report(run))
    for word in words:
        assert word in text, word


def test_read_run_rejects_damaged_files(tmp_path: Path) -> None:
    for name in ("results.json", "environment.json", "examples/0.json"):
        run = folders.ordinary(tmp_path / name)
        (run / name).write_bytes(b'{"a": [' * 100_000)
        with pytest.raises(UserError, match=rf"Cannot read \S*{name}"):
            page.write_report(run)
    run = folders.ordinary(tmp_path / "run")
    content = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(content[:-30])  # a kill cut the last line
    assert "Finished 40 steps" in text_of(page.write_report(run))
    (run / "metrics.jsonl").write_bytes(content[10:])
    with pytest.raises(UserError, match=r"Cannot read \S*metrics\.jsonl"):
        page.write_report(run)


def test_damaged_records_are_counted_and_listed(tmp_path: Path) -> None:
    run = folders.ordinary(tmp_path / "run")
    for index, (name, count) in enumerate((("damaged", 15), ("damaged_1", 18))):
        rows = [{"record": i, "place": f"{index}-{i}.jpg", "why": "cut"} for i in range(count)]
        folders.write_rows(run / f"{name}.jsonl", rows)
    text = text_of(page.write_report(run))
    assert "damaged records 33" in text
    assert "Damaged records of run , the first 20" in text.replace("run,", "run ,")
    assert "1-4.jpg" in text
    assert "1-5.jpg" not in text


def test_ugly_names_texts_and_numbers(tmp_path: Path) -> None:
    ugly = folders.write_odd_run(
        tmp_path / folders.ATTACK.replace("/", "|").replace("\x00", "")[:30]
    )
    found = page.write_report(ugly)
    text = text_of(found)
    assert '<script>alert("x")</script>&amp;' in text  # escaped
    assert "\ud800" not in text
    for words in ("more charts", "1,988 more classes", "metric 249", "שלום", "👩‍👩‍👧‍👦"):
        assert words in text, words
    check(page.write_report(ugly, folders.ordinary(tmp_path / "run"), tmp_path / "both.html"))


def test_equal_answers_are_shown_once(tmp_path: Path) -> None:
    run, shown = folders.ordinary(tmp_path / "run"), folders.examples()
    answers = shown["directions"][0]["groups"][0]["examples"][0]["answers"]
    answers[:0] = [answers[0]] * 2  # a negative three times, then a positive
    (run / "examples" / "0.json").write_text(json.dumps(shown))
    places = re.findall(r'class="place">([^<]+)<', page.write_report(run).read_text())
    assert places[:3] == ["1–3", "4", "7"]


def test_large_page_shows_fewer_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = folders.ordinary(tmp_path / "run")
    shown = folders.examples()
    for direction in shown["directions"]:
        group = direction["groups"][0]
        group["examples"] = [{**group["examples"][0], "place": i} for i in range(40)]
    (run / "examples" / "0.json").write_text(json.dumps(shown))
    pictures = check(page.write_report(run)).pictures
    monkeypatch.setattr(page, "MOST_BYTES", (run / "report.html").stat().st_size - 1)
    found = page.write_report(run)
    assert check(found).pictures == 3 * 3 < pictures
    assert "At most 3 of each kind" in text_of(found)
    monkeypatch.setattr(page, "MOST_BYTES", 1)
    assert "would make the page too large" in page.write_report(run).read_text()


def test_write_rejects_other_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "file", "empty"):
        with pytest.raises(UserError, match=f"Not a run folder: .*{name}"):
            page.write_report(tmp_path / name)
    assert list((tmp_path / "empty").iterdir()) == []


def test_last_value_of_a_step_counts(tmp_path: Path) -> None:
    run = folders.write(
        tmp_path / "run",
        config=folders.config(),
        metrics=[{"step": 2, "loss": 1.0}, {"step": 1, "loss": 2.0}, {"step": 2, "x": True}],
    )
    read = read_run(run)
    assert read.series == {"loss": [(1, 2.0), (2, 1.0)]}
    assert read.final == {"loss": 1.0}


def graded(best: float) -> dict[str, Any]:
    """Examples of one query; the documents have relevance."""
    answers = [
        {**folders.answer("wine glass", 0.9, True), "relevance": best, "picture": folders.PICTURE},
        {**folders.answer("ox", 0.8, False), "relevance": 0.0},
    ]
    example = {
        "place": 7, "query": {"record": 7, "text": "booze glass"}, "rank": 1, "right_answers": 12,
        "metrics": {"nDCG@10": 0.875, "ERR": 0.5}, "sum": best, "best_sum": 900.0, "summed": 10,
        "answers": answers,
    }  # fmt: skip
    way = {
        "name": "query_to_document", "query": "query", "answer": "document", "queries": 52,
        "answers": 754, "failed": 5,
        "groups": [{"name": "spread", "how": "evenly.", "examples": [example]}],
    }  # fmt: skip
    return {"evaluator": "ranking/dev", "step": 40, "type": "ranking", "directions": [way]}


def test_examples_with_relevance_of_two_runs(tmp_path: Path) -> None:
    runs = [folders.ordinary(tmp_path / name) for name in ("first", "second")]
    for run, best in zip(runs, (92.0, 45.5), strict=True):
        (run / "examples" / "0.json").write_text(json.dumps(graded(best)))
    found = page.write_report(*runs)
    checker, text = check(found), text_of(found)
    for words in (
        "A nDCG@10 0.875 · ERR 0.500 · relevance of the first 10 adds up to 92 of 900",
        "B nDCG@10 0.875 · ERR 0.500 · relevance of the first 10 adds up to 45.50 of 900",
        "12 relevant documents",
        "✓ relevance 92", "✓ relevance 45.50", "✗ not relevant", "wine glass",
    ):  # fmt: skip
        assert words in text, words
    assert checker.pictures >= 2
    assert text.count("booze glass") == 1  # the query is shown once
