"""`big-retrieval evaluate` of systems without training: a config's start, its init, BM25."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.commands import evaluate
from big_retrieval.config import Config, GradedScenes, Init, Retrieval, Scenes, recipe, schema
from big_retrieval.errors import UserError
from big_retrieval.sweep.spec import inputs_sha256
from big_retrieval.train.build import first_state, untrained
from big_retrieval.train.loop import train
from big_retrieval.train.run import set_up
from tests.helpers import ema, results, tiny

METRICS = {f"ranking/in_domain/{name}" for name in ("nDCG@10", "ERR", "RBP@0.9", "MRR", "R@10")}


def graded(**changes: Any) -> Config:
    """A tiny model of several fields over a few generated judged pairs."""
    from configs import emoji_gcl

    c = emoji_gcl.get_config("runlocal")
    c.unlock()
    c.total_steps, c.batch_size, c.data.count, c.tokenizer.vocab_size = 1, 16, 30, 128
    for tower in c.towers.values():
        tower.update(width=16, depth=1, heads=2, mlp=32)
    for field in c.fields.values():
        field.head.dim = 4
    in_domain = c.evals.in_domain.copy_and_resolve_references()
    in_domain.data.count = 30
    c.evals = {"in_domain": in_domain}
    c.update(changes)
    return configs.load(c)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `big-retrieval evaluate` in this process: (config or None, flags)."""

    def run(config: Config | None = None, out: Path | None = None, **flags: Any) -> None:
        monkeypatch.setattr(evaluate.EvaluateOptions, "load_config", lambda self: config)
        name = None if config is None else "config"
        evaluate.main(evaluate.EvaluateOptions(config=name, out=out, **flags))

    return run


def test_untrained_model_is_the_start_of_a_run(tmp_path: Path, said: list[str]) -> None:
    kernels = []
    for changes in ({}, {"seed": 3, "optimizer__averaging": ema(0.9)}):
        config = tiny(**changes)
        model = untrained(config, batch_size=8)
        run = set_up(config, tmp_path / str(config.seed))
        expected = first_state(run.parts, run.tokenizer).weights
        same = jax.tree.map(np.array_equal, model.weights, jax.device_get(expected))
        assert all(jax.tree.leaves(same))
        assert model.tokenizer.to_json() == run.tokenizer.to_json()
        assert f"untrained model: random parameters of config.seed {config.seed}" in said
        kernels.append(np.asarray(model.weights["image_head"]["kernel"]))
    assert not np.array_equal(*kernels)


def test_untrained_writes_all_metrics(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = graded()
    command(config, tmp_path / "new", untrained=True)
    found = json.loads((tmp_path / "new" / "evaluation.json").read_text())
    assert found.pop("checkpoint") == "untrained"
    plain = schema.as_saved(config)
    assert found.pop("inputs_sha256") == inputs_sha256(plain, "--untrained")
    assert set(found) == METRICS
    printed = capsys.readouterr().out
    assert "evaluating the untrained model" in printed
    assert "random parameters of config.seed 0" in printed
    assert [path.name for path in (tmp_path / "new").iterdir() if path.is_file()] == [
        "evaluation.json"
    ]
    for name, value in found.items():
        assert f"{value:.4f}" in next(line for line in printed.splitlines() if f"  {name} " in line)


@pytest.mark.slow
def test_untrained_logs_a_start_that_is_not_random(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evals = {"test": recipe.entry(Retrieval(), data=Scenes(split="test", count=12))}
    run = tmp_path / "run"
    train(tiny(evals=evals, total_steps=1, report=False), run)
    assert {"report.html", "examples"}.isdisjoint(path.name for path in run.iterdir())
    init = {"model": recipe.entry(Init(), path=str(run))}
    vocabulary = {"tokenizer__path": str(run / "tokenizer.json"), "tokenizer__type": "auto"}
    capsys.readouterr()
    command(tiny(evals=evals, init=init, seed=5, **vocabulary), tmp_path / "new", untrained=True)
    printed = capsys.readouterr().out
    assert "untrained model: parameters from config.init" in printed
    assert "init: " in printed
    found = json.loads((tmp_path / "new" / "evaluation.json").read_text())
    assert found.pop("checkpoint") == "config.init"
    assert found.pop("inputs_sha256")
    trained = results(run)
    assert found == {name: trained[name] for name in found}


def test_bm25_writes_the_same_metrics(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    c = graded()
    other = Retrieval(query="query", document="image", data=GradedScenes(count=30))
    c = Config(**{**vars(c), "evals": {**c.evals, "also": other}})
    command(c, tmp_path / "words", bm25=True)
    found = json.loads((tmp_path / "words" / "evaluation.json").read_text())
    assert found.pop("checkpoint") == "BM25"
    assert found.pop("inputs_sha256")
    assert set(found) == METRICS
    assert found["ranking/in_domain/nDCG@10"] > 0.3  # titles say half of what is asked
    printed = capsys.readouterr().out
    assert "skipped, as BM25 only ranks judged documents: retrieval/also" in printed
    assert not (tmp_path / "words" / "examples").exists()
    command(c, bm25=True)
    assert "no --out: nothing is written" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"bm25": True, "untrained": True}, "--untrained and --bm25 are both given"),
        ({"bm25": True, "step": 3}, "--step is for --run"),
        ({"untrained": True, "tokenizer": "x"}, "--tokenizer, --pool and --head are for --init"),
        ({"bm25": True, "config": None}, "--config is missing: --bm25"),
        ({"run": Path("x")}, "--config is not for evaluate"),
        ({}, "--run is missing"),
        ({"bm25": True, "run": Path("x")}, "--run and --bm25 are both given"),
        ({"bm25": True, "data": "x.csv"}, "--data is for --run"),
        (
            {"config": None, "run": Path("x"), "data": "x", "eval": ["test"]},
            "--data and --eval are both",
        ),
        ({"untrained": True, "eval": ["tests"]}, "no evaluator 'tests'"),
        ({"untrained": True, "out": "run"}, "run is another run's folder"),
    ],
)
def test_evaluate_rejects_flags(
    command: Any, tmp_path: Path, flags: dict[str, Any], words: str
) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    given = {"config": graded(), **flags, "out": tmp_path / flags.get("out", "out")}
    with pytest.raises(UserError) as problem:
        command(**given)
    assert words in str(problem.value)
    assert not (tmp_path / "out").exists()


def test_bm25_rejects_configs(command: Any, tmp_path: Path) -> None:
    c = graded()
    for change, words in (
        ({"evals": {}}, "needs an evaluator of the type 'ranking'"),
        ({"fields": {n: f for n, f in c.fields.items() if n != "title"}}, "a text field on the"),
    ):
        lacking = Config(**{**vars(c), **change})
        with pytest.raises(UserError, match=words):
            command(lacking, tmp_path / "out", bm25=True)
    assert not (tmp_path / "out").exists()
