"""Sweeps: what is refused, what is run and skipped, what interruptions leave, the tables."""

import csv
import json
import logging
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval.errors import UserError
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.runtime import progress
from big_retrieval.runtime.lease import Observer
from big_retrieval.runtime.locks import Lock, in_folder
from big_retrieval.runtime.processes import Signals
from big_retrieval.sweep import Entry, Sweep, runner, slurm, spec, table
from big_retrieval.sweep.check import check_all, configurations
from tests.helpers import ROOT, command, environment, in_process, losses, results

QUICK = "configs/quickstart.py:runlocal"
SWEEPS = sorted((ROOT / "configs" / "sweeps").glob("*.py"))  # tests/test_papers.py has the others
BEGIN = "from big_retrieval.sweep import Entry, Sweep\ndef get_sweep(arg=''):\n    "


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def call(*flags: str, cwd: Path = ROOT, **env: Any) -> subprocess.CompletedProcess[str]:
    """The command, as a process of its own."""
    return subprocess.run(
        command("sweep", *flags), cwd=cwd, env=environment(**env), capture_output=True, text=True,
        timeout=900,
    )  # fmt: skip


def written(path: Path, body: str) -> Path:
    """A sweep file whose get_sweep is this."""
    path.write_text(BEGIN + body + "\n")
    return path


# ---- Sweep files

FILES: list[tuple[str, list[str]]] = [
    ("return 3", ["get_sweep returned 3"]),
    ("return Sweep(runs=[])", ["runs is []", "at least one"]),
    ("return Sweep(runs=[Entry('a', 'b.py')], metrics='x')", ["metrics is 'x'", "a list"]),
    ("return Sweep(runs=[Entry('a', 'b.py')], seeds=3)", [", line 3: TypeError"]),
    ("return Sweep(runs=[Entry('a', 'b.py')], seeds=(1, 1))", ["Duplicate seed 1"]),
    ("return Sweep(runs=[Entry('a', 'b.py')], seeds=(-1,))", ["Seed -1"]),
    ("return Sweep(runs=[Entry('a', 'b.py'), Entry('A', 'c.py')])", ["Duplicate name 'a'"]),
    ("return Sweep(runs=[Entry('../a', 'b.py')])", ["'../a'"]),
    ("return Sweep(runs=[Entry('results.md', 'b.py')])", ["'results.md'"]),
    ("return Sweep(runs=[Entry('a', 'b.py', evaluate='--run=a')])", ["evaluate is '--run=a'"]),
    ("return Sweep(runs=[Entry('a', 'b.py', {'seed': 3})])", ["'seed'", "Sweep(seeds=...)"]),
    ("return Sweep(runs=[Entry('a', 'b.py', {'config.lr': 3})])", ["Write 'lr'"]),
    ("return Sweep(runs=[Entry('a', 'b.py')], paper={'b': {}})", ["paper has 'b'"]),
    ("return Sweep(runs=[Entry('a', 'b.py')], evaluations={'c': (1,)})", ["evaluations has 'c'"]),
    (
        "return Sweep(runs=[Entry('a', 'b.py')], metrics=['x/*'], paper={'a': {'y/R@1': 3}})",
        ["'y/R@1' in the row 'a'", "Add a pattern"],
    ),
    ("return (", ["line 3 is not Python"]),
]


@pytest.mark.parametrize(("body", "words"), FILES)
def test_mistakes_in_a_sweep_file(tmp_path: Path, body: str, words: list[str]) -> None:
    path = written(tmp_path / "mine.py", body)
    with pytest.raises(UserError) as problem:
        spec.load(str(path))
    for word in [str(path), *words]:
        assert word in str(problem.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"did you mean configs/sweeps/quickstart_seeds\.py\?"):
        spec.load("quickstart_seed")
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(UserError, match=r"no function get_sweep\(arg\)"):
        spec.load(str(tmp_path / "empty.py"))
    with pytest.raises(UserError, match="config argument 'sedes=1' is unknown"):
        spec.load("configs/sweeps/quickstart_seeds.py:sedes=1")


def test_runs_are_entries_times_seeds() -> None:
    entries = [Entry("a", "x.py"), Entry("b", "y.py:m=4", {"optimizer.lr": 1e-3, "a.b": (1, "x")})]
    runs = spec.runs_of(Sweep(runs=entries, seeds=(3, 5)), Path("w"))
    assert [run.name for run in runs] == ["a/seed_3", "a/seed_5", "b/seed_3", "b/seed_5"]
    assert [run.number for run in runs] == [0, 1, 2, 3]
    assert runs[3].flags() == [
        "--config=y.py:m=4", "--workdir=w/b/seed_5", "--config.optimizer.lr=0.001",
        "--config.a.b=(1, 'x')", "--config.seed=5",
    ]  # fmt: skip


