"""Sheets and their tally: what is written, what is read, and kappas of the literature."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import explain
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.errors import UserError
from big_retrieval.explain.agreement import cohen, fleiss
from big_retrieval.explain.sheet import TOP, SheetOptions, write
from big_retrieval.explain.tally import tally
from big_retrieval.inference.load import TrainedModel
from tests.explain.conftest import make

COUNT = 4
# Fleiss (1971) as on Wikipedia: 10 subjects, 14 raters, 5 categories.
FLEISS = """
0 0 0 0 14
0 2 6 4 2
0 0 3 5 6
0 3 9 2 0
2 2 8 1 1
7 7 0 0 0
3 2 6 3 0
2 5 3 2 2
6 5 2 1 0
0 2 2 3 7
"""


def test_fleiss_kappa_of_the_textbook() -> None:
    counts = [list(map(int, line.split())) for line in FLEISS.split("\n") if line]
    answers = np.array([np.repeat(np.arange(5), row) for row in counts])  # [units, raters]
    assert fleiss(answers) == pytest.approx(0.210, abs=5e-4)


def test_cohen_kappa_of_the_textbook() -> None:
    first = np.repeat([1, 1, 0, 0], [20, 5, 10, 15])
    second = np.repeat([1, 0, 1, 0], [20, 5, 10, 15])
    assert cohen(first, second) == pytest.approx(0.4)
    assert cohen(first, first) == 1
    assert cohen(np.ones(4), np.ones(4)) is None
    assert fleiss(np.ones((4, 3))) is None
    assert fleiss(np.ones((4, 1))) is None
    assert cohen(np.ones(0), np.ones(0)) is None


# ---- What is written


@pytest.fixture(scope="module")
def models(model: TrainedModel) -> dict[str, TrainedModel]:
    return {"runs/a": model, "runs/b": make(1)}


def sheet(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_a_sheet_leaves_damaged_records_out(
    models: dict[str, TrainedModel],
    some_damaged: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, key = write(models, SheetOptions(some_damaged, None, 4, 3, 1), tmp_path / "s.csv")
    codes = json.loads(key.read_text())["codes"].values()
    assert {each["record"] for each in codes} == {0, 1, 3}
    assert len(sheet(path)) == 3 * 2
    assert "left out: 1 of the records" in capsys.readouterr().err


def test_a_sheet_of_two_models(
    models: dict[str, TrainedModel], scenes: SceneRecords, tmp_path: Path
) -> None:
    options = SheetOptions("evals.test", None, COUNT, 3, 2)
    *paths, key = write(models, options, tmp_path / "s.csv")
    assert [p.name for p in paths] == ["s-1.csv", "s-2.csv"]
    codes = json.loads(key.read_text())["codes"]
    assert len(codes) == COUNT * 2
    both = [sheet(path) for path in paths]
    for rows in both:
        assert {row["code"] for row in rows} == codes.keys()
        items = [row["item"] for row in rows]
        assert items[::2] == items[1::2]  # the models of an item stand together
        assert len(set(items)) == COUNT
        for row in rows:
            about = codes[row["code"]]
            image = scenes[about["record"]]["image"]
            expected = explain.strongest(models[about["model"]], image, "image", TOP)
            assert {row[f"word_{i}"] for i in range(1, TOP + 1)} == {word for word, _ in expected}
            assert all(row[f"relevant_{i}"] == "" for i in range(1, TOP + 1))
            assert row["enough"] == row["best"] == ""
            assert (tmp_path / row["shown"]).is_file()
            assert "runs" not in str(row)
    assert both[0] != both[1]  # each rater has an order of their own
    again = tmp_path / "again"
    again.mkdir()
    write(models, options, again / "s.csv")
    assert (again / "s-2.csv").read_bytes() == paths[1].read_bytes()


def test_a_sheet_of_texts(model: TrainedModel, scenes: SceneRecords, tmp_path: Path) -> None:
    (path, key) = write(
        {"a": model}, SheetOptions("evals.test", "text", 3, 0, 1), tmp_path / "t.csv"
    )
    codes = json.loads(key.read_text())["codes"]
    for row in sheet(path):
        assert row["shown"] == scenes[codes[row["code"]]["record"]]["captions"][0]
        assert "best" not in row
    assert not list(tmp_path.glob("*_pictures"))


def test_mistakes_in_what_is_wanted(model: TrainedModel, tmp_path: Path) -> None:
    for options, words in (
        (SheetOptions("evals.test", None, 31, 0, 1), "has 30 records"),
        (SheetOptions("nowhere.csv", None, 3, 0, 1), "nowhere.csv.* is no file; .* evals.test"),
        (
            SheetOptions("evals.test", "title", 3, 0, 1),
            "'title' is none of the model's lexical fields",
        ),
    ):
        with pytest.raises(UserError, match=words):
            write({"a": model}, options, tmp_path / "s.csv")
    with pytest.raises(UserError, match="in no folder"):
        write({"a": model}, SheetOptions("evals.test", None, 3, 0, 1), tmp_path / "x" / "s.csv")


# ---- What is read

HEADER = ["code", "item", "shown", "word_1", "relevant_1", "word_2", "relevant_2", "enough", "best"]
KEY = {"codes": {f"{i:04d}": {"model": "AB"[i % 2], "item": i // 2} for i in range(4)}}


def filled(path: Path, *answers: str, separator: str = ",") -> Path:
    """A sheet of four rows, two of each item, with the cells of `answers` ("1 0 yes 1")."""
    lines = [separator.join(HEADER)]
    for i, cells in enumerate(answers):
        one, two, enough, best = (cell.strip("-") for cell in cells.split())
        row = [f"{i}", f"{i // 2}", "a, b" if separator == ";" else "a", "dog", one, "cat", two]
        lines.append(separator.join([*row, enough, best]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return path


def numbers(text: str, question: str) -> dict[str, str]:
    """Row name -> what stands behind it, of one question."""
    part = text.split(f"{question}:\n")[1].split("\n\n")[0]
    return {line[:12].strip(): line[12:].strip() for line in part.split("\n")}


def test_a_tally_of_two_raters(tmp_path: Path) -> None:
    first = filled(tmp_path / "ann.csv", "1 1 yes 1", "1 0 no -", "0 0 - -", "1 - y 1")
    second = filled(
        tmp_path / "bob.csv", "1 1 1 -", "0 0 1.0 x", "0 0 - -", "- 1 - -", separator=";"
    )
    key = tmp_path / "key.json"
    key.write_text(json.dumps(KEY))
    text = tally([first, second], key)
    relevant = numbers(text, "words are relevant")
    # ann: 1 1 1 0 0 0 1 = 4 of 7; bob: 1 1 0 0 0 0 1 = 3 of 7
    assert relevant["rater ann"] == "57.1%  (4 of 7)"
    assert relevant["rater bob"] == "42.9%  (3 of 7)"
    assert relevant["model A"] == "50.0%  (4 of 8)"
    assert relevant["model B"] == "50.0%  (3 of 6)"
    # In common: 1-1 1-1 1-0 0-0 0-0 0-0: 5 of 6; chance 1/2 * 1/3 + 1/2 * 2/3 = 1/2.
    assert "Cohen's kappa 0.667; all agree on 83.3% of 6" in text
    # One row of an item is the best, then the other is not; bob chose for one item alone.
    best = numbers(text, "described best")
    assert best["rater ann"] == "50.0%  (2 of 4)"
    assert best["rater bob"] == "50.0%  (1 of 2)"
    assert best["model A"] == "33.3%  (1 of 3)"
    assert "2 raters, 4 rows, 5 cells left empty" in text
    assert "model" not in tally([first, second])


def test_three_raters_have_fleiss_kappa(tmp_path: Path) -> None:
    rows = (
        ("1 0", "1 0", "0 0", "1 1"),
        ("1 0", "1 1", "0 0", "1 1"),
        ("1 0", "0 0", "0 0", "1 1"),
    )
    paths = [
        filled(tmp_path / f"{i}.csv", *(f"{cells} - -" for cells in row))
        for i, row in enumerate(rows)
    ]
    table = np.array([[int(x) for cells in row for x in cells.split()] for row in rows]).T
    assert f"Fleiss' kappa {fleiss(table):.3f}; all agree on 75.0% of 8" in tally(paths)


def test_invalid_cells_are_named_together(tmp_path: Path) -> None:
    path = filled(tmp_path / "ann.csv", "1 maybe yes 1", "2 0 no 1", "0 0 - -", "1 - ? -")
    with pytest.raises(UserError) as found:
        tally([path])
    for words in (
        "ann.csv, row 0000: relevant_2 is 'maybe'", "row 0001: relevant_1 is '2'",
        "row 0003: enough is '?'", "item 0: best is chosen 2 times", "write 1 or 0",
    ):  # fmt: skip
        assert words in str(found.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b\n1,2\n", "is no sheet"),
        ("", "is no sheet"),
        (",".join(HEADER) + "\n0,0,a,dog,,cat,,,\n", "there is no rating"),
        (",".join(HEADER) + "\n0,0,a,dog,1,,,,\n0000,0,a,dog,1,,,,\n", "has the row 0000 twice"),
        (",".join(HEADER) + "\n0,0,a,dog,1,,1,,\n", "relevant_2 is '1' without a word"),
        (b"\xff\xfe\x00", "is not in UTF-8"),
    ],
)
def test_sheets_that_are_none(tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "s.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=words):
        tally([path])


def test_sheets_that_do_not_belong_together(tmp_path: Path) -> None:
    first = filled(tmp_path / "a.csv", "1 1 - -", "1 0 - -")
    with pytest.raises(UserError, match="the sheets are missing"):
        tally([])
    with pytest.raises(UserError, match="is given twice"):
        tally([first, first])
    with pytest.raises(UserError, match="have other rows"):
        tally([first, filled(tmp_path / "b.csv", "1 1 - -")])
    key = tmp_path / "k.json"
    with pytest.raises(UserError, match="cannot be read"):
        tally([first], key)
    key.write_text("[1]")
    with pytest.raises(UserError, match="is no key of a sheet"):
        tally([first], key)
    key.write_text('{"codes": {"0000": {"model": "a"}}}')
    with pytest.raises(UserError, match="the key knows no row 0001"):
        tally([first], key)
