"""The table of several folders: seeds, evaluations, patterns, names, rejected folders."""

import json
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.errors import UserError
from big_retrieval.report.table import markdown_table, row_of
from tests.report.test_report_command import report

NDCG, RECALL = "ranking/a/nDCG@10", "ranking/a/R@10"


def write(folder: Path, name: str = "results.json", **metrics: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({NDCG: 0.5, RECALL: 0.25, "loss": 1.5, **metrics}))
    return folder


def cells(text: str) -> list[list[str]]:
    """The rows of a Markdown table, without the rule."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for i, row in enumerate(rows) if i != 1]


def test_table_of_seeds_runs_and_evaluations(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep" / "multi-inverse"
    for seed, value in ((2, 0.6), (0, 0.5), (10, 0.7)):
        write(sweep / f"seed_{seed}", **{NDCG: value})
    (sweep / "seed_3").mkdir()  # not finished yet
    (sweep / "logs").mkdir()
    run = write(tmp_path / "run", **{NDCG: 0.4})
    write(tmp_path / "run", "evaluation.json", **{NDCG: 0.9, "checkpoint": "4"})
    words = write(tmp_path / "bm25", "evaluation.json", **{NDCG: 0.3, "checkpoint": "BM25"})
    text = markdown_table([sweep, run, words], ["*/nDCG@*", "*R@10"])
    assert cells(text) == [
        ["run", "seeds", NDCG, RECALL],
        ["multi-inverse", "3 of 4", "0.6 ± 0.1", "25.00 ± 0.00"],
        ["run", "1", "0.4", "25.00"],  # results.json counts first
        ["bm25", "1", "0.3", "25.00"],
    ]
    assert "Mean ± sample standard deviation" in text


def test_table_of_missing_metrics(tmp_path: Path) -> None:
    first = write(tmp_path / "first", **{"retrieval/b/image_to_text/R@1": 0.5})
    second = write(tmp_path / "second", step=3)
    text = markdown_table([first, second])
    assert cells(text) == [
        ["run", "seeds", "b/image_to_text/R@1", RECALL, NDCG],
        ["first", "1", "50.00", "25.00", "0.5"],
        ["second", "1", "–", "25.00", "0.5"],
    ]
    assert "has a metric like" not in text
    assert "has a metric like `x/*`" in markdown_table([first], ["loss", "x/*"])
    with pytest.raises(UserError, match=r"metric like x/\*.* have loss, ranking/a/R@10"):
        markdown_table([first], ["x/*"])


def test_markdown_table_gives_rows_distinct_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [write(tmp_path / parent / "run") for parent in ("a", "b|c")]
    assert [row[0] for row in cells(markdown_table(folders, ["loss"]).replace("\\|", "/"))] == [
        "run", "a/run", "b/c/run",
    ]  # fmt: skip
    monkeypatch.chdir(folders[0])
    assert cells(markdown_table([Path()], ["loss"]))[1][0] == "run"


def test_row_of_rejects_missing_metrics_and_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "seed_0").mkdir()
    for folder in (tmp_path, tmp_path / "nope"):
        with pytest.raises(UserError, match=f"No metrics in {folder}"):
            row_of(folder, "x")
    for content in ("[1]", "{", "[" * 9999):
        (tmp_path / "evaluation.json").write_text(content)
        with pytest.raises(UserError, match=rf"Cannot read {tmp_path}/evaluation\.json"):
            row_of(tmp_path, "x")


def test_table_command_prints_table_and_rejects_flags(tmp_path: Path) -> None:
    folders = [write(tmp_path / name) for name in "abc"]
    status, text = report("--table", "--metrics=*nDCG@10,loss", *folders)
    assert (status, text) == (0, markdown_table(folders, ["*nDCG@10", "loss"]))
    for args, words in (
        (["--table"], "folders are missing"),
        (["--table", folders[0], "--out=x"], "--out is for a page"),
        ([folders[0], "--metrics=loss"], "--metrics needs --table"),
    ):
        status, text = report(*args)
        assert (status, len(text.splitlines()), words in text) == (2, 1, True), text