def test_only() -> None:
    runs = spec.runs_of(Sweep(runs=[Entry("a", "x.py")], seeds=range(6)), Path("w"))

    def numbers(only: str) -> list[int]:
        return [run.number for run in spec.choose(runs, only)]

    assert numbers("") == [0, 1, 2, 3, 4, 5]
    assert numbers("3") == [3]
    assert numbers("5,0-2, 1") == [0, 1, 2, 5]
    for wrong in ("6", "2-1", "a", "1-", ",", "-1", "4-6"):
        with pytest.raises(UserError, match="--only is"):
            numbers(wrong)


@pytest.mark.parametrize("arg", ["", "runlocal"])
@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_the_sweeps_of_this_project_can_be_run(path: Path, arg: str, tmp_path: Path) -> None:
    sweep = spec.load(f"{path}:{arg}")
    first = Sweep(runs=sweep.runs, seeds=sweep.seeds[:1], metrics=sweep.metrics)
    check_all(first, spec.runs_of(first, tmp_path))
    assert not any(tmp_path.iterdir())


# ---- Checks before the first run


def refusal(sweep: Sweep, workdir: Path) -> str:
    """What `check_all` says."""
    with pytest.raises(UserError) as problem:
        check_all(sweep, spec.runs_of(sweep, workdir))
    return str(problem.value)


