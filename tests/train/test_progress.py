"""Throughput leaves pauses out; the time left counts them; MFU."""

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


def test_mfu_is_the_share_of_the_peak_of_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    monkeypatch.setattr("big_retrieval.train.progress.peak_flops", lambda device: 1e3)
    sizes = {"first": 0, "total": 10, "batch_size": 8, "devices": 2}
    progress = TrainingProgress(**sizes, pair_flops=lambda: 50)
    clock += 4.0
    row = {"loss": 1.0, **progress.measure(10, waited=0.0)}
    assert row["mfu"] == 0.5  # 20 pairs of 50 operations a second, on 2 devices of 1,000
    assert "mfu 50.0%" in progress.line(10, row)
