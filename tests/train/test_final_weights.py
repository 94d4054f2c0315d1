"""`final_weights = "best"`: the final metrics come from the best checkpoint."""

import re
from pathlib import Path
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.errors import UserError
from big_retrieval.evals.evaluators import due, measures_best
from big_retrieval.evals.systems import model_system
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.inference.load import load
from big_retrieval.inference.saved import find
from big_retrieval.train.logging import read_rows
from big_retrieval.train.loop import train
from tests.helpers import ema, results, tiny
from tests.train.runs import ONE

pytestmark = pytest.mark.usefixtures("one_model")

METRIC = "retrieval/val/rsum"
SCRIPT = (1.0, 3.0, 2.0, 0.0)  # metric at the steps 2, 4, 6 and 8


def config(**changes: Any) -> configs.Config:
    """Validation every second step, the test data at the end only."""
    data = configs.Scenes(split="test", count=16)
    evals = {
        name: recipe.entry(configs.Retrieval(), data=data, every=every)
        for name, every in (("val", 2), ("test", 0))
    }
    best = {"best_metric": METRIC, "final_weights": "best", "checkpoint_every": 100}
    return tiny(**{"evals": evals, "optimizer__averaging": ema(0.5), **best, **changes})


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Replaces the metric of each new set of weights by the next value of `SCRIPT`."""
    seen: dict[str, float] = {}
    run = configs.Retrieval.run

    def with_script(self: Any, context: Any, weights: Any) -> dict[str, float]:
        found = run(self, context, weights)
        if self.every == 2:
            key = params_sha256(weights)
            found["rsum"] = seen[key] if key in seen else SCRIPT[len(seen)]
            seen[key] = found["rsum"]
        return found

    monkeypatch.setattr(configs.Retrieval, "run", with_script)
    return seen


def numbers(found: dict[str, Any]) -> dict[str, float]:
    """Returns the evaluators' metrics."""
    return {name: value for name, value in found.items() if name.startswith("retrieval/")}


@pytest.mark.slow
def test_run_evaluates_best_checkpoint_at_the_end(
    tmp_path: Path, scripted: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(config(), run, ONE)
    found = results(run)
    assert len(scripted) == 4, "the weights of step 4, bit by bit"
    assert (found["steps"], found["evaluated_step"], found[METRIC]) == (8, 4, 3.0)
    assert f"evaluating checkpoints/4, the best by {METRIC}" in capsys.readouterr().out
    page = re.sub("<.*?>", "", (run / "report.html").read_text())
    assert "Finished 8 steps. The metrics are from the best checkpoint, step 4." in page
    assert (find(run).name, find(run / "checkpoints").name) == ("4", "8")
    again = model_system(load(run, batch_size=16), "run", "4", 4).run(None)
    assert numbers(found) == pytest.approx(numbers(again))

    rows = list(read_rows(run / "metrics.jsonl"))
    assert [row["step"] for row in rows if METRIC in row] == [2, 4, 6, 8, 4]
    assert [row["step"] for row in rows if "retrieval/test/rsum" in row] == [4]

    # Stopped between the last step and the end, and repeated.
    (run / "results.json").unlink()
    with pytest.raises(
        UserError, match=r"no intact checkpoint in .* has the metric retrieval/test"
    ):
        train(config(best_metric="retrieval/test/rsum"), run, ONE)
    train(config(), run, ONE)
    resumed = results(run)
    assert (resumed["resumed_from"], resumed["evaluated_step"]) == (8, 4)
    assert resumed["params_sha256"] == found["params_sha256"]
    assert numbers(resumed) == numbers(found)
    assert list(read_rows(run / "metrics.jsonl")) == rows


def test_due_evaluators_of_the_last_step() -> None:
    """An evaluator without an interval runs at the last step only if it chooses the best."""
    assert due(config(final_weights="last"), 8, 8, False) == {"retrieval/val", "retrieval/test"}
    assert due(config(), 8, 8, False) == {"retrieval/val"}
    of_test = config(best_metric="retrieval/test/rsum")
    assert due(of_test, 6, 8, False) == {"retrieval/val"}
    assert due(of_test, 8, 8, False) == {"retrieval/val", "retrieval/test"}
    assert measures_best(config(), {"retrieval/val"})
    assert not measures_best(of_test, {"retrieval/val"})
    assert not measures_best(config(best_metric=""), {"retrieval/val"})