def test_every_config_is_checked_first(tmp_path: Path) -> None:
    def said(config: str, overrides: Mapping[str, Any]) -> str:
        good, bad = Entry("good", QUICK), Entry("bad", config, overrides)
        return refusal(Sweep(runs=[good, bad]), tmp_path)

    assert said("configs/quikstart.py", {}).startswith("bad/seed_0: --config: there is no file")
    assert "did you mean config.optimizer.lr?" in said(QUICK, {"optimizer.lrr": 1.0})
    assert "config.batch_size is 0" in said(QUICK, {"batch_size": 0})
    assert "'foo' is unknown" in said("configs/quickstart.py:foo", {})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import os; os._exit(7)", "a/seed_0: reading it ended with status 7"),
        ("import os; os.system('echo hello'); return 3", "a/seed_0: "),
    ],
)
def test_a_config_file_that_misbehaves(body: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(f"def get_config(arg=''):\n    {body}\n")
    said = refusal(Sweep(runs=[Entry("a", str(tmp_path / "bad.py"))]), tmp_path / "w")
    assert said.startswith(words)
    assert "Traceback" not in said
    assert "hello" not in said


def test_overrides_arrive_as_they_are(tmp_path: Path) -> None:
    overrides = {"optimizer.lr": 1.25e-4, "losses.main.logit_scale.max": None}
    overrides |= {"towers.image.scan": True}
    overrides |= {"fields.image.crop_scale": (0.5, 0.75)}
    overrides |= {"fields.image.flip_unsafe_words": ("up",)}
    overrides |= {"optimizer.groups.a.pattern": "text/.*", "optimizer.groups.a.lr_factor": 0.5}
    sweep = Sweep(runs=[Entry("a", QUICK, overrides)], seeds=(7,))
    run = spec.runs_of(sweep, tmp_path)[0]
    found = configurations([run])[0].plain
    assert found["optimizer"]["lr"] == 1.25e-4
    assert found["losses"]["main"]["logit_scale"]["max"] is None
    assert found["towers"]["image"]["scan"] is True
    assert found["fields"]["image"]["crop_scale"] == [0.5, 0.75]
    assert found["fields"]["image"]["flip_unsafe_words"] == ["up"]
    assert found["optimizer"]["groups"]["a"]["lr_factor"] == 0.5
    assert found["seed"] == 7


def test_a_metric_of_no_evaluator(tmp_path: Path) -> None:
    sweep = Sweep(runs=[Entry("a", QUICK)], metrics=("retrieval/tset/*",))
    assert "'retrieval/tset/*'" in refusal(sweep, tmp_path)
    check_all(Sweep(runs=[Entry("a", QUICK)], metrics=("loss",)), spec.runs_of(sweep, tmp_path))


def test_a_finished_run_of_another_config(tmp_path: Path) -> None:
    sweep = Sweep(runs=[Entry("a", QUICK)])
    run = spec.runs_of(sweep, tmp_path)[0]
    run.folder.mkdir(parents=True)
    (run.folder / "config.json").write_text(json.dumps(configurations([run])[0].plain))
    (run.folder / "results.json").write_text("{}")
    check_all(sweep, [run])
    free = Sweep(runs=[Entry("a", QUICK, {"log_every": 7, "mesh.fsdp": 2})])
    check_all(free, spec.runs_of(free, tmp_path))
    changed = Sweep(runs=[Entry("a", QUICK, {"optimizer.lr": 0.5})])
    said = refusal(changed, tmp_path)
    assert "a/seed_0" in said
    assert "config.optimizer.lr = 0.002" in said
    assert "0.5" in said
    (run.folder / "results.json").unlink()
    check_all(changed, spec.runs_of(changed, tmp_path))  # main compares, as it may not have begun


def test_an_evaluated_row_of_another_config_or_flag(tmp_path: Path) -> None:
    sweep = Sweep(runs=[Entry("a", QUICK, evaluate="--untrained")])
    run = spec.runs_of(sweep, tmp_path)[0]
    run.folder.mkdir(parents=True)
    digest = spec.inputs_sha256(configurations([run])[0].plain, "--untrained")
    run.results.write_text(json.dumps({"inputs_sha256": digest}))
    check_all(sweep, [run])
    changed = Entry("a", QUICK, {"evals.test.recall_at": (1, 2)}, evaluate="--untrained")
    for entry in (changed, Entry("a", QUICK, evaluate="--bm25")):
        assert "has another config or flag" in refusal(Sweep(runs=[entry]), tmp_path)


# ---- Running, with a stub


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs are processes of tests/sweep_stub.py; handlers of signals are put back."""
    monkeypatch.setattr(runner, "MODULE", "tests.sweep_stub")
    monkeypatch.setattr(runner, "COMMANDS", "tests.sweep_stub")
    monkeypatch.setattr(runner, "LOOK", 0.02)
    before = [signal.getsignal(number) for number in runner.SIGNALS]
    yield
    assert [signal.getsignal(number) for number in runner.SIGNALS] == before


class Stubs:
    """A sweep of stubs in a folder."""

    def __init__(self, folder: Path, *modes: str, seeds: int = 1) -> None:
        entries = [Entry(f"{i}-{mode}", "x.py", {"mode": mode}) for i, mode in enumerate(modes)]
        self.folder = folder
        self.sweep = Sweep(runs=entries, seeds=range(seeds), metrics=("*/R@1",))
        self.runs = spec.runs_of(self.sweep, folder)

    def run(self) -> int:
        return runner.run_all(self.runs, self.tables)

    def tables(self) -> str:
        return table.write_tables(self.sweep, self.runs, self.folder, "stubs")

    def start(self, run: int = 0) -> int:
        """Waits until a run has started; its process."""
        return int(wait_for(self.runs[run].folder / "started"))


def wait_for(path: Path) -> str:
    """The content of a file that another process will write."""
    end = time.monotonic() + 60
    while not path.exists() or not path.read_text():
        assert time.monotonic() < end, path
        time.sleep(0.01)
    return path.read_text()


def free(folder: Path) -> bool:
    """Whether the process of a run ends within some seconds: it holds the lock while it lives."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if not in_use(folder):
            return True
        time.sleep(0.02)
    return False


def in_use(folder: Path) -> bool:
    """Whether a process that lives holds the lock of a run folder."""
    return Observer(in_folder(folder)).look() == "alive"


@pytest.mark.usefixtures("stub")
def test_finished_runs_are_skipped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(runner, "QUIET", 0.0)
    stubs = Stubs(tmp_path, "finish", seeds=2)
    assert stubs.run() == 0
    out, shown = capfd.readouterr()
    assert "[1/2] 0-finish/seed_0  step   1/200" in shown
    assert shown.splitlines()[-1].startswith("100% 2/2 [")
    assert "[1/2] 0-finish/seed_0  started" in out
    assert "[2/2] 0-finish/seed_1  finished in 0:0" in out
    assert "50.50 ± 0.71" in out
    before = (tmp_path / "results.csv").read_text()
    log = stubs.runs[0].folder / "log.txt"
    assert log.read_text().startswith("---- ")
    assert "step   1/200" in log.read_text()
    stamp = log.stat().st_mtime_ns
    assert stubs.run() == 0
    assert "[1/2] 0-finish/seed_0  finished already" in capfd.readouterr().out
    assert (log.stat().st_mtime_ns, (tmp_path / "results.csv").read_text()) == (stamp, before)


@pytest.mark.usefixtures("stub")
def test_an_entry_may_be_evaluated_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stubs = Stubs(tmp_path, "finish", seeds=2)
    bm25 = Entry("bm25", "x.py", {"mode": "finish"}, evaluate="--bm25")
    stubs.sweep = Sweep(runs=[bm25, *stubs.sweep.runs], seeds=range(2), metrics=("*/R@1",))
    stubs.runs = spec.runs_of(stubs.sweep, tmp_path)
    folder = stubs.runs[0].folder
    assert [run.name for run in stubs.runs] == [
        "bm25/seed_0",
        *(f"0-finish/seed_{n}" for n in "01"),
    ]
    flags = [
        "--config=x.py",
        f"--out={folder}",
        "--bm25",
        "--config.mode=finish",
        "--config.seed=0",
    ]
    assert stubs.runs[0].flags() == flags
    assert stubs.run() == 0
    assert stubs.run() == 0
    out = capfd.readouterr().out
    assert "| bm25     |     1 |" in out
    assert "[1/3] bm25/seed_0  finished already" in out
    assert [path.name for path in folder.glob("*.json")] == ["evaluation.json"]
    assert "| `--bm25`, `mode=finish`" in (tmp_path / "results.md").read_text()


@pytest.mark.usefixtures("stub")
def test_a_failed_run_is_told_and_repeated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    stubs = Stubs(tmp_path, "fail", "refuse", "quit", "finish")
    assert stubs.run() == 1
    out = "".join(capfd.readouterr())
    assert "0-fail/seed_0  failed with status 1" in out
    assert "    RuntimeError: something broke" in out
    assert "1-refuse/seed_0  failed with status 2" in out
    assert "\n    error: config.x is 3; it must be 4.\n" in out
    assert "2-quit/seed_0  step   1/200" in out  # ended well, but is not finished
    assert "3-finish/seed_0  finished in" in out
    assert "failed: 0-fail/seed_0\nrefused: 1-refuse/seed_0\nstopped: 2-quit/seed_0\n" in out
    assert "3 of 4 runs are not finished" in out
    assert [row["name"] for row in csv_rows(tmp_path)] == ["3-finish"]
    for run in (stubs.runs[0], stubs.runs[2]):
        (run.folder / "mended").write_text("")
    with caplog.at_level(logging.WARNING, "big_retrieval"):  # as --verbosity=warning does
        assert stubs.run() == 2  # repeating is of no use
    told = capfd.readouterr()
    assert told.out == ""
    assert "refused: 1-refuse/seed_0\n1 of 4 runs are not finished" in told.err
    (stubs.runs[1].folder / "mended").write_text("")
    capfd.readouterr()
    assert stubs.run() == 0
    assert "something broke" not in capfd.readouterr().out


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize("number", runner.SIGNALS)
def test_a_signal_is_passed_on_and_waited_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    stubs = Stubs(tmp_path, "wait", "finish")
    killer = threading.Thread(target=lambda: (stubs.start(), os.kill(os.getpid(), number)))
    killer.start()
    assert stubs.run() == 128 + number
    killer.join()
    assert (stubs.runs[0].folder / "saved").exists()
    assert not stubs.runs[1].folder.exists()
    out = capfd.readouterr().out
    assert "0-wait/seed_0  stopped after step 1 of 200" in out
    assert out.endswith("stopped; to continue, repeat the same command\n")
    (stubs.runs[0].folder / "mended").write_text("")
    assert stubs.run() == 0


@pytest.mark.usefixtures("stub")
def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path, "deaf")

    def kill_twice() -> None:
        stubs.start()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        assert in_use(stubs.runs[0].folder)  # waited for
        os.kill(os.getpid(), signal.SIGINT)

    killer = threading.Thread(target=kill_twice)
    killer.start()
    assert stubs.run() == 128 + signal.SIGINT
    killer.join()
    assert not (stubs.runs[0].folder / "saved").exists()
    assert free(stubs.runs[0].folder)


