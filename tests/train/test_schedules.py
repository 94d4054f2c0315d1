"""Schedules by their formulas, epochs, averages of parameters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import Schedule
from big_retrieval.train.averaging import Average, initial_share, snapshots
from big_retrieval.train.schedules import Timeline, make_schedule


def curve(steps: int = 100, **changes: object) -> np.ndarray:
    config = dataclasses.replace(Schedule(), **changes)  # type: ignore
    return np.asarray(jax.vmap(make_schedule(config, steps))(jnp.arange(steps + 1)))


def test_cosine_follows_its_formula() -> None:
    found = curve(warmup_steps=20, end=0.1)
    steps = np.arange(101)
    body = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * np.clip((steps - 20) / 80, 0, 1)))
    np.testing.assert_allclose(found, body * np.minimum(1, steps / 20), rtol=1e-5, atol=1e-7)


def test_linear_constant_and_rsqrt_follow_their_formulas() -> None:
    np.testing.assert_allclose(curve(type="linear"), 1 - np.arange(101) / 100, atol=1e-6)
    np.testing.assert_allclose(curve(type="constant"), 1.0)
    found = curve(type="rsqrt", timescale=10, warmup_steps=10)
    expected = np.sqrt(10 / (10 + np.maximum(0, np.arange(101) - 10)))
    np.testing.assert_allclose(found[10:], expected[10:], rtol=1e-5)


def test_cooldown_is_linear_from_the_value_of_the_body() -> None:
    found = curve(type="rsqrt", timescale=10, cooldown_steps=50, end=0.0)
    body = np.sqrt(10 / 60)
    np.testing.assert_allclose(found[50:], body * (1 - np.arange(51) / 50), rtol=1e-5, atol=1e-7)


def test_warmup_longer_than_the_run_is_clipped() -> None:
    found = curve(steps=10, warmup_steps=1000, cooldown_steps=1000)
    np.testing.assert_allclose(found, np.arange(11) / 10, rtol=1e-6)


def test_schedule_of_a_phase_begins_and_ends_with_the_phase() -> None:
    schedule = make_schedule(Schedule(warmup_steps=5), 60, 40)
    found = jax.vmap(schedule)(jnp.arange(40, 61))
    np.testing.assert_allclose(found, curve(20, warmup_steps=5), rtol=1e-6, atol=1e-7)


def test_schedule_by_epochs_changes_at_their_first_steps() -> None:
    timeline = Timeline(10, 2.5)  # epochs begin at round(2.5 e): 0, 2, 5, 8
    assert timeline.epochs.tolist() == [0, 2, 5, 8, 10]
    found = jax.vmap(make_schedule(Schedule("linear", interval="epoch"), 10, 0, timeline))
    expected = 1 - np.asarray([0, 0, 2, 2, 2, 5, 5, 5, 8, 8]) / 10
    np.testing.assert_allclose(found(jnp.arange(10)), expected, atol=1e-6)


@pytest.mark.parametrize("length", [0.25, 1.0, 2.5, 7.8125, 60.0])
def test_epochs_end_with_the_run(length: float) -> None:
    for epochs in (1, 3, 16):
        total = max(1, round(epochs * length))
        begins = Timeline(total, length).epochs
        assert begins[0] == 0
        assert begins[-1] == total
        assert np.all(np.diff(begins) >= 1)


@pytest.mark.parametrize("length", [0.25, 1.0, 2.5, 7.8125, 145_000 / 128])
def test_intervals_of_epochs_end_with_epochs(length: float) -> None:
    timeline = Timeline(round(8 * length) or 1, length)
    steps = range(1, timeline.total_steps + 1)
    ends = [step for step in steps if timeline.ends(step, 1)]
    assert ends == timeline.epochs[1:].tolist()
    assert not any(timeline.ends(step, 0) for step in steps)
    for every in (0.5, 2, 3.0):
        multiples = {timeline.step_of(every * k) for k in range(1, int(8 / every) + 1)}
        assert {s for s in steps if timeline.ends(s, every)} == multiples - {0}


def test_snapshots_of_an_epoch() -> None:
    """Epochs of COCO and Flickr30k in the paper, a round length, and short epochs."""
    lengths = {4426: (3983, 88), 1133: (1019, 22), 100: (90, 2), 50: (45, 1), 5: (4, 1), 1: (0, 1)}
    assert {length: snapshots(configs.Swa(), length) for length in lengths} == lengths


def test_warmed_up_average_forgets_its_start() -> None:
    average = Average(configs.Ema(decay=0.9), Timeline(100))
    share = jnp.ones(())  # of the initial parameters
    for step in range(1, 101):
        _, share, _, _ = average.update(jnp.zeros(()), share, {}, jnp.asarray(step))
        if step in (1, 2, 100):
            np.testing.assert_allclose(
                share, initial_share(configs.Ema(decay=0.9), step), rtol=1e-4
            )
    np.testing.assert_allclose(initial_share(configs.Ema(), 2), 2 / 11 * 3 / 12)
    assert initial_share(configs.Ema(decay=0.9, warmup=False), 2) == 0.9**2
