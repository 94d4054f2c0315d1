"""The report from the command line, from a run's end, and from another evaluation."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from big_retrieval.config import Retrieval, Scenes, ZeroShot, recipe
from big_retrieval.report import page
from big_retrieval.report.read import read_run
from big_retrieval.train.loop import train
from tests.helpers import ROOT, command, environment, in_process, tiny
from tests.report import run_folders as folders

pytestmark = pytest.mark.usefixtures("one_model")

FILES = {"retrieval-test.json", "zeroshot-colours.json"}


def report(*args: object) -> tuple[int, str]:
    """Status and output of the command."""
    done = in_process("report", *args)
    text = done.stdout + done.stderr
    assert "Traceback" not in text
    return done.returncode, text


def test_command_writes_pages(tmp_path: Path) -> None:
    first, second = folders.ordinary(tmp_path / "a"), folders.ordinary(tmp_path / "b")
    done = subprocess.run(
        command("report", str(first)), cwd=ROOT, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"written to {first / 'report.html'}\n")
    assert report(first, second) == (0, f"written to {first / 'report-vs-b.html'}\n")
    out = tmp_path / "out.html"
    assert report(first, f"--out={out}", second) == (0, f"written to {out}\n")
    assert out.read_bytes() == (first / "report-vs-b.html").read_bytes()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "run folder is missing"),
        (["{}/nowhere"], "Not a run folder: "),
        (["{}/run", "{}/run/../run"], "is given twice"),
        (["{}/run", "{}/b", "c"], "3 runs are given; a page shows at most two."),
        (["{}/run", "--out={}"], "is not a file in an existing folder"),
        (["{}/run", "--out={}/x/y.html"], "is not a file in an existing folder"),
        (["--workdir={}/run"], "--workdir is not for report"),
        (["{}/run", "--uot=x"], "did you mean --out?"),
    ],
)
def test_command_rejects(tmp_path: Path, args: list[str], words: str) -> None:
    folders.ordinary(tmp_path / "run")
    status, text = report(*(arg.format(tmp_path) for arg in args))
    assert status == 2
    assert text.startswith("error: ")
    assert len(text.splitlines()) == 1
    assert words in text
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
def test_training_and_evaluate_write_reports(tmp_path: Path) -> None:
    evals = {
        "test": recipe.entry(Retrieval(), data=Scenes(split="test", count=12)),
        "colours": recipe.entry(ZeroShot(), data=Scenes(split="colours", count=8)),
    }
    run, keys = tmp_path / "run", {"total_steps": 3, "eval_every": 1, "checkpoint_every": 2}
    train(tiny(evals=evals, stop_after=2, **keys), run)
    assert not (run / "examples").exists()  # not at the end yet
    assert not (run / "report.html").exists()
    assert "Not finished: step 2 of 3" in page.write_report(run).read_text()
    train(tiny(evals=evals, **keys), run)
    assert {path.name for path in (run / "examples").iterdir()} == FILES
    written = (run / "report.html").read_text()
    assert "Finished 3 steps." in written
    read = read_run(run)
    assert {found["step"] for found in read.examples.values()} == {3}
    starts = read.environment["starts"]
    assert [start["resumed_from"] for start in starts] == [None, 2]
    assert (starts[1]["records"], starts[1]["total_steps"], starts[1]["devices"]) == (100, 3, 8)
    assert "recall" in written
    assert written.count("<img") >= 20

    # Everything from the files: the same page from a copy.
    shutil.copytree(run, tmp_path / "copy" / "run", ignore=shutil.ignore_patterns("report.html"))
    copy = page.write_report(tmp_path / "copy" / "run").read_text()
    assert copy.replace(str(tmp_path / "copy"), str(tmp_path)) == written

    before = {name: json.loads((run / "examples" / name).read_text()) for name in FILES}
    shutil.rmtree(run / "examples")
    for step in (None, 2):
        flag = [] if step is None else [f"--step={step}"]
        done = in_process("evaluate", f"--run={run}", *flag)
        assert done.returncode == 0, done.stderr
        assert f"big-retrieval report {run}" in done.stderr
        after = {name: json.loads((run / "examples" / name).read_text()) for name in FILES}
        assert {found["step"] for found in after.values()} == {step or 3}
        if step is None:
            queries = [
                [e["place"] for e in found["directions"][0]["groups"][0]["examples"]]
                for found in (before["retrieval-test.json"], after["retrieval-test.json"])
            ]
            assert queries[0] == queries[1]
    assert "evaluated again from checkpoint 2" in page.write_report(run).read_text()
