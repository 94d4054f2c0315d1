"""Starts warn about averages, warm-ups and decays that the run cuts short."""

from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import Optimizer, ParameterGroup, Phase, Schedule
from big_retrieval.train.groups import make_updates
from big_retrieval.train.schedules import Timeline
from big_retrieval.train.short_runs import short_run_warnings
from tests.train.test_optimizer import PARAMS


def warnings_of(config: Optimizer, steps: int = 100, per_epoch: float = 50) -> list[str]:
    whole = configs.Config(optimizer=config)
    return short_run_warnings(whole, make_updates(config, PARAMS, Timeline(steps, per_epoch)))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"averaging": configs.Ema(decay=0.9999)}, []),
        (
            {"averaging": configs.Ema(decay=0.9999, warmup=False)},
            ["99% of the average (ema, decay 0.9999) are still the initial weights"],
        ),
        ({"schedule": Schedule("constant", warmup_steps=99)}, []),
        (
            {"schedule": Schedule(warmup_steps=198)},
            ["schedule.warmup_steps is 198, but the schedule has 100 steps: the learning rate"],
        ),
        (
            {"schedule": Schedule(warmup_steps=60, interval="epoch")},
            ["never reaches its peak, and is 83% of it at the last step"],
        ),
        (
            {"phases": {"a": Phase(start_step=90, schedule=Schedule(warmup_steps=10))}},
            ["phases.a.schedule.warmup_steps is 10, but the schedule has 10 steps"],
        ),
        (
            {"groups": {"g": ParameterGroup("image/.*", schedule=Schedule(warmup_steps=300))}},
            ["groups.g.schedule.warmup_steps is 300"],
        ),
        ({"schedule": Schedule("rsqrt")}, ["schedule (rsqrt) hardly decays: 100% of its peak"]),
        (
            {"schedule": Schedule("constant", warmup_steps=50, cooldown_steps=80)},
            ["cooldown_steps is 80, but only 50 steps follow the warm-up"],
        ),
    ],
)
def test_short_runs_are_warned_of(changes: dict[str, Any], expected: list[str]) -> None:
    found = warnings_of(Optimizer(**changes))
    assert len(found) == bool(expected)
    assert all(text in found[0] for text in expected)


def test_swa_without_an_end_of_an_epoch_is_warned_of() -> None:
    (found,) = warnings_of(Optimizer(averaging=configs.Swa()), per_epoch=101)
    assert "no effect: the run of 100 steps ends before its first epoch (101 steps)" in found
    assert not warnings_of(Optimizer(averaging=configs.Swa()), per_epoch=100)


def test_sparsity_that_grows_longer_than_the_run_is_warned_of() -> None:
    loss = configs.Contrastive(sparsity=configs.Sparsity(query=1.0, warmup_steps=198))
    updates = make_updates(Optimizer(), PARAMS, Timeline(100, 50))
    (found,) = short_run_warnings(configs.Config(losses={"main": loss}), updates)
    assert "losses.main.sparsity.warmup_steps is 198" in found
    assert "reach 25%" in found


def test_running_averages_of_batch_norms_that_are_still_initial_are_warned_of() -> None:
    updates = make_updates(Optimizer(), PARAMS, Timeline(10, 50))
    (found,) = short_run_warnings(configs.Config(), updates, fresh_stats=True)
    assert "after 10 steps, 35% of the running averages of batch norms" in found
    updates = make_updates(Optimizer(), PARAMS, Timeline(22, 50))
    assert short_run_warnings(configs.Config(), updates, fresh_stats=True) == []
