"""Comparison of a run with its folder and checkpoints: config, data and tokenizer must match."""

import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils

from big_retrieval import config as configs
from big_retrieval.config import Config, Phase, registry, schema
from big_retrieval.config.optimizer import in_mode
from big_retrieval.errors import PluginNeeded, UserError
from big_retrieval.inference.fingerprint import versions
from big_retrieval.inference.saved import config_json, parse_config, read_config
from big_retrieval.io.durable import make_folder, write_bytes
from big_retrieval.io.manifest import read_meta
from big_retrieval.train.data_fingerprint import RESTART, check_content, remedy_for

log = logging.getLogger(__name__)
RESTORE = "Copy config.json from the newest checkpoint, or use another --workdir."


def open_run_folder(workdir: Path, config: Config) -> None:
    """Compares a run folder with the config, and writes config.json.

    On resume the keys of `FREE_ON_RESUME` may differ. Before the first step all keys may differ, so
    that a failed start can be corrected and repeated.

    Raises:
      UserError: the folder cannot be written, has unreadable files, or belongs to a run of another
        config.
    """
    saved, begun = _read_folder(workdir)
    if saved is not None:  # rejects a folder with another program's config.json, too
        saved = _completed(saved, workdir)
    if begun:
        remedy = f"Use another --workdir, or resume with the values of {workdir / 'config.json'}."
        _check_config(saved, config, workdir, remedy)
    if jax.process_index() == 0:
        try:
            make_folder(workdir)
            if not begun:  # a failed start may have learned it from other captions
                (workdir / "tokenizer.json").unlink(missing_ok=True)
            write_bytes(workdir / "config.json", config_json(config, workdir))
        except OSError as error:
            raise UserError(
                f"--workdir {workdir} cannot be written: {error.strerror}. Choose another."
            ) from None
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("the run folder is opened")


def difference(saved: Any, config: Config) -> tuple[str, Any, Any] | None:
    """Returns the first changed key that a resumed run may not change: key, saved value, value."""
    changed = schema.differences(saved, schema.as_saved(config))
    return next((c for c in changed if not _free(c[0], config)), None)


def _check_config(saved: Any, config: Config, folder: Path, remedy: str) -> None:
    """Raises if a key, or a plugin's file, has changed and a resumed run may not change it."""
    changed = difference(saved, config)
    if changed is None:
        return
    key, old, new = changed
    for name, plugin in config.plugins.items():
        if key == f"config.plugins.{name}.sha256":
            raise UserError(
                f"{plugin.file} ({name}) has changed since {folder} was written. Restore the file, "
                f"{RESTART}"
            )
    raise UserError(f"Cannot resume {folder}: {key} was {old!r}, now {new!r}. {remedy}")


def _free(key: str, config: Config) -> bool:
    """Returns True if a resumed run may change a key."""
    by_slice = any(
        in_mode(config_part, phase.batch_stats).by_slice
        for phase in (Phase(), *config.optimizer.phases.values())
        for config_part in config.towers_and_heads().values()
    )
    if by_slice and key == "config.microbatch":  # the slices determine the batch statistics
        return False
    plugin = key.removeprefix("config.plugins.")
    if plugin != key and plugin.startswith("source/"):  # a source that only evaluators use is free
        trained_on = registry.plugins(config.data)
        if not any(plugin == name or plugin.startswith(f"{name}.") for name in trained_on):
            return True
    return configs.free_on_resume(key)


def _read_folder(workdir: Path) -> tuple[Any, bool]:
    """Returns config.json of a run folder (None if missing), and True if it has any progress."""
    path, checkpoints = workdir / "config.json", workdir / "checkpoints"
    for folder in (workdir, checkpoints):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--workdir {workdir}: {folder} is a file. Choose another folder.")
    try:
        saved = parse_config(path.read_text(), workdir) if path.exists() else None
        begun = checkpoints.exists() and any(checkpoints.iterdir())
        if (workdir / "metrics.jsonl").exists():
            with (workdir / "metrics.jsonl").open("rb") as file:
                rows = [*itertools.islice(file, 2)]
            begun |= len(rows) > 1 or any(not row.startswith(b'{"step": 0,') for row in rows)
    except OSError as error:
        file = error.filename or workdir
        raise UserError(
            f"{file} cannot be read: {error.strerror}. Use another --workdir."
        ) from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not readable JSON. {RESTORE}") from None
    if saved is None and begun:
        raise UserError(f"{workdir} has curves or checkpoints, but no config.json. {RESTORE}")
    return saved, begun


def _completed(saved: Any, workdir: Path) -> Any:
    """Returns a saved config as the current version saves it."""
    try:
        return schema.as_saved(configs.load_saved(saved))
    except PluginNeeded:
        return saved  # this run does not import the plugin, so a key differs
    except UserError as error:
        raise UserError(
            f"{workdir / 'config.json'} is not a config of this version: {error} {RESTORE}"
        ) from None


def check_fits(folder: Path, config: Config, tokenizer: bytes, expected: Mapping[str, Any]) -> None:
    """Compares a checkpoint with the run.

    Args:
      folder: the checkpoint, with valid checksums.
      expected: `TrainingRun.position` at the step of the folder's name.

    Raises:
      UserError: the checkpoint belongs to another step, config, data or tokenizer.
    """
    meta, remedy = read_meta(folder), f"Remove the checkpoint from the run folder, {RESTART}"
    if not {"step", "records", "next_records"} <= meta.keys():
        raise UserError(f"{folder / 'meta.json'} has no step or no records. {remedy}")
    if meta["step"] != expected["step"]:
        raise UserError(
            f"{folder} contains the state of step {meta['step']}, not of step {expected['step']}. "
            f"Rename the folder to {meta['step']}, or remove it."
        )
    _check_config(schema.as_saved(read_config(folder)), config, folder, remedy)
    if any(meta[key] != expected[key] for key in ("records", "next_records")):
        raise UserError(
            f"Cannot resume {folder} with other records: config.data had {meta['records']:,}, now "
            f"{expected['records']:,}. {remedy_for(meta.get('beside', {}))}"
        )
    _warn_of_versions(meta)
    check_content(folder, meta.get("beside", {}), expected["beside"])
    if (folder / "tokenizer.json").read_bytes() != tokenizer:
        current = folder.parent.parent / "tokenizer.json"
        raise UserError(
            f"{folder} was trained with another tokenizer than {current}. Copy tokenizer.json from "
            f"the checkpoint, {RESTART}"
        )


def _warn_of_versions(meta: Mapping[str, Any]) -> None:
    """Warns if the checkpoint was written with other versions of the software."""
    now = versions()
    changed = [
        f"{name} {old} -> {now[name]}"
        for name, old in meta.get("versions", {}).items()
        if name in now and now[name] != old
    ]
    if changed and jax.process_index() == 0:
        log.warning(
            f"versions changed since the checkpoint: {', '.join(changed)}. The resumed run may "
            "differ from an uninterrupted run."
        )
