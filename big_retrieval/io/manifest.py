"""Checkpoints: folders whose files have the checksums in their manifest.

    checkpoints/<step>/state/          arrays (Orbax)
                       config.json     the whole configuration
                       tokenizer.json  the tokenizer
                       meta.json       step, data position, metrics, versions
                       manifest.json   size and SHA-256 of every file above; written last
                       evaluation.json metrics of an evaluation that ran after the save, if any

Orbax restores flipped bits without an error, and accepts half-deleted folders. A folder therefore
counts only with a manifest, and is used only after every checksum in it was recomputed.
"""

import errno
import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.io import durable

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
EVALUATION = "evaluation.json"
# Errors of bad blocks and broken file systems; EUCLEAN and EBADMSG are of Linux.
UNREADABLE = {errno.EIO, getattr(errno, "EUCLEAN", errno.EIO), errno.EBADMSG}


def to_json(value: Any) -> bytes:
    """Returns canonical JSON: sorted keys, one form for one value."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def sha256_file(path: Path) -> str:
    """Returns the SHA-256 of a file's content, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path) -> None:
    """Writes a manifest of every file below `folder`, with a digest of the manifest itself.

    All files and folders are synced first, then the manifest and the name of `folder`: older data
    may be removed afterwards. If a file cannot be read or synced (OSError), there is no manifest.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size, "sha256": sha256_file(path)
        }
        for path in paths if path != folder / MANIFEST
    }  # fmt: skip
    durable.sync_tree(folder)
    durable.write_bytes(folder / MANIFEST, _sealed("files", files))
    durable.sync_folder(folder.parent)


def damage(folder: Path, *, checksums_up_to: int | None = None) -> str | None:
    """Returns the damage of a folder with a manifest, or None if it is intact.

    A file that the disk cannot read is damaged. A file without permission, or on a stale network
    mount, raises a UserError instead.

    Args:
      checksums_up_to: maximum bytes of a file whose checksum is compared; None for no limit.
    """
    name = MANIFEST
    try:
        files = _unsealed("files", (folder / MANIFEST).read_bytes())
        if files is None:
            return f"{MANIFEST} is damaged"
        for name, entry in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != entry["bytes"]:
                return f"{name} has {path.stat().st_size} bytes instead of {entry['bytes']}"
            if checksums_up_to is not None and entry["bytes"] > checksums_up_to:
                continue
            if sha256_file(path) != entry["sha256"]:
                return f"{name} has another checksum"
    except FileNotFoundError:  # removed just now
        return f"{name} is missing"
    except OSError as error:
        if error.errno in UNREADABLE:
            return f"{name} cannot be read ({error.strerror})"
        raise UserError(f"Cannot read {folder / name}: {error.strerror}.") from None
    return None


def _sealed(name: str, value: Mapping[str, Any]) -> bytes:
    """Returns a JSON file with an object under `name` and the SHA-256 of the object."""
    return to_json({name: value, "sha256": hashlib.sha256(to_json(value)).hexdigest()})


def _unsealed(name: str, raw: bytes) -> dict[str, Any] | None:
    """Returns the object of a `_sealed` file; None if a byte of the file has changed."""
    try:
        value = json.loads(raw)[name]
        return value if raw == _sealed(name, value) else None
    except (ValueError, KeyError, TypeError):
        return None


def step_of(name: str) -> int | None:
    """Returns the step of a checkpoint folder's name; None for others, such as `012` or `²`."""
    step = int(name) if name.isascii() and name.isdecimal() else None
    return step if str(step) == name else None


def run_folder(checkpoint: Path) -> Path:
    """Returns RUN for a checkpoint folder RUN/checkpoints/STEP, and any other folder unchanged."""
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint


def complete_steps(root: Path) -> list[int]:
    """Returns the steps whose folder has a manifest, ascending."""
    if not root.is_dir():
        return []
    folders = {step_of(path.name): path for path in root.iterdir()}
    return sorted(
        step for step, path in folders.items() if step is not None and (path / MANIFEST).is_file()
    )


def read_meta(folder: Path) -> dict[str, Any]:
    """Returns meta.json of a checkpoint, with the metrics of an evaluation after the save."""
    return json.loads((folder / "meta.json").read_text()) | _late_evaluation(folder)


def write_evaluation(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Writes the metrics of a finished checkpoint; its other files stay unchanged."""
    values = {"evaluated": True, "metrics": dict(metrics)}
    durable.write_bytes(folder / EVALUATION, _sealed("meta", values))


def _late_evaluation(folder: Path) -> dict[str, Any]:
    """Returns the keys of meta.json that `write_evaluation` replaced; {} if it never ran."""
    path = folder / EVALUATION
    if not path.exists():
        return {}
    try:
        values = _unsealed("meta", path.read_bytes())
    except OSError:
        values = None
    if values is not None:
        return values
    log.warning(f"{path} is damaged and ignored; remove it")
    return {}


def newest_intact(root: Path, step: int | None = None, first: int | None = None) -> Path:
    """Returns a verified checkpoint folder to read from; moves nothing.

    Warns about each damaged checkpoint for which another one is used. A running trainer may remove
    old checkpoints meanwhile; the function then looks again.

    Args:
      root: a folder of checkpoints, or one checkpoint.
      step: required step; None for the newest intact one.
      first: step to prefer over newer ones, if it exists and is intact.
    """
    damaged: list[str] = []
    for folder in _candidates(root, step, first):
        reason = damage(folder)
        if reason is None:
            for text in damaged:
                log.warning(f"{text}; using step {folder.name} instead ({folder})")
            return folder
        if folder != root and not (folder / MANIFEST).is_file():  # pruned, or moved aside
            return newest_intact(root, step, first)
        damaged.append(f"{folder} is damaged ({reason})")
    reasons = "; ".join(damaged) or f"none is complete (with a {MANIFEST})"
    raise UserError(f"No usable checkpoint in {root}: {reasons}.")


def _candidates(root: Path, step: int | None, first: int | None) -> list[Path]:
    complete = complete_steps(root)
    if (root / MANIFEST).is_file() and (step is None or root.name == str(step)):
        return [root]
    if step is not None and step not in complete:
        steps = ", ".join(map(str, complete)) or "none"
        raise UserError(f"{root} has no complete checkpoint of step {step}; it has: {steps}.")
    folders = [root / str(s) for s in reversed(complete) if step in (None, s)]
    return sorted(folders, key=lambda folder: folder.name != str(first))
