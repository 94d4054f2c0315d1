"""The time left is that of the whole run: a simulated run says how long it really took."""

from pathlib import Path

import jax
import pytest

from big_retrieval.config import Retrieval, Scenes, recipe
from big_retrieval.train.progress import TimeLeft, time_left
from big_retrieval.train.run import set_up
from big_retrieval.train.schedules import Timeline
from tests.helpers import tiny


def run_through(seconds_of: dict[str, float], total: int = 100, first: int = 0) -> dict[int, float]:
    """A run of steps of 1 s with pauses: step -> the error of the time left, in seconds."""
    pauses = dict.fromkeys(range(20, total, 20), "evals") | {total: "end"}
    left, clock, said = TimeLeft(total, first, pauses), 0.0, {}
    for step in range(first + 1, total + 1):
        clock += 1.0
        left.trained(1, 1.0)
        said[step] = clock + left.after(step)
        clock += seconds_of.get(pauses.get(step, ""), 0.0)
        left.paused(step, seconds_of.get(pauses.get(step, ""), 0.0))
    return {step: end - clock for step, end in said.items()}


@pytest.mark.parametrize("first", [0, 60])
def test_pauses_that_are_known_are_counted_exactly(first: int) -> None:
    error = run_through({"evals": 30.0, "end": 30.0}, first=first)
    assert error[first + 1] < -30  # nothing is known of the pauses yet
    behind = [abs(each) for step, each in error.items() if step > first + 20]
    assert max(behind) == pytest.approx(0)


def test_a_pause_that_was_not_seen_yet_counts_like_the_others() -> None:
    error = run_through({"evals": 10.0, "end": 50.0})
    assert error[100] == pytest.approx(10 - 50)


def test_steps_count_with_their_mean_over_the_run() -> None:
    left = TimeLeft(100, 0, {})
    assert left.after(0) == float("inf")
    left.trained(50, 50.0)
    left.trained(10, 100.0)  # another program took the machine for a while
    assert left.after(60) == pytest.approx(40 * 150 / 60)


@pytest.mark.parametrize("every", [0.0, 1e-9, 0.3, 1.0, 2.5, 40.0])
def test_ends_of_epochs_are_listed_as_each_step_says(every: float) -> None:
    timeline = Timeline(100, 7.3)
    assert timeline.all_ends(every) == [n for n in range(1, 101) if timeline.ends(n, every)]


def test_a_run_counts_its_own_evaluations_and_checkpoints(tmp_path: Path) -> None:
    test = recipe.entry(Retrieval(), data=recipe.entry(Scenes(split="test", count=32)), every=4)
    config = tiny(total_steps=20, checkpoint_every=5, evals={"test": test})
    run = set_up(config, tmp_path, jax.devices()[:1])
    left = time_left(run, 4)
    # 8, 12, 16: the evaluator; 5, 10, 15: a checkpoint; 20: both. Step 4 is behind.
    assert sorted(left._ahead.values()) == [1, 3, 3]
    assert time_left(run, 0)._ahead[(frozenset({"retrieval/test"}), False)] == 4
