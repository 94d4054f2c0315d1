"""Tables of a sweep."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from big_retrieval.sweep import Entry, Sweep, runner, spec, table
from tests.helpers import user_error
from tests.sweep.stubs import QUICK, Stubs, csv_rows, fill

WRITER = """
import sys
from pathlib import Path
from tests.sweep.stubs import Stubs, fill
stubs = Stubs(Path(sys.argv[1]), "finish", seeds=20)
for run in stubs.runs[int(sys.argv[2])::4]:
    fill(run, loss=1.0)
    stubs.tables()
"""


def cells(text: str) -> list[list[str]]:
    """Cells of the rows of a Markdown table, without its head."""
    rows = text.replace("\\|", "/").splitlines()[2:]
    return [[x.strip() for x in row.strip("|").split("|")] for row in rows if row[:1] == "|"]


def test_tables_have_means_and_deviations(tmp_path: Path) -> None:
    metrics = ("retrieval/t/R@*", "loss", "nothing/*")
    entries = [Entry("a", "x.py", {"batch_size": 8}), Entry("b", "x.py:c|d"), Entry("d", "x.py")]
    sweep = Sweep(runs=entries, seeds=(0, 1, 2), metrics=metrics)
    runs = spec.runs_of(sweep, tmp_path)
    rng = np.random.default_rng(0)
    recalls, losses = rng.random(3), rng.random(3)
    for run, recall, loss in zip(runs[:3], recalls, losses, strict=True):
        fill(run, **{"retrieval/t/R@10": recall, "retrieval/t/R@5": 1.0, "loss": loss, "sha": "x"})
    fill(runs[3], **{"loss": 2.5})
    fill(runs[4], **{"retrieval/t/R@5": 0.5, "loss": 2.5})
    text = table.write_tables(sweep, runs, tmp_path, "title")
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert lines[0] == "# title"
    assert [x.strip() for x in lines[2].strip("|").split("|")] == [
        "run", "seeds", "t/R@5", "t/R@10", "loss",
    ]  # fmt: skip
    mean, deviation = 100 * np.mean(recalls), 100 * np.std(recalls, ddof=1)
    loss = f"{np.mean(losses):.4g} ± {np.std(losses, ddof=1):.4g}"
    assert cells(text) == [
        ["a", "3", "100.00 ± 0.00", f"{mean:.2f} ± {deviation:.2f}", loss],
        ["b", "2 of 3", "50.00 (1 of 2)", "–", "2.5 ± 0"],
        ["d", "0 of 3", "–", "–", "–"],
    ]
    assert len({len(line) for line in lines[2:7]}) == 1
    assert "only k of the n finished runs" in text
    assert "No finished run has a metric like `nothing/*`." in text
    assert any("`batch_size=8`" in line for line in lines)
    assert any("`x.py:c\\|d`" in line for line in lines)
    rows = csv_rows(tmp_path)
    expected = [("a", "0"), ("a", "1"), ("a", "2"), ("b", "0"), ("b", "1")]
    assert [(row["name"], row["seed"]) for row in rows] == expected
    assert [float(row["retrieval/t/R@10"]) for row in rows[:3]] == list(recalls)
    assert rows[3]["retrieval/t/R@10"] == ""
    assert rows[0]["sha"] == "x"


def test_tables_have_numbers_of_paper(tmp_path: Path) -> None:
    columns = ("retrieval/t/R@1", "ranking/b/nDCG@10")
    paper = spec.published(columns, {"a": "47.4 0.337", "b": "- 0.5"})
    assert paper == {"a": dict(zip(columns, (47.4, 0.337), strict=True)), "b": {columns[1]: 0.5}}
    assert spec.published(columns[1:], {"a": "48.8"}, unit=0.01)["a"][columns[1]] == 48.8 * 0.01
    with user_error("a has 1 numbers for 2 columns"):
        spec.published(columns, {"a": "1"})
    entries = [Entry(name, QUICK) for name in "abc"]
    sweep = Sweep(runs=entries, metrics=("retrieval/*", "ranking/*"), paper=paper)
    runs = spec.runs_of(sweep, tmp_path)
    text = table.write_tables(sweep, runs, tmp_path, "title")
    assert "ours / paper" in text
    assert cells(text)[:3] == [
        ["a", "0 of 1", "– / 47.4", "– / 0.337"],
        ["b", "0 of 1", "– / –", "– / 0.5"],
        ["c", "0 of 1", "–", "–"],
    ]
    fill(runs[0], **dict(zip(columns, (0.5, 0.25), strict=True)))
    text = table.write_tables(sweep, runs, tmp_path, "title")
    assert cells(text)[0] == ["a", "1", "50.00 / 47.4", "0.25 / 0.337"]


def test_tables_have_rows_of_evaluations_during_runs(tmp_path: Path) -> None:
    name = "retrieval/t/R@1"
    sweep = Sweep(
        runs=[Entry("a", QUICK), Entry("b", QUICK)], seeds=range(2), metrics=("retrieval/*",),
        paper={"a@2": {name: 40.0}}, evaluations={"a": (1, 2)},
    )  # fmt: skip
    runs = spec.runs_of(sweep, tmp_path)
    for run in runs[:2]:
        fill(run, **{name: 0.5})
        steps = {0: 0.1, 8: 0.2, 16: 0.3 + run.seed / 10}
        rows = [{"step": step, name: value} for step, value in steps.items()]
        rows[1:1] = [{"step": 4, "loss": 1.0}, rows[1]]  # as after a restart
        (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cells(table.write_tables(sweep, runs, tmp_path, "title"))[:4] == [
        ["a", "2", "50.00 ± 0.00"],
        ["a@1", "2", "20.00 ± 0.00"],
        ["a@2", "2", "35.00 ± 7.07 / 40"],
        ["b", "0 of 2", "–"],
    ]


def test_damaged_results_end_sweep_before_first_run(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path, "finish", "finish")
    fill(stubs.runs[1])
    (stubs.runs[1].folder / "results.json").write_text('{"loss": 1.')
    for runs in (stubs.runs, stubs.runs[:1]):
        with user_error("1-finish/seed_0/results.json is damaged"):
            runner.run_all(runs, stubs.tables)
    assert not stubs.runs[0].folder.exists()


def test_simultaneous_writers_lose_no_run(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(i)]) for i in range(4)
    ]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert [int(row["seed"]) for row in csv_rows(tmp_path)] == list(range(20))
    assert "| 0-finish |    20 |" in (tmp_path / "results.md").read_text()
    assert not list(tmp_path.glob("*.partial"))
