"""Curves on the disk: damaged lines are dropped, other lines are kept."""

from pathlib import Path
from typing import Any

import pytest

from big_retrieval.train import logging
from big_retrieval.train.logging import Alarms, Metrics, curves, keep_old, read_rows
from tests.helpers import user_error


def test_read_rows_drops_damaged_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b'{"step": 1, "loss": 2.0}\n\xff\xfe\x00\n{"step": 2, "lo\xb0ss": 1.0}\n[3]\n{"loss": 4}\n'
        b'{"step": 5, "loss": 0.5}\n{"step": 6, "lo'
    )
    found = list(read_rows(path))
    assert [row["step"] for row in found] == [1, 2, 5]
    assert found[0] == {"step": 1, "loss": 2.0}
    assert list(read_rows(tmp_path / "nowhere")) == []


def test_metrics_continue_damaged_curves(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(
        b'{"step": 1, "loss": 2.0}\n\xff\n{"step": 3, "loss": 1.0}\n'
    )
    metrics = Metrics(tmp_path, restored_step=2)
    metrics.write(3, {"loss": 0.5})
    metrics.close()
    assert [(r["step"], r["loss"]) for r in read_rows(tmp_path / "metrics.jsonl")] == [
        (1, 2.0),
        (3, 0.5),
    ]
    assert (tmp_path / "curves.csv").read_text().split() == ["step,loss", "1,2.0", "3,0.5"]


def test_curves_merge_rows_of_a_step() -> None:
    rows = [{"step": 2, "loss": 1.0}, {"step": 1, "loss": 2.0}, {"step": 2, "R@1": 0.5}]
    assert curves(iter(rows)).split() == ["step,R@1,loss", "1,,2.0", "2,0.5,1.0"]


def test_keep_old_uses_free_names(tmp_path: Path) -> None:
    keep_old(tmp_path)  # without a file
    for content in ("a", "b", "c"):
        (tmp_path / "metrics.jsonl").write_text(content)
        keep_old(tmp_path)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {
        "metrics.jsonl.old": "a", "metrics.jsonl.old+": "b", "metrics.jsonl.old++": "c"
    }  # fmt: skip


def test_alarm_is_logged_when_it_begins_and_every_50_steps(said: list[str]) -> None:
    """Numbers in the warning may change from step to step."""
    alarms = Alarms()

    def logged(*warnings: str) -> list[str]:
        said.clear()
        alarms(warnings)
        return [*said]

    counts = [len(logged(f"{0.1 * i:.2f} active columns.")) for i in range(120)]
    assert [i for i, count in enumerate(counts) if count] == [0, 50, 100]
    assert logged("3 columns.", "rows.") == ["warning: 3 columns.", "warning: rows."]
    assert logged("4 columns.") == []
    assert logged() == []
    assert logged("4 columns.") == ["warning: 4 columns."]


def test_full_disk_error_names_metrics_and_free_space(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, restored_step=None)
    metrics.write(1, {"loss": 2.0})
    metrics._file.close()
    metrics._file = Path("/dev/full").open("ab")  # noqa: SIM115
    metrics._path.unlink()
    metrics._path.symlink_to("/dev/full")  # the open file still has this name
    words = f"Cannot write {tmp_path / 'metrics.jsonl'}: No space left on device ("
    with user_error(words, " are free). Make room for it, then repeat the same command"):
        metrics.write(2, {"loss": 1.0})


def test_curves_are_rewritten_if_a_tenth_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All writes together cost at most eleven times the last write."""
    read: list[int] = []

    def counted(path: Path) -> Any:
        found = list(read_rows(path))
        read.append(len(found))
        return iter(found)

    monkeypatch.setattr(logging, "read_rows", counted)
    metrics = Metrics(tmp_path, restored_step=None)
    for step in range(1, 301):
        metrics.write(step, {"loss": 1.0})
        metrics.write_curves()
    metrics.close()
    assert sum(read) <= 12 * 300
    assert read[-1] == 300
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 301
