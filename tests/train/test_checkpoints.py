"""Checkpoints without a run: what is synced before what goes, links, damage, what does not fit."""

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

from big_retrieval import config
from big_retrieval.config import recipe, schema
from big_retrieval.errors import UserError
from big_retrieval.io import manifest
from big_retrieval.runtime import locks
from big_retrieval.train.checkpoint import Checkpoints
from big_retrieval.train.resume import check_fits, open_run_folder
from tests.helpers import tiny, user_error
from tests.io.recorded import disk_calls, synced_before


@flax.struct.dataclass
class State:
    """A state of two arrays."""

    step: Any
    params: Any


@flax.struct.dataclass
class LaterState(State):
    """A state with a part that older checkpoints do not have."""

    stats: Any


def state(width: int = 3, **more: Any) -> State:
    """A state; further parameters by name."""
    return State(np.int32(0), {"kernel": np.zeros((2, width), np.float32), **more})


def abstract(like: State) -> Any:
    """Shapes and types of a state on one device."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), like)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    found = Checkpoints(
        tmp_path / "checkpoints",
        files={"config.json": b"{}", "tokenizer.json": b"{}"},
        logs=[tmp_path / "metrics.jsonl"],
    )
    yield found
    found.close()


def test_nothing_is_compiled_to_save_small_arrays_that_all_devices_hold(
    checkpoints: Checkpoints,
) -> None:
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
    assert compiled  # what Orbax does is heard
    assert not [event for event in compiled if "compile" in event]


def save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(step, state(), {"step": step})
        checkpoints.wait()


def test_older_steps_go_only_when_the_new_one_is_on_the_disk(checkpoints: Checkpoints) -> None:
    root = checkpoints.root
    (root.parent / "metrics.jsonl").write_text('{"step": 1}\n')
    save(checkpoints, 1, 2)
    with disk_calls() as calls:
        save(checkpoints, 3)
    vouched = calls.index(("rename", root / "3" / "manifest.json"))
    listed = {root / "3" / "manifest.json", *(root / "3").rglob("*")}
    before = synced_before(calls, vouched)
    assert before >= {root / "3", *listed} - {root / "3" / "manifest.json"}
    assert root.parent / "metrics.jsonl" in before  # a resumed run relies on its rows
    first_gone = calls.index(("remove", root / "1" / "manifest.json"))
    assert calls[vouched + 1 : first_gone] == [("sync", root / "3"), ("sync", root)]
    gone = [path for kind, path in calls[:first_gone] if kind == "remove"]
    assert not any(path.is_relative_to(root / "1") for path in gone)
    assert manifest.complete_steps(root) == [2, 3]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_file_that_cannot_be_synced_is_a_failed_save_and_nothing_is_pruned(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    save(checkpoints, 1, 2)

    def fsync(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UserError, match=os.strerror(code)):
        save(checkpoints, 3)
    assert manifest.complete_steps(checkpoints.root) == [1, 2]
    assert all(manifest.damage(checkpoints.root / name) is None for name in "12")


def test_a_failed_save_ends_the_run_even_where_the_folder_cannot_be_listed_any_more(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr("big_retrieval.train.checkpoint.complete_steps", fail)
    with pytest.raises(UserError, match=os.strerror(errno.ESTALE)):
        save(checkpoints, 1)


def test_a_clock_that_jumps_ends_no_save(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time

    def jumping() -> float:  # a day ahead wherever Orbax asks how long it may still wait
        return real() + 86_400 * (sys._getframe(1).f_code.co_name == "get_remaining_time")

    monkeypatch.setattr(time, "time", jumping)
    save(checkpoints, 1)
    assert manifest.complete_steps(checkpoints.root) == [1]


def test_old_steps_that_cannot_be_listed_stay_and_the_save_is_none_the_worse(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    save(checkpoints, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr("big_retrieval.train.checkpoint.complete_steps", fail)
        save(checkpoints, 3)
    assert manifest.complete_steps(checkpoints.root) == [1, 2, 3]
    save(checkpoints, 4)
    assert manifest.complete_steps(checkpoints.root) == [3, 4]


def test_a_save_whose_folder_has_another_owner_meanwhile_removes_nothing(
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
def test_the_two_newest_and_the_best_are_kept(tmp_path: Path, mode: str, kept: list[int]) -> None:
    checkpoints = Checkpoints(tmp_path, files={}, best_metric="rank", best_mode=mode)
    for step, value in enumerate((3.0, 1.0, 4.0, 2.0, 2.5), start=1):
        checkpoints.save(step, state(), {"step": step, "metrics": {"rank": value}})
    checkpoints.close()
    assert manifest.complete_steps(tmp_path) == kept


def test_of_a_linked_step_only_the_link_goes(checkpoints: Checkpoints, tmp_path: Path) -> None:
    save(checkpoints, 1)
    (checkpoints.root / "1").rename(tmp_path / "kept")
    (checkpoints.root / "1").symlink_to(tmp_path / "kept")
    save(checkpoints, 2, 3)
    assert not (checkpoints.root / "1").is_symlink()
    assert manifest.damage(tmp_path / "kept") is None


def test_saving_over_a_linked_step_leaves_its_target(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    save(checkpoints, 1)
    (checkpoints.root / "1").rename(tmp_path / "kept")
    (checkpoints.root / "1").symlink_to(tmp_path / "kept")
    inode = (tmp_path / "kept" / "manifest.json").stat().st_ino
    save(checkpoints, 1)
    assert not (checkpoints.root / "1").is_symlink()
    assert (tmp_path / "kept" / "manifest.json").stat().st_ino == inode


def test_folders_that_are_no_steps_survive_saves_and_stop_none(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)
    for name in ("²", "001", "notes"):
        shutil.copytree(checkpoints.root / "1", checkpoints.root / name)
    save(checkpoints, 2, 3)
    assert {p.name for p in checkpoints.root.iterdir()} == {"²", "001", "notes", "2", "3"}
    assert checkpoints.newest() == 3


def test_files_of_no_bytes_behind_a_valid_manifest_are_noticed(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1, 2)
    arrays = [p for p in (checkpoints.root / "2" / "state").rglob("*") if p.is_file()]
    assert len(arrays) > 4
    for path in arrays:
        path.write_bytes(b"")
    assert manifest.newest_intact(checkpoints.root) == checkpoints.root / "1"
    assert checkpoints.newest() == 1
    assert (checkpoints.root / "2.damaged").is_dir()


def test_a_file_on_bad_blocks_is_damage_and_a_file_without_permission_is_a_sentence(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 1, 2)
    bad, code, real = checkpoints.root / "2" / "meta.json", errno.EIO, manifest.sha256_file

    def read(path: Path) -> str:
        if path == bad:
            raise OSError(code, os.strerror(code))  # as `read` has it: without a file's name
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
    ("wanted", "words"),
    [
        (state(4), "params/kernel has shape (2, 3) instead of (2, 4)"),
        (state(bias=np.zeros(3, np.float32)), "it has no params/bias"),
        (LaterState(np.int32(0), state().params, {}), "it has no stats"),
        (State(np.int32(0), {}), "it has params/kernel, which the run does not have"),
        (
            State(np.int32(0), {"kernel": np.zeros((2, 3), np.float16)}),
            "params/kernel has type float32 instead of float16",
        ),
    ],
)
def test_an_array_that_does_not_fit_is_named(
    checkpoints: Checkpoints, wanted: State, words: str
) -> None:
    save(checkpoints, 1)
    with user_error(words, str(checkpoints.root / "1")):
        checkpoints.restore(1, abstract(wanted))


META = {"step": 6, "records": 100, "next_records": "ab", "beside": {"goal": "ef"}}


@pytest.fixture
def fits(tmp_path: Path) -> Callable[..., None]:
    """Writes a checkpoint's small files, and compares them with the run of `tiny()`."""

    def check(meta: Any = META, tokenizer: str | bytes = "words", **changes: Any) -> None:
        saved = schema.to_plain(tiny(**changes))
        (tmp_path / "config.json").write_bytes(manifest.to_json(saved))
        content = tokenizer.encode() if isinstance(tokenizer, str) else tokenizer
        (tmp_path / "tokenizer.json").write_bytes(content)
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
def test_a_checkpoint_of_this_run_fits(fits: Callable[..., None], changes: dict[str, Any]) -> None:
    fits(**changes)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer__lr": 0.5}, ["config.optimizer.lr = 0.5, this run has 0.002"]),
        ({"towers__image__width": 32}, ["config.towers.image.width = 32, this run has 16"]),
        ({"seed": 7}, ["config.seed = 7, this run has "]),
        ({"meta": {**META, "step": 3}}, ["holds the state of step 3, not of step 6"]),
        ({"meta": {**META, "records": 99}}, ["other records", "99", "100"]),
        ({"meta": {**META, "next_records": "cd"}}, ["other records"]),
        ({"meta": {**META, "beside": {"goal": "gh"}}}, ["content of config.fields.goal.file"]),
        ({"meta": {"step": 6}}, ["meta.json does not say"]),
        ({"tokenizer": "other"}, ["another tokenizer than", "put the checkpoint's tokenizer.json"]),
        ({"tokenizer": b"\xff"}, ["another tokenizer than"]),
    ],
)
def test_a_checkpoint_of_another_run_is_named_with_what_differs(
    fits: Callable[..., None], tmp_path: Path, given: dict[str, Any], words: list[str]
) -> None:
    with user_error(*words, str(tmp_path)):
        fits(**given)


def test_folder_with_another_programs_config_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="is no configuration of this version"):
        open_run_folder(tmp_path, tiny())
    assert (tmp_path / "config.json").read_text() == '{"model_type": "bert"}'
    assert (tmp_path / "tokenizer.json").exists()


def test_run_from_before_a_key_resumes_with_its_old_value(tmp_path: Path) -> None:
    averaged = tiny(optimizer__averaging=recipe.entry(config.Ema(), decay=0.9))
    saved = schema.to_plain(averaged)
    del saved["optimizer"]["averaging"]["warmup"]
    (tmp_path / "config.json").write_bytes(manifest.to_json(saved))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    with pytest.raises(UserError, match=r"averaging\.warmup = False, this run has"):
        open_run_folder(tmp_path, averaged)
    as_before = recipe.entry(config.Ema(), decay=0.9, warmup=False)
    open_run_folder(tmp_path, tiny(optimizer__averaging=as_before))