@pytest.mark.usefixtures("stub")
def test_what_the_shell_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Signals(*runner.SIGNALS) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.first is None
    finally:
        signal.signal(signal.SIGHUP, before)


SWEEP_OF_STUBS = """
import sys
from pathlib import Path
from big_retrieval.sweep import runner
from tests.test_sweep import Stubs
runner.MODULE = "tests.sweep_stub"
sys.exit(Stubs(Path(sys.argv[1]), *sys.argv[2:]).run())
"""


def sweep_of_stubs(folder: Path, *modes: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", SWEEP_OF_STUBS, str(folder), *modes], stdout=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


@pytest.mark.usefixtures("stub")
def test_ctrl_c_at_a_terminal_reaches_the_run_once(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path, "wait")
    sweep = sweep_of_stubs(tmp_path, "wait")
    stubs.start()
    os.killpg(sweep.pid, signal.SIGINT)  # a terminal signals all processes of the foreground
    assert sweep.wait() == 128 + signal.SIGINT
    assert (stubs.runs[0].folder / "saved").exists()
    assert "KeyboardInterrupt" not in (stubs.runs[0].folder / "log.txt").read_text()


@pytest.mark.usefixtures("stub")
def test_a_killed_sweep_leaves_no_process(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path, "deaf")
    sweep = sweep_of_stubs(tmp_path, "deaf")
    stubs.start()
    assert in_use(stubs.runs[0].folder)
    sweep.kill()
    sweep.wait()
    assert free(stubs.runs[0].folder)
    assert not (stubs.runs[0].folder / "saved").exists()


def test_a_parent_that_ended_before_it_was_watched(tmp_path: Path) -> None:
    stub = ["tests.sweep_stub", f"--workdir={tmp_path}", "--config.mode=quit", "--config.seed=0"]
    for parent, status in ((os.getpid(), 0), (os.getppid(), -signal.SIGKILL)):
        command_line = [sys.executable, "-m", "big_retrieval.runtime.child", str(parent), *stub]
        assert subprocess.run(command_line).returncode == status


def test_where_no_kernel_helps_the_parent_is_watched(tmp_path: Path) -> None:
    lines = [
        "import sys, time; from pathlib import Path; from big_retrieval.runtime import child",
        "from big_retrieval.runtime.locks import Lock, in_folder",
        "child._kernel_kills = lambda: False",
        f"Lock(in_folder(Path({str(tmp_path)!r})), of='x').acquire()",
        "child.end_with(int(sys.argv[1]))",
        f"Path({str(tmp_path / 'started')!r}).write_text('1')",
        "time.sleep(600)",
    ]
    middle = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {chr(10).join(lines)!r}, str(os.getpid())])\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", middle])
    wait_for(tmp_path / "started")
    assert in_use(tmp_path)
    parent.kill()
    parent.wait()
    assert free(tmp_path)


