"""Checkpoints without a run: order of disk writes, links, damage, mismatches."""

import contextlib
import errno
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flax.struct
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval.config import schema
from big_retrieval.data.build import RULES
from big_retrieval.errors import UserError
from big_retrieval.io import manifest
from big_retrieval.runtime import locks
from big_retrieval.train.checkpoint import Checkpoints
from big_retrieval.train.data_fingerprint import IMAGES, ROWS, TEXTS
from big_retrieval.train.resume import check_fits, open_run_folder
from tests.helpers import tiny, user_error
from tests.io.recorded import disk_calls, synced_before


@flax.struct.dataclass
class State:
    """A state of two arrays."""

    step: Any
    params: Any


@flax.struct.dataclass
class LargerState(State):
    """A state with a part that the checkpoint does not have."""

    stats: Any


def state(width: int = 3, **more: Any) -> State:
    return State(np.int32(0), {"kernel": np.zeros((2, width), np.float32), **more})


def abstract(like: State) -> Any:
    """Shapes and types of a state on one device."""
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), like)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    root, files = tmp_path / "checkpoints", {"config.json": b"{}", "tokenizer.json": b"{}"}
    with contextlib.closing(
        Checkpoints(root, files=files, logs=[tmp_path / "metrics.jsonl"])
    ) as checkpoints:
        yield checkpoints


