"""Throughput leaves pauses out; the time left counts them; MFU."""

import time
from pathlib import Path

import jax
import pytest

from big_retrieval.train.loop import train
from big_retrieval.train.progress import TrainingProgress
from tests.helpers import rows, tiny


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


def test_a_run_tells_its_mfu_where_the_peak_of_the_device_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("big_retrieval.train.progress.peak_flops", lambda device: 1e9)
    train(tiny(total_steps=1), tmp_path, jax.devices()[:1])
    assert rows(tmp_path)[-1]["mfu"] > 0
