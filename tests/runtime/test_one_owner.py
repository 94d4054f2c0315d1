"""Commands refuse an output that another process writes to, before anything expensive."""

from pathlib import Path
from typing import Any

import pytest

from big_retrieval.commands import evaluate
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks
from big_retrieval.train.logging import Metrics
from tests.helpers import in_process


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
        "big_retrieval.retrieval.index_search.open_searcher",
        "big_retrieval.train.build.untrained",
        "big_retrieval.plan.plan.run",
        "big_retrieval.report.page.write_report",
    ):
        monkeypatch.setattr(place, fail)
    monkeypatch.setattr("big_retrieval.config.checks.check", lambda *args, **keys: None)


QUICK = "--config=quickstart:runlocal"
COMMANDS = [  # command line; the lock
    (["train", QUICK, "--workdir=OUT"], "OUT/folder.lock"),
    (["plan", QUICK, "--workdir=OUT"], "OUT/plan.json.lock"),
    (["index", "--run=run", "--data=d.jsonl", "--out=OUT"], "OUT.lock"),
    (["mine", "--bm25", "--data=d.jsonl", "--out=OUT"], "OUT.lock"),
    (["data", "convert", QUICK, "--out=OUT"], "OUT/folder.lock"),
    (["data", "split", "--data.path=p.csv", "--out=OUT"], "OUT/folder.lock"),
    (["explain", "--run=run", "--text=a", "--out=OUT"], "OUT/folder.lock"),
    (["search", "--index=i", "--queries=q", "--out=OUT"], "OUT.lock"),
    (["export", "--run=run", "--to=transformers", "--out=OUT"], "OUT.lock"),
    (["import", "--from=model", "--out=OUT"], "OUT.lock"),
    (["evaluate", "--untrained", QUICK, "--out=OUT"], "OUT/evaluation.json.lock"),
    (["report", "RUN"], "RUN/report.html.lock"),
]


@pytest.mark.parametrize(("words", "lock"), COMMANDS)
def test_command_refuses_a_locked_output(words: list[str], lock: str, tmp_path: Path) -> None:
    for name in ("out", "run"):
        words = [word.replace(name.upper(), str(tmp_path / name)) for word in words]
        lock = lock.replace(name.upper(), name)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with locks.Lock(tmp_path / lock, output="x"):
        done = in_process(*words)
    assert done.returncode == 2
    assert "is in use by process" in done.stderr
    assert not (tmp_path / lock).exists()


def test_metrics_reject_a_replaced_file(tmp_path: Path) -> None:
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


def test_metrics_stop_after_a_lost_lock(tmp_path: Path) -> None:
    path = locks.in_folder(tmp_path)
    with locks.Lock(path, output=tmp_path):
        metrics = Metrics(tmp_path, restored_step=None)
        metrics.write(1, {"loss": 1.0})
        path.write_text("another's")
        with pytest.raises(UserError, match="writes nothing more"):
            metrics.write(2, {"loss": 2.0})
        metrics.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert path.read_text() == "another's"


def test_locked_run_can_be_evaluated(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (out / "checkpoints").mkdir(parents=True)
    done = []
    monkeypatch.setattr(evaluate, "_evaluate", lambda options, mode, folder: done.append(folder))
    with locks.Lock(locks.in_folder(out), output=out):
        evaluate.main(evaluate.EvaluateOptions(run=out))
    assert done == [out]
