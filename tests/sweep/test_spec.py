"""Sweep files, the runs of a sweep, and the checks of all configurations before the first run."""

import json
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.sweep import Entry, Sweep, spec
from big_retrieval.sweep.check import check_all, configurations
from tests.helpers import ROOT, user_error
from tests.sweep.stubs import QUICK, refusal

# tests/test_papers.py checks the sweeps of papers.
SWEEPS = sorted((ROOT / "configs" / "sweeps").glob("*.py"))
ONE = "runs=[Entry('a', 'b.py')]"
FILES = [
    ("return 3", ["get_sweep returned 3"]),
    ("return Sweep(runs=[])", ["runs is []"]),
    (f"return Sweep({ONE}, metrics='x')", ["metrics is 'x'"]),
    (f"return Sweep({ONE}, seeds=3)", [", line 3: TypeError"]),
    (f"return Sweep({ONE}, seeds=(1, 1))", ["Duplicate seed 1"]),
    (f"return Sweep({ONE}, seeds=(-1,))", ["Seed -1"]),
    ("return Sweep(runs=[Entry('a', 'b.py'), Entry('A', 'c.py')])", ["Duplicate name 'a'"]),
    ("return Sweep(runs=[Entry('../a', 'b.py')])", ["'../a'"]),
    ("return Sweep(runs=[Entry('results.md', 'b.py')])", ["'results.md'"]),
    ("return Sweep(runs=[Entry('a', 'b.py', evaluate='--run=a')])", ["evaluate is '--run=a'"]),
    ("return Sweep(runs=[Entry('a', 'b.py', {'seed': 3})])", ["'seed'", "Sweep(seeds=...)"]),
    ("return Sweep(runs=[Entry('a', 'b.py', {'config.lr': 3})])", ["Write 'lr'"]),
    (f"return Sweep({ONE}, paper={{'b': {{}}}})", ["paper has 'b'"]),
    (f"return Sweep({ONE}, evaluations={{'c': (1,)}})", ["evaluations has 'c'"]),
    (f"return Sweep({ONE}, metrics=['x/*'], paper={{'a': {{'y/R@1': 3}}}})", ["'y/R@1'", "'a'"]),
    ("return (", ["line 3 is not Python"]),
]


@pytest.mark.parametrize(("body", "words"), FILES)
def test_load_rejects_wrong_sweep_file(tmp_path: Path, body: str, words: list[str]) -> None:
    path = tmp_path / "mine.py"
    head = "from big_retrieval.sweep import Entry, Sweep\ndef get_sweep(arg=''):\n"
    path.write_text(f"{head}    {body}\n")
    with user_error(str(path), *words):
        spec.load(str(path))


def test_load_rejects_other_files_and_arguments(tmp_path: Path) -> None:
    with user_error("did you mean configs/sweeps/quickstart_seeds.py?"):
        spec.load("quickstart_seed")
    (tmp_path / "empty.py").write_text("")
    with user_error("no function get_sweep(arg)"):
        spec.load(str(tmp_path / "empty.py"))
    with user_error("config argument 'sedes=1' is unknown"):
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


def test_only_selects_indices_and_ranges() -> None:
    runs = spec.runs_of(Sweep(runs=[Entry("a", "x.py")], seeds=range(6)), Path("w"))

    def indices(only: str) -> list[int]:
        return [run.number for run in spec.select_runs(runs, only)]

    assert indices("") == [0, 1, 2, 3, 4, 5]
    assert indices("3") == [3]
    assert indices("5,0-2, 1") == [0, 1, 2, 5]
    for wrong in ("6", "2-1", "a", "1-", ",", "-1", "4-6"):
        with user_error("--only is"):
            indices(wrong)


