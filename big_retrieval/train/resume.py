"""Comparison of a run with its folder and checkpoints: config, data and tokenizer must be equal."""

import itertools
import json
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
from big_retrieval.inference.saved import read_config
from big_retrieval.io.durable import make_folder, write_bytes
from big_retrieval.io.manifest import read_meta, to_json
from big_retrieval.train.data_fingerprint import ANEW, changed_files, check_content, check_rules

log = logging.getLogger(__name__)
RESTORE = "put the config.json of the newest checkpoint in its place, or use another --workdir"


def open_run_folder(workdir: Path, config: Config) -> None:
    """Compares a run folder with the config, and writes config.json.

    On resume the keys of `FREE_ON_RESUME` may differ. If nothing was trained yet, all keys may, so
    that a failed start can be corrected and repeated.

    Raises:
      UserError: the folder cannot be written, has unreadable files, or belongs to a run of another
        config (both values are shown).
    """
    saved, begun = _read_folder(workdir)
    if saved is not None:  # refuses a folder with another program's config.json, too
        saved = _completed(saved, workdir)
    if begun:
        remedy = f"use another --workdir, or resume with the values of {workdir / 'config.json'}."
        holder, since = f"{workdir} holds a run with", f"the run in {workdir} began"
        _check_config(saved, config, holder, since, remedy)
    if jax.process_index() == 0:
        try:
            make_folder(workdir)
            if not begun:  # a failed start may have learned it from other captions
                (workdir / "tokenizer.json").unlink(missing_ok=True)
            write_bytes(workdir / "config.json", to_json(schema.to_plain(config)))
        except OSError as problem:
            raise UserError(
                f"--workdir {workdir} cannot be written: {problem.strerror}; choose another."
            ) from None
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("the run folder is opened")


def difference(saved: Any, config: Config) -> tuple[str, Any, Any] | None:
    """Returns the first changed key that a resumed run may not change: key, saved value, value."""
    changed = schema.differences(saved, schema.as_saved(config))
    return next((c for c in changed if not _free(c[0], config)), None)


def _check_config(saved: Any, config: Config, holder: str, since: str, remedy: str) -> None:
    """Raises if a key, or a plugin's file, has changed and a resumed run may not change it."""
    changed = difference(saved, config)
    if changed is None:
        return
    key, old, new = changed
    for name, plugin in config.plugins.items():
        if key == f"config.plugins.{name}.sha256":
            kind, _, tag = name.partition("/")
            raise UserError(
                f"{plugin.file}, which defines the {kind} {tag!r}, has changed since {since}: "
                f"restore the file, {ANEW}"
            )
    raise UserError(f"{holder} {key} = {old!r}, this run has {new!r}: {remedy}")


def _free(key: str, config: Config) -> bool:
    """Returns True if a key may differ; batch norms over slices make `microbatch` count."""
    by_slice = any(
        in_mode(part, phase.batch_stats).by_slice
        for phase in (Phase(), *config.optimizer.phases.values())
        for part in config.towers_and_heads().values()
    )
    if by_slice and key == "config.microbatch":
        return False
    own = key.removeprefix("config.plugins.")
    if own != key and own.startswith("source/"):  # sources of evaluators alone are free
        trained_on = registry.plugins(config.data)
        if not any(own == name or own.startswith(f"{name}.") for name in trained_on):
            return True
    return configs.free_on_resume(key)


def _read_folder(workdir: Path) -> tuple[Any, bool]:
    """Returns config.json of a run folder (None if missing), and True if a run began there.

    A run has begun if the folder has checkpoints, or metrics of another step than 0.
    """
    path, checkpoints = workdir / "config.json", workdir / "checkpoints"
    for folder in (workdir, checkpoints):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--workdir {workdir}: {folder} is a file; give another folder.")
    try:
        saved = json.loads(path.read_text()) if path.exists() else None
        begun = checkpoints.exists() and any(checkpoints.iterdir())
        if (workdir / "metrics.jsonl").exists():
            with (workdir / "metrics.jsonl").open("rb") as file:
                rows = [*itertools.islice(file, 2)]
            begun |= len(rows) > 1 or any(not row.startswith(b'{"step": 0,') for row in rows)
    except OSError as problem:
        raise UserError(
            f"{problem.filename or workdir} cannot be read: {problem.strerror}; "
            "use another --workdir."
        ) from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not readable JSON; {RESTORE}.") from None
    if saved is None and begun:
        raise UserError(
            f"{workdir} has curves or checkpoints but no config.json to say what made them: "
            f"{RESTORE}."
        )
    return saved, begun


def _completed(saved: Any, workdir: Path) -> Any:
    """Returns a saved config with the defaults of new keys."""
    try:
        return schema.as_saved(configs.load_saved(saved))
    except PluginNeeded:
        return saved  # another run's plugin, as this run's are imported: a key will differ
    except UserError as problem:
        sentence = str(problem).rstrip(".")
        raise UserError(
            f"{workdir / 'config.json'} is no configuration of this version ({sentence}); "
            f"{RESTORE}."
        ) from None


def check_fits(folder: Path, config: Config, tokenizer: bytes, expected: Mapping[str, Any]) -> None:
    """Compares a checkpoint with the run.

    Args:
      folder: the checkpoint, with valid checksums.
      expected: `TrainingRun.position` at the step of the folder's name.

    Raises:
      UserError: the checkpoint is of another step, configuration, data or tokenizer.
    """
    meta, remedy = read_meta(folder), f"remove the checkpoint from the run folder, {ANEW}"
    if not {"step", "records", "next_records"} <= meta.keys():
        raise UserError(
            f"{folder / 'meta.json'} does not say which step and records the checkpoint is of: "
            f"{remedy}"
        )
    if meta["step"] != expected["step"]:
        raise UserError(
            f"{folder} holds the state of step {meta['step']}, not of step {expected['step']}: "
            f"give the folder the name {meta['step']}, or remove it."
        )
    saved, written = schema.as_saved(read_config(folder)), f"{folder} was written"
    _check_config(saved, config, f"{folder} was trained with", written, remedy)
    if any(meta[key] != expected[key] for key in ("records", "next_records")):
        check_rules(folder, meta.get("beside", {}))
        raise UserError(
            f"{folder} goes on with other records than config.data gives now (it had "
            f"{meta['records']:,}, now {expected['records']:,}): restore "
            f"{changed_files(folder, config)}, {ANEW}"
        )
    _warn_of_versions(meta)
    check_content(folder, config, meta.get("beside", {}), expected["beside"])
    if (folder / "tokenizer.json").read_bytes() != tokenizer:
        kept = folder.parent.parent / "tokenizer.json"
        raise UserError(
            f"{folder} was trained with another tokenizer than {kept} holds: put the checkpoint's "
            f"tokenizer.json in its place, {ANEW}"
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
            f"versions changed since the checkpoint: {', '.join(changed)}. The run resumes, but "
            "need not be bit-identical to an uninterrupted one."
        )