@pytest.mark.usefixtures("stub")
def test_two_sweeps_share_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PATIENCE", 0.1)
    stubs = Stubs(tmp_path, "wait", "finish")
    other = sweep_of_stubs(tmp_path, "wait", "finish")
    stubs.start()
    begin = (stubs.runs[0].folder / "log.txt").read_text()
    assert stubs.run() == 1  # run 0 is left to the other, run 1 done
    assert (stubs.runs[0].folder / "log.txt").read_text() == begin
    assert [row["name"] for row in csv_rows(tmp_path)] == ["1-finish"]
    other.terminate()
    assert other.wait() == 128 + signal.SIGTERM


@pytest.mark.usefixtures("stub")
def test_a_run_that_another_sweep_began_in_the_same_moment_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stubs, look, looks = Stubs(tmp_path, "finish"), runner._in_use, list[Any]()

    def in_use(*args: Any) -> bool:
        looks.append(args)
        return len(looks) > 1 and look(*args)

    monkeypatch.setattr(runner, "_in_use", in_use)
    with Lock(in_folder(stubs.runs[0].folder), of="run"):
        assert stubs.run() == 1
    assert "left to the process that is running it" in capfd.readouterr().out
    assert "is in use by process" in (stubs.runs[0].folder / "log.txt").read_text()


# ---- Tables


def csv_rows(folder: Path) -> list[dict[str, str]]:
    """The rows of results.csv."""
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


def fill(run: spec.SweepRun, **values: Any) -> None:
    """Makes a run a finished one; its results are there whole or not at all, as a run's own are."""
    run.folder.mkdir(parents=True, exist_ok=True)
    write_bytes(run.folder / "results.json", to_json(values))


