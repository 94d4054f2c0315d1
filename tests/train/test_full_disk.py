"""A full disk ends a run with one error message, and keeps earlier files."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError

from big_retrieval import cli
from big_retrieval.cli import levels
from big_retrieval.errors import UserError
from big_retrieval.io import manifest
from big_retrieval.io.space import free_space, is_full, no_space, reason, write_error
from big_retrieval.runtime import locks
from big_retrieval.train import checkpoint
from big_retrieval.train.checkpoint import Checkpoints
from tests.helpers import ROOT, command, environment, results

FULL = (
    'RESOURCE_EXHAUSTED: Error writing local file "/x/_sharding": Failed writing: "/x/_sharding.'
    "__lock\": Failed to write 78866 bytes to file 13: No space left on device [os_error_code='28']"
)


def test_failed_save_names_folder_and_space_and_keeps_the_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: Any = {"a": np.zeros(3)}
    checkpoints = Checkpoints(tmp_path / "checkpoints", files={})
    checkpoints.save(1, state, {"step": 1})
    checkpoints.wait()

    def full(folder: Path) -> None:
        raise ValueError(FULL)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_manifest", full)
        checkpoints.save(2, state, {"step": 2})
        with pytest.raises(UserError) as problem:
            checkpoints.wait()
    assert re.fullmatch(
        rf"Cannot write {tmp_path}/checkpoints: No space left on device \(.* are free\)\. Make "
        r"room for a checkpoint, then repeat the same command, which resumes from checkpoint 1\.",
        str(problem.value),
    )
    assert [path.name for path in checkpoints.root.iterdir()] == ["1"]
    assert manifest.damage(checkpoints.root / "1") is None
    checkpoints.save(3, state, {"step": 3})  # nothing hangs, and a later save succeeds
    checkpoints.close()
    assert manifest.complete_steps(checkpoints.root) == [1, 3]


@pytest.mark.parametrize(("words", "shown"), [("Event loop is closed", False), ("a bug", True)])
def test_errors_of_orbaxs_event_loop_are_not_shown(
    words: str, shown: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", levels._unraisable)

    class Bad:
        def __del__(self) -> None:
            raise RuntimeError(words)

    Bad()
    assert (words in capsys.readouterr().err) == shown


def test_reason_is_short_and_free_space_needs_no_file(tmp_path: Path) -> None:
    assert reason(ValueError(FULL)) == "No space left on device"
    assert reason(OSError(13, "Permission denied")) == "Permission denied"
    assert reason(UserError("a sentence.")) == "a sentence"
    assert reason(KeyError("a\nb")) == "KeyError: 'a\\nb'"
    assert reason(ValueError()) == "ValueError"
    assert free_space(tmp_path / "a" / "b").endswith(" are free")
    assert not is_full(tmp_path / "a" / "b")


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (OSError(28, "full"), "Make room for it"),
        (OSError(122, "quota"), "Make room for it"),
        (ValueError(FULL), "Make room for it"),
        (OSError(30, "Read-only file system"), "Correct that"),
        (ValueError(FULL.replace("28", "30")), "Correct that"),
        (KeyError("a"), "Correct that"),
    ],
)
def test_write_error_gives_remedy_for_its_cause(problem: Exception, words: str) -> None:
    assert f"{words}, then repeat" in str(write_error(Path("a"), problem))


@pytest.mark.parametrize(
    "problem",
    [
        OSError(28, "No space left on device"),
        OSError("1000000 requested and 131056 written"),  # numpy.save
        RuntimeError("write() failed: No space left on device; writing /x.array_record"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
        ValueError(FULL),
        OSError(122, "Disk quota exceeded"),
    ],
    ids=lambda problem: f"{type(problem).__name__} {problem}"[:30],
)
def test_command_names_the_output_that_does_not_fit(tmp_path: Path, problem: Exception) -> None:
    out = tmp_path / "out"
    words = "Disk quota exceeded" if "quota" in str(problem) else "No space left on device"
    sentence = rf"Cannot write {out}: {words} \(.* are free\)\. Make room for it, then repeat "
    with pytest.raises(UserError, match=sentence), cli.owning(locks.beside(out), out):
        raise problem
    copying = OSError(28, "No space left on device", "/from", None, "/to")
    with pytest.raises(UserError, match=r"^Cannot write /to: No space left on device"):
        raise no_space(copying, out)
    with pytest.raises(ValueError, match="a bug"), cli.owning(locks.beside(out), out):
        raise ValueError("a bug")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1.5 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1500k", "none", str(place)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting needs the right to do so")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
def test_run_on_a_full_disk_ends_with_one_error_and_resumes_with_more_space(
    small: Path, warm_python: list[str]
) -> None:
    run = command(
        "main", "--config=configs/quickstart.py:runlocal", f"--workdir={small / 'run'}",
        "--config.total_steps=8", "--config.log_every=1", "--config.checkpoint_every=2",
        "--config.evals.test.data.count=16", "--config.evals.colours.data.count=16",
        "--config.report=False", python=warm_python,
    )  # fmt: skip

    def start() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            run, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600
        )

    found = start()
    assert found.returncode == 2, found.stderr
    [line] = found.stderr.splitlines()
    assert line.startswith(f"error: Cannot write {small / 'run'}")
    assert ": No space left on device (" in line
    assert " of 1.5 MiB are free). Make room for " in line
    for step in manifest.complete_steps(small / "run" / "checkpoints"):
        assert manifest.damage(small / "run" / "checkpoints" / str(step)) is None
    subprocess.run(["mount", "-o", "remount,size=100m", str(small)], check=True)
    assert is_full(small) is False
    found = start()
    assert found.returncode == 0, found.stderr
    assert results(small / "run")["steps"] == 8


def test_lacks_space_detects_full_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (4, 7):  # f_bavail of a full disk, f_favail of one without inodes
        changed = list(os.statvfs("/"))
        changed[place] = 0
        monkeypatch.setattr(os, "statvfs", lambda _, v=tuple(changed): os.statvfs_result(v))
        assert is_full(Path("/"))
        monkeypatch.undo()