def failing(code: int) -> Callable[..., Any]:
    """Returns a function that raises an OSError."""

    def fail(*args: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def test_save_compiles_nothing_for_small_replicated_arrays(checkpoints: Checkpoints) -> None:
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        compiled.append(event)

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    everywhere = jax.device_put(np.zeros((8, 24), np.float32), NamedSharding(mesh, P()))
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        checkpoints.save(1, state(bias=everywhere), {"step": 1})
        checkpoints.wait()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled  # the listener gets Orbax's events
    assert not [event for event in compiled if "compile" in event]


def save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(step, state(), {"step": step})
        checkpoints.wait()


def test_save_removes_older_steps_after_the_new_step_is_synced(checkpoints: Checkpoints) -> None:
    root = checkpoints.root
    (root.parent / "metrics.jsonl").write_text('{"step": 1}\n')
    save(checkpoints, 1, 2)
    with disk_calls() as calls:
        save(checkpoints, 3)
    new = root / "3" / "manifest.json"
    complete = calls.index(("rename", new))
    synced = synced_before(calls, complete)
    assert synced >= {root / "3", *(root / "3").rglob("*")} - {new}
    assert root.parent / "metrics.jsonl" in synced  # a resumed run needs its rows
    first_removed = calls.index(("remove", root / "1" / "manifest.json"))
    assert calls[complete + 1 : first_removed] == [("sync", root / "3"), ("sync", root)]
    removed = [path for kind, path in calls[:first_removed] if kind == "remove"]
    assert not any(path.is_relative_to(root / "1") for path in removed)
    assert manifest.complete_steps(root) == [2, 3]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_failed_sync_fails_the_save_and_prunes_nothing(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    save(checkpoints, 1, 2)
    monkeypatch.setattr(os, "fsync", failing(code))
    with pytest.raises(UserError, match=os.strerror(code)):
        save(checkpoints, 3)
    assert manifest.complete_steps(checkpoints.root) == [1, 2]
    assert all(manifest.damage(checkpoints.root / name) is None for name in "12")


def test_failed_save_raises_if_the_folder_cannot_be_listed(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.ESTALE))
    monkeypatch.setattr("big_retrieval.train.checkpoint.complete_steps", failing(errno.ESTALE))
    with pytest.raises(UserError, match=os.strerror(errno.ESTALE)):
        save(checkpoints, 1)


def test_save_succeeds_if_the_clock_jumps(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time

    def jumping() -> float:  # a day ahead when Orbax computes its remaining time
        return real() + 86_400 * (sys._getframe(1).f_code.co_name == "get_remaining_time")

    monkeypatch.setattr(time, "time", jumping)
    save(checkpoints, 1)
    assert manifest.complete_steps(checkpoints.root) == [1]


def test_save_succeeds_if_old_steps_cannot_be_listed(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr("big_retrieval.train.checkpoint.complete_steps", failing(errno.EIO))
        save(checkpoints, 3)
    assert manifest.complete_steps(checkpoints.root) == [1, 2, 3]
    save(checkpoints, 4)
    assert manifest.complete_steps(checkpoints.root) == [3, 4]


def test_save_removes_nothing_after_another_run_took_the_folder(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        if threading.current_thread() is not threading.main_thread():
            raise UserError("another run has the folder")

    monkeypatch.setattr(locks, "check", check)
    with pytest.raises(UserError, match="another run has the folder"):
        save(checkpoints, 1)
    assert (checkpoints.root / "1" / "state").is_dir()
    assert manifest.complete_steps(checkpoints.root) == []


@pytest.mark.parametrize(("mode", "kept"), [("min", [2, 4, 5]), ("max", [3, 4, 5])])
def test_prune_keeps_two_newest_and_best(tmp_path: Path, mode: str, kept: list[int]) -> None:
    checkpoints = Checkpoints(tmp_path, files={}, best_metric="rank", best_mode=mode)
    for step, value in enumerate((3.0, 1.0, 4.0, 2.0, 2.5), start=1):
        checkpoints.save(step, state(), {"step": step, "metrics": {"rank": value}})
    checkpoints.close()
    assert manifest.complete_steps(tmp_path) == kept


@pytest.mark.parametrize("steps", [(2, 3), (1,)], ids=["pruned", "saved again"])
def test_save_removes_the_link_of_a_linked_step_only(
    checkpoints: Checkpoints, tmp_path: Path, steps: tuple[int, ...]
) -> None:
    save(checkpoints, 1)
    (checkpoints.root / "1").rename(tmp_path / "kept")
    (checkpoints.root / "1").symlink_to(tmp_path / "kept")
    inode = (tmp_path / "kept" / "manifest.json").stat().st_ino
    save(checkpoints, *steps)
    assert not (checkpoints.root / "1").is_symlink()
    assert manifest.damage(tmp_path / "kept") is None
    assert (tmp_path / "kept" / "manifest.json").stat().st_ino == inode


def test_save_ignores_folders_that_are_not_steps(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)
    for name in ("²", "001", "notes"):
        shutil.copytree(checkpoints.root / "1", checkpoints.root / name)
    save(checkpoints, 2, 3)
    assert {p.name for p in checkpoints.root.iterdir()} == {"²", "001", "notes", "2", "3"}
    assert checkpoints.newest() == 3


def test_newest_moves_a_checkpoint_with_empty_files_aside(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1, 2)
    arrays = [p for p in (checkpoints.root / "2" / "state").rglob("*") if p.is_file()]
    assert len(arrays) > 4
    for path in arrays:
        path.write_bytes(b"")
    assert manifest.newest_intact(checkpoints.root) == checkpoints.root / "1"
    assert checkpoints.newest() == 1
    assert (checkpoints.root / "2.damaged").is_dir()


def test_io_errors_are_damage_and_missing_permission_is_an_error(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 1, 2)
    bad, code, real = checkpoints.root / "2" / "meta.json", errno.EIO, manifest.sha256_file

    def read(path: Path) -> str:
        if path == bad:
            raise OSError(code, os.strerror(code))  # like `read`, without a file name
        return real(path)

    monkeypatch.setattr(manifest, "sha256_file", read)
    assert manifest.damage(bad.parent) == "meta.json cannot be read (Input/output error)"
    code = errno.EACCES
    with pytest.raises(UserError, match=r"Cannot read .*2/meta\.json: Permission denied"):
        checkpoints.newest()
    assert manifest.complete_steps(checkpoints.root) == [1, 2]  # nothing is moved aside
    bad.unlink()
    assert manifest.damage(checkpoints.root / "2") == "meta.json is missing"
    (checkpoints.root / "2" / "manifest.json").unlink()
    assert manifest.damage(checkpoints.root / "2") == "manifest.json is missing"


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (state(4), "params/kernel has shape (2, 3) instead of (2, 4)"),
        (state(bias=np.zeros(3, np.float32)), "it has no params/bias"),
        (LargerState(np.int32(0), state().params, {}), "it has no stats"),
        (State(np.int32(0), {}), "it has params/kernel, which the run does not have"),
        (
            State(np.int32(0), {"kernel": np.zeros((2, 3), np.float16)}),
            "params/kernel has type float32 instead of float16",
        ),
    ],
)
def test_restore_names_the_array_that_does_not_fit(
    checkpoints: Checkpoints, expected: State, words: str
) -> None:
    save(checkpoints, 1)
    with user_error(words, str(checkpoints.root / "1")):
        checkpoints.restore(1, abstract(expected))


PRINTS = {"goal": "ef", ROWS: "gh", TEXTS: "ij", IMAGES: "kl"}
META = {"step": 6, "records": 100, "next_records": "ab", "beside": PRINTS}


@pytest.fixture
def fits(tmp_path: Path) -> Callable[..., None]:
    """Writes a checkpoint's small files, and compares them with the run of `tiny()`."""

    def check(
        meta: Any = META, tokenizer: bytes = b"words", prints: Any = None, **changes: Any
    ) -> None:
        saved = schema.to_plain(tiny(**changes))
        (tmp_path / "config.json").write_bytes(manifest.to_json(saved))
        (tmp_path / "tokenizer.json").write_bytes(tokenizer)
        meta = {**meta, "beside": {**PRINTS, **(prints or {})}}
        (tmp_path / "meta.json").write_text(json.dumps(meta))
        check_fits(tmp_path, tiny(), b"words", META)

    return check


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"checkpoint_every": 1},
        {"mesh__fsdp": 2},
        {"losses__main__block": 4},
        {"loader__threads": 1},
    ],
)
def test_check_fits_accepts_changed_free_keys(
    fits: Callable[..., None], changes: dict[str, Any]
) -> None:
    fits(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer__lr": 0.5}, "config.optimizer.lr was 0.5, now 0.002"),
        ({"towers__image__width": 32}, "config.towers.image.width was 32, now 16"),
        ({"seed": 7}, "config.seed was 7, now "),
        ({"meta": {**META, "step": 3}}, "the state of step 3, not of step 6"),
        ({"meta": {**META, "records": 99}}, "other records: config.data had 99, now 100"),
        ({"meta": {**META, "next_records": "cd"}}, "other records"),
        ({"prints": {ROWS: "other"}}, "other rows than config.data has now"),
        ({"prints": {ROWS: "other", RULES: "0"}}, "by other rules than the version that wrote"),
        ({"prints": {TEXTS: "other"}}, "other texts than config.data has now"),
        ({"prints": {IMAGES: "other"}}, "other image files than config.data has now"),
        ({"prints": {"goal": "other"}}, "other content of config.fields.goal.file"),
        ({"meta": {"step": 6}}, "meta.json has no step"),
        ({"tokenizer": b"other"}, "another tokenizer"),
        ({"tokenizer": b"\xff"}, "another tokenizer"),
    ],
)
def test_check_fits_names_the_difference(
    fits: Callable[..., None], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with user_error(words, str(tmp_path)):
        fits(**changes)


def test_open_run_folder_rejects_another_programs_config_unchanged(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"config\.json is not a config of this version"):
        open_run_folder(tmp_path, tiny())
    assert (tmp_path / "config.json").read_text() == '{"model_type": "bert"}'
    assert (tmp_path / "tokenizer.json").exists()
