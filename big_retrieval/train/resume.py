"""Whether a checkpoint belongs to the run that wants to go on from it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from big_retrieval.config import Config, schema
from big_retrieval.errors import UserError
from big_retrieval.inference import load
from big_retrieval.io.manifest import read_meta, to_json
from big_retrieval.train.identity import AGAIN, changed_part, difference

ANEW = "or start anew in another --workdir."


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
      beside: field -> fingerprint of what it reads beside the records.

    Raises:
      UserError: the checkpoint is of another step, configuration, data or tokenizer.
    """
    meta = _meta(folder)
    if meta["step"] != step:
        raise UserError(
            f"{folder} holds the state of step {meta['step']}, not of step {step}: give the folder "
            f"the name {meta['step']}, or remove it."
        )
    theirs = json.loads(to_json(schema.to_plain(load.read_config(folder))))
    differs = difference(theirs, config)
    if differs is not None:
        key, old, new = differs
        if part := changed_part(key, config):
            raise UserError(f"{part} since {folder} was written: {AGAIN}")
        raise UserError(
            f"{folder} was trained with {key} = {old!r}, this run has {new!r}: remove the "
            f"checkpoint from the run folder, {ANEW}"
        )
    if (meta["records"], meta["next_records"]) != (records, next_records(step)):
        raise UserError(
            f"{folder} goes on with other records than config.data gives now (it had "
            f"{meta['records']:,}, now {records:,}): restore the data, {ANEW}"
        )
    changed = [name for name in beside if meta.get("beside", {}).get(name) != beside[name]]
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
