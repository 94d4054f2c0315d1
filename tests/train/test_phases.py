"""Phases, groups and averages in whole runs: resumed = uninterrupted, on screen, in use."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.config import recipe
from big_retrieval.config.checks import check
from big_retrieval.config.optimizer import in_mode
from big_retrieval.inference.load import load
from big_retrieval.io import manifest
from big_retrieval.plan import compiling
from big_retrieval.train.build import build_model, first_state
from big_retrieval.train.logging import read_rows
from big_retrieval.train.loop import train
from big_retrieval.train.optimizer import names_of
from big_retrieval.train.run import set_up
from tests.helpers import losses, rows, tiny, user_error
from tests.train.runs import ONE, assert_same_run, train_in_parts

pytestmark = pytest.mark.usefixtures("one_model")

HEADS = ".*_head/.*|scalars/.*"


def phased(**changes: Any) -> configs.Config:
    """Heads first, all from step 4 on at other rates; 100 / 16 = 6.25 steps an epoch."""
    cosine = configs.Schedule(warmup_steps=1)
    phases = {
        "heads": recipe.phase(start_step=0, trainable=HEADS),
        "all": recipe.phase(start_step=4, lr=1e-3, schedule=cosine),
    }
    groups = {
        "text": recipe.group("text/.*", lr_factor=0.5, rule=configs.AdamP()),
        "table": recipe.group(".*token_embedding", frozen=True, order=-1),
    }
    return tiny(**{"optimizer__phases": phases, "optimizer__groups": groups, **changes})


@pytest.fixture(scope="module")
def full_run(trained: Callable[..., Path]) -> Path:
    """The uninterrupted run of 8 steps on one device."""
    return trained(phased())


def test_run_resumed_within_and_between_phases_is_bit_identical(
    full_run: Path, tmp_path: Path
) -> None:
    train_in_parts(phased, tmp_path, 2, 4, 6)
    assert_same_run(tmp_path, full_run)


@pytest.mark.slow
@pytest.mark.parametrize("averaging", [configs.Swa(), configs.Ema(decay=0.9)])
def test_run_resumed_with_slices_and_averages_is_bit_identical(
    trained: Callable[..., Path], tmp_path: Path, averaging: Any
) -> None:
    """On two devices; on one: test_resume and `test_swa_ends_an_epoch_with_its_mean`."""
    keys: Any = {"microbatch": 8, "optimizer__averaging": recipe.entry(averaging)}
    devices = jax.devices()[:2]
    train_in_parts(lambda **more: phased(**keys, **more), tmp_path, 1, 4, 6, 7, devices=devices)
    assert_same_run(tmp_path, trained(phased(**keys), devices))


def test_phase_moves_its_parameters_only(full_run: Path, tmp_path: Path) -> None:
    train(phased(stop_after=4), tmp_path, ONE)
    run = set_up(phased(), tmp_path, ONE)
    fresh = names_of(first_state(run.parts, run.tokenizer).params)
    state, step = run.restore()
    assert step == 4
    early, late = names_of(state.params), names_of(load(full_run).weights)
    for name, x in fresh.items():
        heads = "_head/" in name or name.startswith("scalars/")
        assert np.array_equal(early[name], x) != heads, name
        if not name.startswith("scalars/"):
            assert np.array_equal(late[name], early[name]) == name.endswith("token_embedding"), name
    # Every parameter except the frozen table has two numbers in the state.
    moments = sum(x.size for x in jax.tree.leaves(state.opt_state) if x.dtype != jnp.int32)
    trained = sum(x.size for name, x in fresh.items() if not name.endswith("token_embedding"))
    assert moments == 2 * trained


def test_learning_rates_are_logged(full_run: Path) -> None:
    found = rows(full_run)
    main = [row["learning_rate"] for row in found]
    lr = phased().optimizer.lr
    assert main[:4] == pytest.approx([lr * k / 8 for k in range(4)])  # a warm-up cut to the run
    assert main[4:] == pytest.approx([0, 1e-3, 1e-3 * 0.75, 1e-3 * 0.25])
    text = [row["learning_rate/text"] for row in found]
    assert text == pytest.approx([0] * 4 + [x / 2 for x in main[4:]])  # frozen, then half
    assert "learning_rate/table" not in found[0]


def test_run_logs_phases_and_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(phased(stop_after=5), tmp_path, ONE)
    said = capsys.readouterr().out
    assert "phases       'heads' from step 1, 'all' from step 5" in said
    assert "groups       table 1 (frozen), text " in said
    assert said.count("compiling the training step of phase ") == 2
    first, second = said.index("phase 'heads': up to step 4"), said.index("phase 'all': up to step")
    assert said.index("compiling") < first < second
    train(phased(stop_after=6), tmp_path, ONE)
    said = capsys.readouterr().out
    assert "compiling the training step of phase 'heads'" not in said


@pytest.mark.slow
def test_swa_ends_an_epoch_with_its_mean(tmp_path: Path) -> None:
    """Four steps an epoch, with the mean of the last two; values of a mean: tests/golden."""
    swa = recipe.entry(configs.Swa(), start=0.5, count=2)
    more: dict[str, Any] = {"data__count": 64, "total_steps": 6, "optimizer__averaging": swa}
    more |= {"checkpoint_every": 100, "eval_every_epochs": 1, "checkpoint_every_epochs": 1}
    evaluator = recipe.entry(configs.Retrieval(), data=configs.Scenes(split="test", count=16))
    train(tiny(**more, evals__test=evaluator), tmp_path / "whole", ONE)
    logged = {row["step"]: row["swa_count"] for row in rows(tmp_path / "whole")}
    assert logged == {1: 0, 2: 0, 3: 1, 4: 2, 5: 0, 6: 0}
    found = read_rows(tmp_path / "whole" / "metrics.jsonl")
    assert [row["step"] for row in found if "retrieval/test/rsum" in row] == [4, 6]
    assert manifest.complete_steps(tmp_path / "whole" / "checkpoints") == [4, 6]
    states = {}
    for stop in (3, 4):
        config = tiny(stop_after=stop, **more)
        train(config, tmp_path / "parts", ONE)
        run = set_up(config, tmp_path / "parts", ONE)
        states[stop], step = run.restore()
        assert step == stop
        params, mean = names_of(states[stop].params), names_of(states[stop].swa)
        for name, x in params.items():  # step 3: one entry; step 4: the mean replaces the weights
            np.testing.assert_array_equal(mean[name], x, err_msg=name)
        assert states[stop].ema == {}
    used = {k: x for k, x in load(tmp_path / "parts").weights.items() if k != "batch_stats"}
    for name, x in names_of(used).items():
        np.testing.assert_array_equal(x, params[name], err_msg=name)
    train(tiny(**more), tmp_path / "parts", ONE)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def resnet(mode: str, **changes: Any) -> configs.Config:
    """A residual network with the batch statistics of a phase from step 2 on."""
    sizes: dict[str, Any] = {"stem": 8, "blocks": (1,), "bottleneck": False}
    tower = recipe.entry(configs.ResNet(), **sizes)
    phases = {"late": recipe.phase(start_step=1, batch_stats=mode)}
    more = {"towers__image": tower, "towers__text__class_tokens": 1, "optimizer__phases": phases}
    return tiny(**{"total_steps": 2, "checkpoint_every": 1, **more, **changes})


@pytest.mark.slow
def test_batch_statistics_follow_the_phase(tmp_path: Path) -> None:
    """Both steps have the same parameters: the rate of the first step is 0."""
    found, stats = {}, {}
    for mode in ("tower", "update", "batch", "running"):
        config = resnet(mode)
        train(config, tmp_path / mode, ONE)
        found[mode] = losses(tmp_path / mode)
        states = []
        for step in (1, 2):
            run = set_up(config, tmp_path / mode, ONE)
            states.append(run.checkpoints.restore(step, run.parts.abstract).batch_stats)
        same_stats = [
            np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, states), strict=True)
        ]
        stats[mode] = all(same_stats), any(same_stats)
    assert len({x[1] for x in found.values()}) == 1
    assert found["tower"] == found["update"] == found["batch"]
    assert found["running"][2] != found["update"][2]
    assert stats["batch"] == stats["running"] == (True, True)
    assert stats["tower"] == stats["update"] == (False, False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": "update", "microbatch": 8}, ["late.batch_stats is 'update'", "'slice'"]),
        ({"mode": "sometimes"}, ["config.optimizer.phases.late.batch_stats", "'running'"]),
    ],
)
def test_check_rejects_impossible_batch_statistics(
    change: dict[str, Any], words: list[str]
) -> None:
    with user_error(*words):
        check(resnet(towers__image__frozen_stats=True, **change))


def test_custom_batch_norms_follow_the_phase() -> None:
    @dataclasses.dataclass(frozen=True)
    class OwnNorms:
        frozen_stats: bool = False
        normed: ClassVar[bool] = True

    assert in_mode(OwnNorms(), "running") == OwnNorms(frozen_stats=True)
    assert in_mode(OwnNorms(), "tower") == OwnNorms()


def test_plan_compiles_phases_that_differ_in_trained_parameters() -> None:
    phases = {
        "heads": recipe.phase(start_epoch=0, trainable=HEADS),
        "all": recipe.phase(start_epoch=3),
        "low": recipe.phase(start_step=50_000, lr=1e-4),
    }
    config = tiny(total_steps=100_000, optimizer__phases=phases)
    mesh = parallel.make_mesh(config, ONE)
    parts = build_model(config, mesh, vocab_size=50, total_steps=1000)
    assert [span.name for span in parts.updates.spans] == ["heads", "all", "low"]
    assert compiling.different_steps(parts) == [parts.steps[0], parts.steps[1]]
