"""What a resumed run must have in common with the run folder, and with the checkpoint in it."""

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils

from big_retrieval import config as configs
from big_retrieval.config import Config, Phase, registry, schema
from big_retrieval.config.batch_norms import in_mode, parts_of
from big_retrieval.config.older_runs import as_before
from big_retrieval.errors import PluginNeeded, UserError
from big_retrieval.inference.fingerprint import versions
from big_retrieval.inference.saved import read_config
from big_retrieval.io.durable import make_folder, write_bytes
from big_retrieval.io.manifest import read_meta, to_json

log = logging.getLogger(__name__)
TEXTS, IMAGES = "config.data", "config.data.images"  # no name of a field has a dot
ANEW = "or start anew in another --workdir."
RESTORE = "put the config.json of the newest checkpoint in its place, or use another --workdir"


def open_run_folder(workdir: Path, config: Config) -> None:
    """Makes the run folder this config's, or makes sure that it is.

    Writes config.json where there is none. On resume the keys of `FREE_ON_RESUME` may differ; all
    may where nothing was trained yet, so that a start that failed can be put right and repeated.

    Raises:
      UserError: the folder cannot be written, holds something unreadable, or belongs to a run of
        another config (both values are shown).
    """
    path = workdir / "config.json"
    # Written and read once, as the saved one was: tuples are lists in both.
    mine = schema.as_saved(config)
    theirs = _saved(workdir)
    changed = None if theirs is None else difference(theirs, config)
    if changed is not None and _begun(workdir):
        key, old, new = changed
        if part := changed_part(key, config):
            raise UserError(f"{part} since the run in {workdir} began: restore the file, {ANEW}")
        raise UserError(
            f"{workdir} holds a run with {key} = {old!r}, this one has {new!r}: use "
            "another --workdir, or the same config to resume."
        )
    if jax.process_index() == 0:
        try:
            make_folder(workdir)
            if not _begun(workdir):  # a failed start may have learned it from other captions
                (workdir / "tokenizer.json").unlink(missing_ok=True)
            write_bytes(path, to_json(mine))
        except OSError as problem:
            raise UserError(
                f"--workdir {workdir} cannot be written: {problem.strerror}; choose another."
            ) from None
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("the run folder is opened")


def with_values_of_the_run(workdir: Path, config: Config) -> Config:
    """Returns the config with keys that an old run may lack (`schema.BEFORE`) as it was trained."""
    with contextlib.suppress(OSError, ValueError, RecursionError):  # `open_run_folder` says them
        raw = json.loads((workdir / "config.json").read_text()) if _begun(workdir) else None
        config, messages = as_before(config, raw)
        for message in messages:
            log.warning(f"resuming with {message}, as the run in {workdir} began")
    return config


def difference(saved: Any, config: Config) -> tuple[str, Any, Any] | None:
    """The first key that a resumed run may not change but did: key, saved value, value now.

    Args:
      saved: the plain form of a saved configuration of this version.
      config: of the run.
    """
    mine = schema.as_saved(config)
    changed = schema.differences(saved, mine)
    return next((c for c in changed if not _free(c[0], config)), None)


def changed_part(key: str, config: Config) -> str:
    """What to say where a run and a checkpoint differ in the file of a part of a user's own.

    Args:
      key: of `difference`.
      config: of the run.

    Returns:
      The beginning of a sentence; "" where the key is another.
    """
    for name, plugin in config.plugins.items():
        if key == f"config.plugins.{name}.sha256":
            kind, _, tag = name.partition("/")
            return f"{plugin.file}, which defines the {kind} {tag!r}, has changed"
    return ""


def _free(key: str, config: Config) -> bool:
    """Whether a key may differ; batch norms that go by slices make these a part of the training."""
    by_slice = any(
        in_mode(part, phase.batch_stats).by_slice
        for phase in (Phase(), *config.optimizer.phases.values())
        for part in parts_of(config).values()
    )
    if by_slice and key == "config.microbatch":
        return False
    own = key.removeprefix("config.plugins.")
    if own != key and own.startswith("source/"):  # that of an evaluator alone is free, as `evals`
        trained_on = registry.plugins(config.data)
        if not any(own == name or own.startswith(f"{name}.") for name in trained_on):
            return True
    return configs.free_on_resume(key)