def test_means_and_deviations(tmp_path: Path) -> None:
    metrics = ("retrieval/t/R@*", "loss", "nothing/*")
    entries = [Entry("a", "x.py", {"batch_size": 8}), Entry("b", "x.py:c|d"), Entry("d", "x.py")]
    sweep = Sweep(runs=entries, seeds=(0, 1, 2), metrics=metrics)
    runs = spec.runs_of(sweep, tmp_path)
    rng = np.random.default_rng(0)
    recalls, ones = rng.random(3), rng.random(3)
    for run, recall, one in zip(runs[:3], recalls, ones, strict=True):
        fill(run, **{"retrieval/t/R@10": recall, "retrieval/t/R@5": 1.0, "loss": one, "sha": "x"})
    fill(runs[3], **{"loss": 2.5})
    fill(runs[4], **{"retrieval/t/R@5": 0.5, "loss": 2.5})
    text = table.write_tables(sweep, runs, tmp_path, "title")
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert lines[0] == "# title"
    cells = [[c.strip() for c in line.replace("\\|", "/").strip("|").split("|")] for line in lines]
    assert cells[2] == ["run", "seeds", "t/R@5", "t/R@10", "loss"]
    mean, deviation = 100 * np.mean(recalls), 100 * np.std(recalls, ddof=1)
    loss = f"{np.mean(ones):.4g} ± {np.std(ones, ddof=1):.4g}"
    assert cells[4] == ["a", "3", "100.00 ± 0.00", f"{mean:.2f} ± {deviation:.2f}", loss]
    assert cells[5] == ["b", "2 of 3", "50.00 (1 of 2)", "–", "2.5 ± 0"]
    assert cells[6] == ["d", "0 of 3", "–", "–", "–"]
    assert len({len(line) for line in lines[2:7]}) == 1
    assert "only k of the n finished runs" in text
    assert "No finished run has a metric like `nothing/*`." in text
    assert any("`batch_size=8`" in line for line in lines)
    assert any("`x.py:c\\|d`" in line for line in lines)
    rows = csv_rows(tmp_path)
    assert [(row["name"], row["seed"]) for row in rows] == [
        ("a", "0"), ("a", "1"), ("a", "2"), ("b", "0"), ("b", "1"),
    ]  # fmt: skip
    assert [float(row["retrieval/t/R@10"]) for row in rows[:3]] == list(recalls)
    assert rows[3]["retrieval/t/R@10"] == ""
    assert rows[0]["sha"] == "x"


def test_ours_beside_the_paper(tmp_path: Path) -> None:
    columns = ("retrieval/t/R@1", "ranking/b/nDCG@10")
    paper = spec.published(columns, {"a": "47.4 0.337", "b": "- 0.5"})
    assert paper == {"a": dict(zip(columns, (47.4, 0.337), strict=True)), "b": {columns[1]: 0.5}}
    assert spec.published(columns[1:], {"a": "48.8"}, unit=0.01)["a"][columns[1]] == 48.8 * 0.01
    with pytest.raises(UserError, match="a has 1 numbers for 2 columns"):
        spec.published(columns, {"a": "1"})
    entries = [Entry(name, QUICK) for name in "abc"]
    sweep = Sweep(runs=entries, metrics=("retrieval/*", "ranking/*"), paper=paper)
    runs = spec.runs_of(sweep, tmp_path)

    def rows() -> list[list[str]]:
        text = table.write_tables(sweep, runs, tmp_path, "title")
        assert "ours / paper" in text
        return [[x.strip() for x in line.strip("|").split("|")] for line in text.splitlines()[2:5]]

    assert rows() == [
        ["a", "0 of 1", "– / 47.4", "– / 0.337"],
        ["b", "0 of 1", "– / –", "– / 0.5"],
        ["c", "0 of 1", "–", "–"],
    ]
    fill(runs[0], **dict(zip(columns, (0.5, 0.25), strict=True)))
    assert rows()[0] == ["a", "1", "50.00 / 47.4", "0.25 / 0.337"]
    assert "'retrieval/t/R@1'" in refusal(sweep, tmp_path / "other")


