"""What people wrote into sheets: shares by rater and model, and how far raters agree."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.explain.agreement import cohen, fleiss
from big_retrieval.explain.pictures import percent
from big_retrieval.explain.sheet import BEST, ENOUGH, RELEVANT, WORD, of_cell, read_key
from big_retrieval.io.regular import read_text
from big_retrieval.report.numbers import count_of

YES, NO = ("1", "1.0", "yes", "y", "true", "x"), ("0", "0.0", "no", "n", "false")
NAMED = 8  # cells of a message
QUESTIONS = {"relevant": "words are relevant", ENOUGH: "words are enough", BEST: "described best"}

Unit = tuple[str, str]  # code of a row, and the word or ""


@dataclass
class Sheet:
    """The ratings of one rater.

    Attributes:
      name: of the file.
      answers: question -> unit -> whether the answer is yes.
      items: code of each row -> its item.
      empty: cells that were left empty, of those that ask about something.
    """

    name: str
    answers: dict[str, dict[Unit, bool]]
    items: dict[str, str] = field(default_factory=dict)
    empty: int = 0


def tally(paths: Sequence[Path], key: Path | None = None) -> str:
    """Tables of shares, and kappas.

    Args:
      paths: filled sheets, one of each rater.
      key: says which model a row is of; None: models are not told apart.

    Raises:
      UserError: no file, one that is no sheet, cells that are neither yes nor no (the first ones
        are named), no rating at all, or a row that the key does not know.
    """
    if not paths:
        raise UserError("the sheets are missing: big-retrieval explain tally FILE ...")
    names = [path.resolve() for path in paths]
    if len(set(names)) < len(names):
        raise UserError("a sheet is given twice; give each rater's once.")
    wrong: list[str] = []
    sheets = [read(path, wrong) for path in paths]
    if wrong:
        more = f" and {len(wrong) - NAMED:,} more" if len(wrong) > NAMED else ""
        raise UserError(f"{'; '.join(wrong[:NAMED])}{more}: write 1 or 0, or leave the cell empty.")
    if not any(answers for sheet in sheets for answers in sheet.answers.values()):
        raise UserError(f"there is no rating in {', '.join(map(str, paths))}: fill the sheets in.")
    models = read_key(key) if key else {}
    _check_codes(sheets, models if key else None)
    return "\n".join(_lines(sheets, models))


def read(path: Path, wrong: list[str]) -> Sheet:
    """One filled sheet; commas or semicolons part its cells.

    Args:
      path: the CSV file.
      wrong: takes a few words for each cell that cannot be understood.

    Raises:
      UserError: it cannot be read, is no sheet, or has a row twice.
    """
    try:
        text = read_text(path, "utf-8-sig")
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not in UTF-8; save it as CSV in UTF-8.") from None
    head = text.partition("\n")[0]
    separator = max(",;\t", key=head.count)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    asked = [name for name in rows.fieldnames or () if name and name.startswith(RELEVANT)]
    if "code" not in (rows.fieldnames or ()) or not asked:
        raise UserError(f"{path} is no sheet: it lacks the columns code, {WORD}1, {RELEVANT}1, ...")
    sheet = Sheet(path.stem, {question: {} for question in QUESTIONS})
    for row in rows:
        if not (row["code"] or "").strip():
            continue  # an empty line
        code = row["code"].strip().zfill(4)  # spreadsheets drop leading zeros
        if code in sheet.items:
            raise UserError(f"{path} has the row {code} twice; keep one.")
        sheet.items[code] = (row.get("item") or code).strip()
        for question, unit, column, cell in _cells(row, code, asked):
            answer = _answer(cell)
            if answer is None:
                wrong.append(f"{path.name}, row {code}: {column} is {cell!r:.20}")
            elif unit is None and cell:
                wrong.append(f"{path.name}, row {code}: {column} is {cell!r:.20} without a word")
            elif unit is not None and cell:
                sheet.answers[question][unit] = answer
            elif unit is not None and question != BEST:
                sheet.empty += 1
    wrong += _settle_best(sheet, path)
    return sheet


def _cells(
    row: Mapping[str, str | None], code: str, asked: Sequence[str]
) -> Iterator[tuple[str, Unit | None, str, str]]:
    """(question, unit, column, cell) of a row; no unit where there is no word to rate."""
    for column in asked:
        word = of_cell(row.get(f"{WORD}{column.removeprefix(RELEVANT)}") or "")
        yield "relevant", (code, word) if word else None, column, (row[column] or "").strip()
    for column in (ENOUGH, BEST):
        if column in row:
            yield column, (code, ""), column, (row[column] or "").strip()


def _answer(cell: str) -> bool | None:
    """Yes or no; no for an empty cell, too; None: neither."""
    if cell.lower() in YES:
        return True
    return False if not cell or cell.lower() in NO else None


def _settle_best(sheet: Sheet, path: Path) -> list[str]:
    """One row of an item is the best, then the others are not; what is wrong with that."""
    answers, wrong = sheet.answers[BEST], []
    for item in dict.fromkeys(sheet.items.values()):
        units = [(code, "") for code, each in sheet.items.items() if each == item]
        chosen = [unit for unit in units if answers.get(unit)]
        if len(chosen) > 1:
            wrong.append(f"{path.name}, item {item}: {BEST} is chosen {len(chosen)} times")
        if chosen:
            answers |= {unit: unit in chosen for unit in units}
    return wrong


def _check_codes(sheets: Sequence[Sheet], models: Mapping[str, str] | None) -> None:
    for sheet in sheets:
        unknown = [code for code in sheet.items if models is not None and code not in models]
        if unknown:
            raise UserError(f"the key knows no row {unknown[0]} of {sheet.name}; give its own key.")
        if sheet.items.keys() != sheets[0].items.keys():
            raise UserError(
                f"{sheet.name} and {sheets[0].name} have other rows; give sheets of one kind."
            )


def _lines(sheets: Sequence[Sheet], models: Mapping[str, str]) -> Iterator[str]:
    """The report of all questions that were answered."""
    for question, said in QUESTIONS.items():
        found = [sheet.answers[question] for sheet in sheets]
        if not any(found):
            continue
        yield f"{said}:"
        groups = {f"rater {sheet.name}": [a] for sheet, a in zip(sheets, found, strict=True)}
        for model in dict.fromkeys(models.values()):
            own = [{u: v for u, v in a.items() if models[u[0]] == model} for a in found]
            groups[f"model {model}"] = own
        groups["all"] = found
        wide = max(map(len, groups))
        for name, parts in groups.items():
            values = [value for part in parts for value in part.values()]
            share = percent(float(np.mean(values))) if values else "–"
            yield f"  {name:<{wide}}  {share:>6}  ({sum(values):,} of {len(values):,})"
        yield from _agreement(found)
        yield ""
    empty = sum(sheet.empty for sheet in sheets)
    rows = count_of(len(sheets[0].items), "row")
    yield f"{count_of(len(sheets), 'rater')}, {rows}, {count_of(empty, 'cell')} left empty"


def _agreement(found: Sequence[Mapping[Unit, bool]]) -> Iterator[str]:
    """How far raters agree on what all of them answered."""
    if len(found) < 2:
        return
    common = [unit for unit in found[0] if all(unit in answers for answers in found)]
    table = np.array([[answers[unit] for answers in found] for unit in common], bool)  # [units, n]
    table = table.reshape(-1, len(found))
    name = "Cohen's kappa" if len(found) == 2 else "Fleiss' kappa"
    kappa = cohen(*table.T) if len(found) == 2 else fleiss(table)
    shown = "not defined, as all answers are the same" if kappa is None else f"{kappa:.3f}"
    if not common:
        shown = "not defined, as the raters answered nothing in common"
    same = float(np.mean(table.all(axis=1) | ~table.any(axis=1))) if common else 0.0
    told = f"; all agree on {percent(same)} of {len(common):,}" if common else ""
    yield f"  {name} {shown}{told}"