@pytest.mark.parametrize("arg", ["", "runlocal"])
@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_shipped_sweep_is_valid(path: Path, arg: str, tmp_path: Path) -> None:
    sweep = spec.load(f"{path}:{arg}")
    first = Sweep(runs=sweep.runs, seeds=sweep.seeds[:1], metrics=sweep.metrics)
    check_all(first, spec.runs_of(first, tmp_path))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("config", "overrides", "words"),
    [
        ("configs/quikstart.py", {}, "bad/seed_0: --config: no file"),
        (QUICK, {"optimizer.lrr": 1.0}, "did you mean config.optimizer.lr?"),
        (QUICK, {"batch_size": 0}, "config.batch_size is 0"),
        ("configs/quickstart.py:foo", {}, "'foo' is unknown"),
    ],
)
def test_check_names_wrong_run(
    tmp_path: Path, config: str, overrides: dict[str, Any], words: str
) -> None:
    sweep = Sweep(runs=[Entry("good", QUICK), Entry("bad", config, overrides)])
    assert words in refusal(sweep, tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import os; os._exit(7)", "a/seed_0: reading it ended with status 7"),
        ("import os; os.system('echo hello'); return 3", "a/seed_0: "),
    ],
)
def test_check_survives_config_file_that_exits_or_prints(
    body: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.py").write_text(f"def get_config(arg=''):\n    {body}\n")
    message = refusal(Sweep(runs=[Entry("a", str(tmp_path / "bad.py"))]), tmp_path / "w")
    assert message.startswith(words)
    assert "Traceback" not in message
    assert "hello" not in message


def test_overrides_keep_their_values(tmp_path: Path) -> None:
    overrides = {"optimizer.lr": 1.25e-4, "losses.main.logit_scale.max": None}
    overrides |= {"towers.image.scan": True, "fields.image.crop_scale": (0.5, 0.75)}
    overrides |= {"fields.image.flip_unsafe_words": ("up",)}
    overrides |= {"optimizer.groups.a.pattern": "text/.*", "optimizer.groups.a.lr_factor": 0.5}
    sweep = Sweep(runs=[Entry("a", QUICK, overrides)], seeds=(7,))
    plain = configurations(spec.runs_of(sweep, tmp_path))[0].plain
    for key, value in {**overrides, "seed": 7}.items():
        node: Any = plain
        for name in key.split("."):
            node = node[name]
        assert node == (list(value) if isinstance(value, tuple) else value), key


def test_check_rejects_metric_of_no_evaluator(tmp_path: Path) -> None:
    sweep = Sweep(runs=[Entry("a", QUICK)], metrics=("retrieval/tset/*",))
    assert "'retrieval/tset/*'" in refusal(sweep, tmp_path)
    paper = {"a": {"retrieval/tset/R@1": 1.0}}
    sweep = Sweep(runs=[Entry("a", QUICK)], metrics=("retrieval/*",), paper=paper)
    assert "'retrieval/tset/R@1'" in refusal(sweep, tmp_path)
    check_all(Sweep(runs=[Entry("a", QUICK)], metrics=("loss",)), spec.runs_of(sweep, tmp_path))


def test_check_rejects_finished_run_of_another_config(tmp_path: Path) -> None:
    sweep = Sweep(runs=[Entry("a", QUICK)])
    run = spec.runs_of(sweep, tmp_path)[0]
    run.folder.mkdir(parents=True)
    (run.folder / "config.json").write_text(json.dumps(configurations([run])[0].plain))
    (run.folder / "results.json").write_text("{}")
    check_all(sweep, [run])
    free = Sweep(runs=[Entry("a", QUICK, {"log_every": 7, "mesh.fsdp": 2})])
    check_all(free, spec.runs_of(free, tmp_path))
    changed = Sweep(runs=[Entry("a", QUICK, {"optimizer.lr": 0.5})])
    message = refusal(changed, tmp_path)
    assert all(x in message for x in ("a/seed_0", "config.optimizer.lr = 0.002", "0.5"))
    (run.folder / "results.json").unlink()
    check_all(changed, spec.runs_of(changed, tmp_path))  # main compares unfinished runs


def test_check_rejects_evaluated_row_of_another_config_or_flag(tmp_path: Path) -> None:
    sweep = Sweep(runs=[Entry("a", QUICK, evaluate="--untrained")])
    run = spec.runs_of(sweep, tmp_path)[0]
    run.folder.mkdir(parents=True)
    digest = spec.inputs_sha256(configurations([run])[0].plain, "--untrained")
    run.results.write_text(json.dumps({"inputs_sha256": digest}))
    check_all(sweep, [run])
    changed = Entry("a", QUICK, {"evals.test.recall_at": (1, 2)}, evaluate="--untrained")
    for entry in (changed, Entry("a", QUICK, evaluate="--bm25")):
        assert "another config or flag" in refusal(Sweep(runs=[entry]), tmp_path)