def test_evaluations_during_a_run_have_rows(tmp_path: Path) -> None:
    name, seeds = "retrieval/t/R@1", range(2)
    paper = {"a@2": {name: 40.0}}
    more: Any = {"seeds": seeds, "metrics": ("retrieval/*",), "evaluations": {"a": (1, 2)}}
    sweep = Sweep(runs=[Entry("a", QUICK), Entry("b", QUICK)], paper=paper, **more)
    runs = spec.runs_of(sweep, tmp_path)
    for run in runs[:2]:
        fill(run, **{name: 0.5})
        steps = {0: 0.1, 8: 0.2, 16: 0.3 + run.seed / 10}
        rows = [{"step": step, name: value} for step, value in steps.items()]
        rows[1:1] = [{"step": 4, "loss": 1.0}, rows[1]]  # as after a restart
        (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = table.write_tables(sweep, runs, tmp_path, "title")
    cells = [[x.strip() for x in line.strip("|").split("|")] for line in text.splitlines()[2:6]]
    assert cells == [
        ["a", "2", "50.00 ± 0.00"],
        ["a@1", "2", "20.00 ± 0.00"],
        ["a@2", "2", "35.00 ± 7.07 / 40"],
        ["b", "0 of 2", "–"],
    ]


def test_damaged_results_are_named_first(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path, "finish", "finish")
    fill(stubs.runs[1])
    (stubs.runs[1].folder / "results.json").write_text('{"loss": 1.')
    with pytest.raises(UserError, match=r"1-finish/seed_0/results\.json is damaged"):
        stubs.run()
    with pytest.raises(UserError, match="is damaged"):
        runner.run_all(stubs.runs[:1], stubs.tables)
    assert not stubs.runs[0].folder.exists()


WRITER = """
import sys
from pathlib import Path
from tests.test_sweep import Stubs, fill
stubs = Stubs(Path(sys.argv[1]), "finish", seeds=20)
for run in stubs.runs[int(sys.argv[2])::4]:
    fill(run, loss=1.0)
    stubs.tables()
"""


def test_writers_at_the_same_time_lose_no_run(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(i)]) for i in range(4)
    ]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert [int(row["seed"]) for row in csv_rows(tmp_path)] == list(range(20))
    assert "| 0-finish |    20 |" in (tmp_path / "results.md").read_text()
    assert not list(tmp_path.glob("*.partial"))


# ---- SLURM


def test_the_array_runs_one_run_per_task(tmp_path: Path) -> None:
    found = slurm.command(
        [0, 1, 2, 5, 7, 8], sweep="s.py:a", workdir=tmp_path, options="--time=1:00 --gpus=1"
    )
    assert found[0] == "sbatch"
    assert "--array=0,1,2,5,7,8" in found
    script = found.index("launch/slurm.sbatch")
    assert found.index("--time=1:00") < found.index("--gpus=1") < script
    env = {**environment(), "DRY_RUN": "1", "COMMAND": "sweep"}
    env |= {"SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        ["bash", *found[script:]], env=env, capture_output=True, text=True, check=True
    )
    words = shlex.split(done.stdout)
    place = words.index("-m")
    assert words[place + 1 : place + 3] == ["big_retrieval", "sweep"]
    assert words[-3:] == ["--sweep=s.py:a", f"--workdir={tmp_path}", "--only=1"]


FAKE = '#!/bin/sh\nprintf "%s\\n" "$@" > "$FAKE_OUT"\n'


def test_submitting(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "sbatch"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    flags = ["--sweep=configs/sweeps/quickstart_seeds.py:runlocal", f"--workdir={tmp_path / 'w'}"]
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "FAKE_OUT": str(tmp_path / "out")}
    (tmp_path / "w" / "quickstart" / "seed_0").mkdir(parents=True)
    (tmp_path / "w" / "quickstart" / "seed_0" / "results.json").write_text("{}")
    printed = in_process("sweep", *flags, "--slurm", env=env)
    assert printed.returncode == 0, printed.stderr
    assert not (tmp_path / "out").exists()
    submitted = in_process("sweep", *flags, "--slurm", "--submit", "--sbatch=--time=10", env=env)
    assert submitted.returncode == 0, submitted.stderr
    words = shlex.split(submitted.stdout)
    assert (tmp_path / "out").read_text().splitlines() == words[1:]
    assert "--array=1" in words
    assert "--time=10" in words
    missing = in_process("sweep", *flags, "--slurm", "--submit", env={"PATH": "/nowhere"})
    assert missing.returncode == 2
    assert "no sbatch" in missing.stderr


# ---- The command

SEEDS = "--sweep=configs/sweeps/quickstart_seeds.py:runlocal"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--sweep is missing"),
        (["--sweep=configs/sweeps/quickstart_seeds.py:x"], "config argument 'x' is unknown"),
        ([SEEDS, "--config=configs/quickstart.py"], "--config is not for sweep"),
        ([SEEDS, "--list", "--table"], "--list and --table"),
        ([SEEDS, "--submit"], "needs --slurm"),
        ([SEEDS, "--only=2"], "from 0 to 1"),
        ([SEEDS, "--onyl=1"], "did you mean --only?"),
    ],
)
def test_mistakes_of_the_command(flags: list[str], words: str, tmp_path: Path) -> None:
    done = in_process("sweep", *flags, f"--workdir={tmp_path / 'w'}")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert not (tmp_path / "w").exists()


