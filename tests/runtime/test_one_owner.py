"""Every command refuses an output that another process writes to, before anything expensive."""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from absl.testing import flagsaver

from big_retrieval import cli, main
from big_retrieval.commands import evaluate
from big_retrieval.config import Config, Graded
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks
from big_retrieval.train.logging import Metrics


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture(autouse=True)
def _nothing_expensive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that comes as far as reading a model or data fails the test."""

    def fail(*args: Any, **keys: Any) -> None:
        raise AssertionError("the lock comes first")

    for place in (
        "big_retrieval.inference.load.load",
        "big_retrieval.inference.saved.find",
        "big_retrieval.train.build.make_source",  # first, as it imports the next one's function
        "big_retrieval.data.build.make_source",
        "big_retrieval.data.judged.open_graded.Graded.build",
        "big_retrieval.interop.model.import_model",
        "big_retrieval.inference.load.load",
        "big_retrieval.retrieval.searching.open_searcher",
        "big_retrieval.train.build.untrained",
        "big_retrieval.plan.plan.run",
        "big_retrieval.report.page.write",
    ):
        monkeypatch.setattr(place, fail)
    monkeypatch.setattr(cli, "load_config", lambda: Config())
    monkeypatch.setattr(main, "check", lambda config: None)


COMMANDS = [  # module, its flags, words; the lock
    ("main", {}, (), "out/folder.lock"),
    ("main", {"plan": True}, (), "out/plan.json.lock"),
    ("index", {"run": "run", "data": "d.jsonl", "part": ""}, (), "out.lock"),
    ("mine", {"bm25": True, "data": "d.jsonl"}, (), "out.lock"),
    ("data", {}, ("convert",), "out/folder.lock"),
    ("data", {}, ("split",), "out/folder.lock"),
    ("explain", {"run": "run", "text": ["a"]}, (), "out/folder.lock"),
    ("search", {"index": "i", "queries": "q", "query": None}, (), "out.lock"),
    ("export", {"run": "run", "to": "transformers"}, (), "out.lock"),
    ("import_", {"from": "model"}, (), "out.lock"),
    ("evaluate", {"untrained": True, "config": "c"}, (), "out/evaluation.json.lock"),
    ("report", {"metrics": [], "table": False}, ("RUN",), "RUN/report.html.lock"),
]


@pytest.mark.parametrize(("module", "given", "words", "lock"), COMMANDS)
def test_a_command_refuses_what_another_process_writes_to(
    module: str, given: dict[str, Any], words: tuple[str, ...], lock: str, out: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    place = "big_retrieval" if module == "main" else "big_retrieval.commands"
    command = importlib.import_module(f"{place}.{module}")

    def flag(name: str, value: Any) -> SimpleNamespace:
        return SimpleNamespace(name=name, value=value)

    if module == "main":
        monkeypatch.setattr(cli, "WORKDIR", flag("workdir", str(out)))
    elif module != "report":
        monkeypatch.setattr(command, "OUT", flag("out", str(out)))
    for name, value in given.items():
        where = cli if name == "config" else command
        monkeypatch.setattr(where, name.upper(), flag(name, value))
    if words == ("split",):
        monkeypatch.setattr(command.data_split, "source_of_flags", Graded)
    if words == ("convert",):
        monkeypatch.setattr(command, "check", lambda config, **_: None)
    if words == ("RUN",):
        (out.parent / "RUN").mkdir()
        (out.parent / "RUN" / "config.json").write_text("{}")
        words = (str(out.parent / "RUN"),)
    path = out.parent / lock
    with (
        locks.Lock(path, of="x"),
        pytest.raises(UserError, match=r"is in use by process .*--wait"),
    ):
        command.main(*words)
    assert not path.exists()


def test_metrics_are_never_written_to_a_file_that_nobody_finds(tmp_path: Path) -> None:
    for number, how in enumerate(("replaced", "removed")):
        folder = tmp_path / how
        folder.mkdir()
        metrics = Metrics(folder, restored_step=None)
        metrics.write(1, {"loss": 1.0})
        if number:
            metrics._path.unlink()
        else:
            (folder / "new").write_text("another run's\n")
            (folder / "new").replace(metrics._path)
        with pytest.raises(UserError, match=r"metrics\.jsonl was replaced or removed while"):
            metrics.write(2, {"loss": 2.0})
        metrics.close()
        assert not (folder / "curves.csv").exists()
        assert metrics._path.exists() == (not number)


def test_a_run_that_lost_its_folder_writes_no_more_rows(tmp_path: Path) -> None:
    path = locks.in_folder(tmp_path)
    with locks.Lock(path, of=tmp_path):
        metrics = Metrics(tmp_path, restored_step=None)
        metrics.write(1, {"loss": 1.0})
        path.write_text("another's")
        with pytest.raises(UserError, match="writes nothing more"):
            metrics.write(2, {"loss": 2.0})
        metrics.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert path.read_text() == "another's"


def test_a_run_that_trains_can_be_evaluated(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (out / "checkpoints").mkdir(parents=True)
    done = []
    monkeypatch.setattr(evaluate, "_evaluate", lambda mode, folder: done.append(folder))
    with flagsaver.flagsaver(run=str(out)), locks.Lock(locks.in_folder(out), of=out):
        evaluate.main()
    assert done == [out]
