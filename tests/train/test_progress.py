"""Throughput leaves pauses out; the time left counts them."""

import time

import pytest

from big_retrieval.train.progress import TrainingProgress


def test_throughput_leaves_pauses_out_and_the_time_left_counts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    progress = TrainingProgress(first=60, total=100, batch_size=8, pair_flops=int, devices=1)
    clock += 5.0
    row = {"loss": 1.0, **progress.measure(70, waited=1.0)}
    assert row == {"loss": 1.0, "examples_per_second": 16.0, "data_wait": 0.2}
    assert progress.line(70, row).endswith("eta 0:15")  # 30 steps of 0.5 s
    with progress.paused():
        clock += 10.0
    clock += 5.0
    row = {"loss": 1.0, **progress.measure(80, waited=0.0)}
    assert row == {"loss": 1.0, "examples_per_second": 16.0, "data_wait": 0.0}
    assert progress.line(80, row).endswith("eta 0:20")  # 20 steps in 20 s so far