def test_looking_without_running(tmp_path: Path) -> None:
    flags = [SEEDS, f"--workdir={tmp_path / 'w'}"]
    listed = call(*flags, "--list")  # a process, as users start it
    assert [line.split()[:3] for line in listed.stdout.splitlines()] == [
        ["0", "quickstart/seed_0", "new"],
        ["1", "quickstart/seed_1", "new"],
    ]
    dry = in_process("sweep", *flags, "--dry-run", "--only=1")
    assert shlex.split(dry.stdout) == [
        "big-retrieval", "train", "--config=configs/quickstart.py:runlocal",
        f"--workdir={tmp_path / 'w'}/quickstart/seed_1", "--config.seed=1",
    ]  # fmt: skip
    assert not (tmp_path / "w").exists()
    tables = in_process("sweep", *flags, "--table")
    assert "0 of 2" in tables.stdout
    refused = in_process("sweep", *flags, env={"JAX_NUM_PROCESSES": "2"})
    assert refused.returncode == 2
    assert "JAX_NUM_PROCESSES" in refused.stderr


# ---- Real runs

REAL = """small = {{"total_steps": 30, "log_every": 1, "checkpoint_every": 5, "data.count": 200}}
    small |= {{"evals.test.data.count": 20, "evals.colours.data.count": 10, "batch_size": 16}}
    small |= {{"towers.image.depth": 1, "towers.text.depth": 1, "report": False}}
    runs = [Entry("a", {quick!r}, small), Entry("b", {quick!r}, small | {{"optimizer.lr": 1e-3}})]
    return Sweep(runs=runs, seeds=(4,), metrics=("retrieval/*/R@1", "loss"))"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    file = written(folder / "real.py", REAL.format(quick=QUICK))
    done = call(f"--sweep={file}", f"--workdir={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def same(whole: Path, folder: Path) -> None:
    """Both runs of a sweep are as they are where nothing happens."""
    for name in "ab":
        run, expected = folder / name / "seed_4", whole / name / "seed_4"
        assert results(run)["params_sha256"] == results(expected)["params_sha256"]
        assert losses(run) == losses(expected)


@pytest.mark.slow
def test_sweeps_killed_at_random_moments(whole: Path, tmp_path: Path) -> None:
    """In the first run, and of the same sweep in the second; no more than that run is lost."""
    file = written(tmp_path / "real.py", REAL.format(quick=QUICK))
    folder, rng = tmp_path / "cut", random.Random(5)
    flags = [f"--sweep={file}", f"--workdir={folder}"]
    for name, begun in (("a", complete), ("b", Path.exists), ("b", complete)):
        process = subprocess.Popen(
            command("sweep", *flags), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL
        )
        run = folder / name / "seed_4"
        while not begun(run) and process.poll() is None:
            time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):
            process.wait(rng.random() * 0.5)
        process.kill()
        process.wait()
        assert free(run)  # nothing of it goes on
        assert bool(complete(run)) == (begun is complete)
        assert not (run / "results.json").exists()  # else the kill came too late to show anything
        if name == "a":
            assert not (folder / "b").exists()
    again = call(*flags)
    assert again.returncode == 0, again.stdout + again.stderr
    same(whole, folder)
    for name in "ab":
        assert results(folder / name / "seed_4")["resumed_from"] is not None


def complete(folder: Path) -> list[int]:
    """Steps of the complete checkpoints of a run."""
    from big_retrieval.io import manifest

    return manifest.complete_steps(folder / "checkpoints")


@pytest.mark.slow
def test_a_signal_saves_the_run_of_a_sweep(whole: Path, tmp_path: Path) -> None:
    """Ctrl-C in the first run, SIGTERM in the second."""
    body = REAL.format(quick=QUICK).replace('_every": 5', '_every": 99')
    file = written(tmp_path / "real.py", body)
    flags = [f"--sweep={file}", f"--workdir={tmp_path / 'w'}"]
    for name, number in (("a", signal.SIGINT), ("b", signal.SIGTERM)):
        process = subprocess.Popen(
            command("sweep", *flags), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
        )
        run = tmp_path / "w" / name / "seed_4"
        while not ((run / "metrics.jsonl").exists() and losses(run)):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        out, _ = process.communicate(timeout=300)
        if process.returncode == 128 + number and not (run / "results.json").exists():
            assert "to continue, repeat the same command" in out
            assert complete(run)
            assert (tmp_path / "w" / "b").exists() == (name == "b")
    again = call(*flags)
    assert again.returncode == 0, again.stdout + again.stderr
    same(whole, tmp_path / "w")
    changed = file.read_text().replace('"total_steps": 30', '"total_steps": 31')
    file.write_text(changed)
    refused = call(*flags)
    assert refused.returncode == 2
    assert "a/seed_4" in refused.stderr
    assert "config.total_steps = 30" in refused.stderr