def _saved(workdir: Path) -> Any:
    """The plain config.json of a run folder, or None for a new folder."""
    path = workdir / "config.json"
    for folder in (workdir, workdir / "checkpoints"):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--workdir {workdir}: {folder} is a file; give another folder.")
    try:
        saved = json.loads(path.read_text()) if path.exists() else None
        begun = _begun(workdir)
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
    if saved is not None:
        try:
            saved = schema.as_saved(configs.load_saved(saved))
        except PluginNeeded:
            pass  # of another run, as this one's parts are known: what differs will be told
        except UserError as problem:
            sentence = str(problem).rstrip(".")
            raise UserError(
                f"{path} is no configuration of this version ({sentence}); {RESTORE}."
            ) from None
    return saved


def _begun(workdir: Path) -> bool:
    """Returns True if a run left checkpoints, or metrics of another step than 0, in a folder."""
    curves, checkpoints = workdir / "metrics.jsonl", workdir / "checkpoints"
    rows = False
    if curves.exists():
        with curves.open("rb") as file:
            first, second = file.readline(), file.readline()
        rows = bool(second) or (bool(first) and not first.startswith(b'{"step": 0,'))
    return rows or (checkpoints.is_dir() and any(checkpoints.iterdir()))


def check_fits(
    folder: Path,
    step: int,
    config: Config,
    tokenizer: str,
    records: int,
    next_records: Callable[[int], str],
    beside: Mapping[str, str],
) -> None:
    """Compares what a checkpoint says about itself with the run.

    Args:
      folder: the checkpoint, with valid checksums.
      step: that the folder's name says.
      config: of the run.
      tokenizer: of the run, as its file.
      records: of the training source.
      next_records: fingerprint of the records of a batch, by the number of the batch.
      beside: field -> fingerprint of what it reads beside the records, `TEXTS` -> of some texts.

    Raises:
      UserError: the checkpoint is of another step, configuration, data or tokenizer.
    """
    meta = _meta(folder)
    if meta["step"] != step:
        raise UserError(
            f"{folder} holds the state of step {meta['step']}, not of step {step}: give the folder "
            f"the name {meta['step']}, or remove it."
        )
    theirs = schema.as_saved(read_config(folder))
    differs = difference(theirs, config)
    if differs is not None:
        key, old, new = differs
        if part := changed_part(key, config):
            raise UserError(f"{part} since {folder} was written: restore the file, {ANEW}")
        raise UserError(
            f"{folder} was trained with {key} = {old!r}, this run has {new!r}: remove the "
            f"checkpoint from the run folder, {ANEW}"
        )
    if (meta["records"], meta["next_records"]) != (records, next_records(step)):
        raise UserError(
            f"{folder} goes on with other records than config.data gives now (it had "
            f"{meta['records']:,}, now {records:,}): restore the data, {ANEW}"
        )
    _warn_of_versions(meta)
    saved = meta.get("beside", {})
    changed = [name for name in beside if saved.get(name) != beside[name]]
    if IMAGES not in saved and IMAGES in changed:  # written by an older version
        changed.remove(IMAGES)
    if TEXTS in changed:
        raise UserError(
            f"{folder} was trained with other texts than config.data gives now, in as many "
            f"records: restore the data, {ANEW}"
        )
    if IMAGES in changed:
        raise UserError(
            f"{folder} was trained with other image files than config.data gives now (the files of "
            f"some records were compared): restore the data, {ANEW}"
        )
    if changed:
        raise UserError(
            f"{folder} was trained with other content of config.fields.{changed[0]}.file (or of "
            f"the texts that it belongs to) than there is now: restore the files, {ANEW}"
        )
    if (folder / "tokenizer.json").read_bytes() != tokenizer.encode():
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


def _meta(folder: Path) -> dict[str, Any]:
    """meta.json with the keys that are compared."""
    try:
        meta = read_meta(folder)
        known = [isinstance(meta[key], int) for key in ("step", "records")]
        if not all([*known, isinstance(meta["next_records"], str)]):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{folder / 'meta.json'} does not say which step and records the checkpoint is of: "
            f"remove the checkpoint from the run folder, {ANEW}"
        ) from None
    return meta
