"""Files are synced before a manifest or a name refers to them."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from big_retrieval.io import durable, manifest
from big_retrieval.retrieval import folder as index_folder
from big_retrieval.runtime import atomic_folder
from tests.io.recorded import disk_calls, synced_before


def tree(folder: Path) -> list[Path]:
    """A folder with files at three depths; returns every file and folder in it."""
    (folder / "state" / "d").mkdir(parents=True)
    for name in ("meta.json", "state/manifest", "state/d/array"):
        (folder / name).write_text(name)
    return [folder, *folder.rglob("*")]


def test_write_bytes_syncs_in_order(tmp_path: Path) -> None:
    with disk_calls() as calls:
        durable.write_bytes(tmp_path / "a", b"content")
    assert (tmp_path / "a").read_bytes() == b"content"
    partial = tmp_path / "a.partial"
    assert calls == [("sync", partial), ("rename", tmp_path / "a"), ("sync", tmp_path)]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failed_write_bytes_names_the_file_and_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    durable.write_bytes(tmp_path / "a", b"old")

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match=rf"No space left.*{tmp_path}/a"):
        durable.write_bytes(tmp_path / "a", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_write_manifest_syncs_all_files_first(tmp_path: Path) -> None:
    folder = tmp_path / "3"
    everything = tree(folder)
    with disk_calls() as calls:
        manifest.write_manifest(folder)
    place = calls.index(("rename", folder / "manifest.json"))
    assert synced_before(calls, place) >= set(everything)
    assert calls[place + 1 :] == [("sync", folder), ("sync", tmp_path)]
    assert manifest.damage(folder) is None


def test_sync_tree_syncs_leaves_first(tmp_path: Path) -> None:
    everything = tree(tmp_path / "3")
    with disk_calls() as calls:
        durable.sync_tree(tmp_path / "3")
    order = [path for _, path in calls]
    assert sorted(order) == sorted(everything)
    assert all(order.index(path) < order.index(path.parent) for path in order[:-1])


def test_index_is_synced_before_its_name(tmp_path: Path) -> None:
    out = tmp_path / "out" / "index"
    with disk_calls() as began:
        partial = index_folder.begin(out)
    assert ("sync", tmp_path) in began  # the new folder `out`
    (partial / "ids.npy").write_bytes(b"ids")
    with disk_calls() as calls:
        index_folder.finish(partial, out, index_folder.About("dense"))
    whole = {partial, *(partial / path.name for path in out.iterdir())}
    assert synced_before(calls, calls.index(("rename", out))) >= whole - {partial / "manifest.json"}
    assert ("sync", partial / "manifest.json.partial") in calls
    assert calls[-2:] == [("rename", out), ("sync", out.parent)]
    index_folder.open_folder(out, verify=True)


def test_folder_without_a_manifest_is_synced_before_its_name(tmp_path: Path) -> None:
    partial = atomic_folder.begin(tmp_path / "out")
    (partial / "page.html").write_text("page")
    with disk_calls() as calls:
        atomic_folder.give_name(partial, tmp_path / "out")
    place = calls.index(("rename", tmp_path / "out"))
    assert synced_before(calls, place) == {partial, partial / "page.html"}
    assert calls[place + 1 :] == [("sync", tmp_path)]


def test_make_folder_syncs_parents(tmp_path: Path) -> None:
    with disk_calls() as calls:
        durable.make_folder(tmp_path / "a" / "b")
        durable.make_folder(tmp_path / "a" / "b")
    assert calls == [("sync", tmp_path), ("sync", tmp_path / "a")]


@pytest.mark.parametrize(
    ("code", "on_folders", "fails"),
    [
        (errno.ENOTSUP, True, False),
        (errno.EINVAL, True, False),
        (errno.EACCES, True, False),
        (errno.EIO, True, True),
        (errno.EIO, False, True),
        (errno.ENOSPC, False, True),
        (errno.EINVAL, False, True),
    ],
)
def test_only_unsupported_folder_syncs_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, on_folders: bool, fails: bool
) -> None:
    def fsync(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}") == on_folders:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    tree(tmp_path / "3")
    if fails:
        with pytest.raises(OSError, match=os.strerror(code)):
            manifest.write_manifest(tmp_path / "3")
        assert not (tmp_path / "3" / "manifest.json").exists()
    else:
        manifest.write_manifest(tmp_path / "3")
        assert manifest.damage(tmp_path / "3") is None


def test_folder_that_cannot_be_opened_fails_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.open

    def open_file(path: object, *args: int, **more: int) -> int:
        if path == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return original(path, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_file)
    durable.write_bytes(tmp_path / "a", b"content")
    assert (tmp_path / "a").read_bytes() == b"content"


def test_remove_follows_no_links(tmp_path: Path) -> None:
    outside = tree(tmp_path / "outside")
    (tmp_path / "folder").mkdir()
    for place in ("link", "folder/link"):
        (tmp_path / place).symlink_to(tmp_path / "outside")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("link", "folder", "dangling", "never"):
        durable.remove(tmp_path / name)
    assert list(tmp_path.iterdir()) == [tmp_path / "outside"]
    assert all(path.exists() for path in outside)


@pytest.mark.parametrize("name", ["²", "012", "٣", "3.damaged", "+3", "-3", " 3", "3_0", "x"])
def test_step_of_rejects_other_names(tmp_path: Path, name: str) -> None:
    tree(tmp_path / "3")
    manifest.write_manifest(tmp_path / "3")
    shutil.copytree(tmp_path / "3", tmp_path / name)
    assert manifest.step_of(name) is manifest.step_of("") is None
    assert manifest.complete_steps(tmp_path) == [3]
    assert manifest.newest_intact(tmp_path) == tmp_path / "3"
    assert [manifest.step_of(step) for step in ("0", "7", "100000")] == [0, 7, 100_000]
