"""Warnings about averages, warm-ups and decays that are longer than the run."""

from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import Optimizer, ParameterGroup, Phase, Schedule
from big_retrieval.train.groups import make_updates
from big_retrieval.train.schedules import Timeline
from big_retrieval.train.short_runs import short_run_warnings
from tests.train.test_optimizer import PARAMS


def warnings_of(
    steps: int = 100,
    per_epoch: float = 50,
    fresh_stats: bool = False,
    losses: Any = None,
    **keys: Any,
) -> list[str]:
    optimizer = Optimizer(**keys)
    config = configs.Config(optimizer=optimizer, **({"losses": losses} if losses else {}))
    updates = make_updates(optimizer, PARAMS, Timeline(steps, per_epoch))
    return short_run_warnings(config, updates, fresh_stats)


SPARSITY = configs.Sparsity(query=1.0, warmup_steps=198)


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
        ({"averaging": configs.Swa(), "per_epoch": 100}, []),
        (
            {"averaging": configs.Swa(), "per_epoch": 101},
            ["no effect: the run of 100 steps ends before its first epoch (101 steps)"],
        ),
        (
            {"losses": {"main": configs.Contrastive(sparsity=SPARSITY)}},
            ["losses.main.sparsity.warmup_steps is 198", "reach 25%"],
        ),
        ({"steps": 22, "fresh_stats": True}, []),
        (
            {"steps": 10, "fresh_stats": True},
            ["after 10 steps, 35% of the running averages of batch norms"],
        ),
    ],
)
def test_short_run_warnings(changes: dict[str, Any], expected: list[str]) -> None:
    messages = warnings_of(**changes)
    assert len(messages) == bool(expected)
    assert all(text in messages[0] for text in expected)
