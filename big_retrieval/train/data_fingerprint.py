"""Fingerprints of a run's data: checkpoints contain them, and a resumed run compares them."""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax

from big_retrieval.data.build import EVALS, RULES, has_other_rules, warn_of_other_evals
from big_retrieval.data.damage import record_at
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.images.decoding import Encoded
from big_retrieval.data.mixture import MixedSource
from big_retrieval.data.sources import RecordSource, evenly_spaced
from big_retrieval.data.stores.ingest import VERSION
from big_retrieval.errors import Damaged, UserError
from big_retrieval.runtime import distributed

# Keys next to names of fields, which have no dot.
ROWS, TEXTS, IMAGES = "config.data.rows", "config.data", "config.data.images"
SAMPLED = 32  # records whose texts and image files are compared
RESTART = "or start from scratch in another --workdir."


def fingerprints(
    readers: Mapping[str, FieldReader],
    source: RecordSource,
    evals: Mapping[str, RecordSource] = MappingProxyType({}),
) -> dict[str, str]:
    """Returns fingerprints by name: of the rows, of each field's files, of some texts and images.

    The first process computes them for all processes: hundreds of MiB may be read.

    Args:
      evals: name of an evaluator -> its data.

    Raises:
      UserError: this process reads other rows than the first process.
    """
    compute: dict[str, Callable[[], str]] = {
        **{name: reader.fingerprint for name, reader in readers.items()},
        **{f"{EVALS}{name}.data": partial(getattr, x, "fingerprint") for name, x in evals.items()},
        ROWS: partial(getattr, source, "fingerprint"),
        TEXTS: partial(_some_texts, readers, source),
        IMAGES: partial(_some_images, readers, source),
    }
    first = jax.process_index() == 0
    hashes = {name: function() if first else "" for name, function in compute.items()}
    if jax.process_count() > 1:
        hashes = {name: distributed.broadcast(value) for name, value in hashes.items()}
        _check_rows(source)
    return {RULES: str(VERSION), **{name: value for name, value in hashes.items() if value}}


def _check_rows(source: RecordSource) -> None:
    """Raises a UserError for the first source whose rows differ from the first process's rows."""
    parts = source.parts.values() if isinstance(source, MixedSource) else [source]
    hashes = [(source_part, source_part.fingerprint) for source_part in parts]
    firsts = [distributed.broadcast(value) for _, value in hashes]
    for (source_part, value), first in zip(hashes, firsts, strict=True):
        if value not in ("", first):
            raise UserError(
                f"process {jax.process_index()} reads other rows of config.data than process 0, in "
                f"the source of {source_part.place(0)}. Give all hosts the same files."
            )


def check_content(folder: Path, saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raises if a checkpoint was trained with other `fingerprints`; warns if evaluators' differ."""
    if jax.process_index() == 0:
        warn_of_other_evals(saved, now)
    changed = {
        name
        for name, value in now.items()
        if name != RULES and not name.startswith(EVALS) and saved.get(name) != value
    }
    if not changed:
        return
    contents = {
        ROWS: "rows than config.data has now",
        TEXTS: "texts than config.data has now",
        IMAGES: "image files than config.data has now (a sample was compared)",
    }
    name = next((name for name in contents if name in changed), min(changed))
    content = contents.get(name, f"content of config.fields.{name}.file (or of its texts)")
    raise UserError(f"{folder} was trained with other {content}. {remedy_for(saved)}")


def remedy_for(saved: Mapping[str, str]) -> str:
    """Returns how to continue a run whose rows differ from the `fingerprints` of a checkpoint."""
    if has_other_rules(saved):
        reason = (
            "This version reads files by other rules than the version that wrote the checkpoint"
        )
        return f"{reason}. Resume with that version, {RESTART}"
    return f"Restore the files, {RESTART}"


def _some_texts(readers: Mapping[str, FieldReader], source: RecordSource) -> str:
    """Returns a digest of the texts of evenly spaced records."""
    fields = {name: reader for name, reader in readers.items() if reader.field.modality == "text"}
    digest = hashlib.sha256()
    for index in evenly_spaced(len(source), SAMPLED).tolist():
        for name, reader in fields.items():
            texts = _undamaged(source, index, partial(source_texts, source, index, reader))
            digest.update(json.dumps([index, name, texts]).encode())
    return digest.hexdigest()


def _some_images(readers: Mapping[str, FieldReader], source: RecordSource) -> str:
    """Returns a digest of the image files of evenly spaced records; "" if they have none."""
    fields = [reader.field for reader in readers.values() if reader.field.modality == "image"]
    hashes = []

    def images_of(index: int) -> list[Any]:
        record = source[index]
        return [record.get(field.column) for field in fields]

    for index in evenly_spaced(len(source), SAMPLED).tolist() if fields else ():
        images = _undamaged(source, index, partial(images_of, index)) or ()
        hashes += [hashlib.sha256(x.data).digest() for x in images if isinstance(x, Encoded)]
    return hashlib.sha256(b"".join(hashes)).hexdigest() if hashes else ""


def _undamaged(source: RecordSource, index: int, read: Callable[[], Any]) -> Any:
    """Returns the result of reading a record, or None if the record is damaged."""
    try:
        with record_at(source.place(index)):
            return read()
    except Damaged:
        return None
