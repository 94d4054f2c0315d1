"""Targets of losses: a vector for every caption of a data set, such as from a sentence encoder.

The .npy file contains float32 [captions, D], in the order of the records and of their captions. The
file `.texts.json` next to it contains the number and the hash of the captions, which training
compares with its captions (`data.fields.arrays`).
"""

import hashlib
import itertools
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.config import Config, TextField, schema
from big_retrieval.config.ranges import out_of_range
from big_retrieval.data.build import make_source
from big_retrieval.data.fields.stores import save_texts, texts_sha256
from big_retrieval.data.fields.texts import Text, TextReader, all_texts
from big_retrieval.data.formats import open_files
from big_retrieval.data.formats.records import TEXT, Records
from big_retrieval.errors import UserError
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.io.npy import header
from big_retrieval.io.resumable_file import AppendedFile
from big_retrieval.mining.task import as_one
from big_retrieval.runtime import locks
from big_retrieval.runtime.messages import count_of
from big_retrieval.runtime.progress import progress_bar

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

log = logging.getLogger(__name__)
CHUNK = 1024  # captions per chunk; a restarted process continues after the last chunk


def captions_of_files(patterns: str, column: str) -> list[Text]:
    """Reads all texts in a column of files; a cell has one text or a list of texts.

    Args:
      patterns: paths, glob patterns or {00..99} ranges, separated by commas.
    """
    table, _ = open_files.table_of(open_files.files_of_flag("data", patterns))
    return _captions(Records(table, image=(), text=column), TextField(column=TEXT))


def captions_of_config(config: Config, field: str) -> list[Text]:
    """Reads the captions of a text field from the training records; target files may be missing."""
    errors = itertools.chain(
        out_of_range(config.data, "config.data"), config.data.check("config.data")
    )
    for error in errors:
        raise UserError(error)
    return _captions(make_source(config.data), config.fields[field])


def _captions(source: Any, field: Any) -> list[Text]:
    texts = all_texts(source, TextReader(field))[1]
    if not texts:
        raise UserError(
            f"{source.name} has no captions. Set their column with --text, or their --field."
        )
    return texts


def text_field(config: Config, name: str = "") -> str:
    """Returns the text field of the targets in the config of the run to train.

    Args:
      name: the field; empty for the field that a target is aligned with, or the only text field.
    """
    texts = [key for key, field in config.fields.items() if field.modality == "text"]
    aligned = {getattr(field, "aligned_with", "") for field in config.fields.values()} & set(texts)
    if name in texts:
        return name
    for names in () if name else (list(aligned), texts):
        if len(names) == 1:
            return names[0]
    mistake = f"--field is {name!r}" if name else "Add --field"
    raise UserError(f"{mistake}. Text fields of the config: {', '.join(texts) or 'none'}.")


def encode(model: "TrainedModel", field: str, texts: Sequence[Text], out: Path, name: str) -> int:
    """Writes a sentence encoder's embeddings of captions, class tokens concatenated; returns D.

    A restarted process continues after the last chunk. The batches do not depend on interruptions,
    so the file is bit-identical on the same devices.

    Args:
      field: text field of the model.
      name: name of the model, for messages.
    """
    if model.encoder.terms(field) is not None:
        raise UserError(
            f"{name} is lexical in {field!r}, with a number for each word piece. Use an encoder "
            "with dense embeddings."
        )
    sha256 = params_sha256(model.weights)
    with AppendedFile(out, _settings(model, field, texts, sha256)) as file:
        finished = int(file.noted.get("captions", 0))
        if finished:
            log.info(f"resuming after the {count_of(finished, 'caption')} in {out}.partial")
        with progress_bar("captions", len(texts) - finished) as progress:
            for start in range(finished, len(texts), CHUNK):
                captions = [as_one(text) for text in texts[start : start + CHUNK]]
                embeddings = model.encode_texts(captions, field, progress=False)  # [n, M, N]
                vectors = np.ascontiguousarray(embeddings.reshape(len(captions), -1), "<f4")
                is_bad = ~np.isfinite(vectors).all(axis=1)  # [n]
                if is_bad.any():
                    index = int(is_bad.argmax())
                    raise UserError(
                        f"The vector of caption {start + index:,} ({captions[index]!r:.60}), from "
                        f"{name}, is not finite."
                    )
                locks.check()
                head = b"" if start else header("<f4", (len(texts), vectors.shape[1]))
                state = {"captions": start + len(captions), "width": vectors.shape[1]}
                file.add([head, vectors.tobytes()], state)
                progress.update(len(captions))
        locks.check()
        out.unlink(missing_ok=True)  # before the hash of its texts changes
        save_texts(out, texts, encoder=name, params_sha256=sha256)
        file.finish()
        return int(file.noted["width"])


def _settings(
    model: "TrainedModel", field: str, texts: Sequence[Text], sha256: str
) -> dict[str, Any]:
    """Returns the values that must be equal to continue a file."""
    config, field_config = model.config, model.config.fields[field]
    return {
        "parameters": sha256,
        "field": schema.to_plain(field_config),
        "tower": schema.to_plain(config.towers[field_config.tower]),
        "topology": schema.to_plain(config.topology),
        "tokenizer": hashlib.sha256(model.tokenizer.to_json().encode()).hexdigest(),
        "batch_size": model.encoder.batch_size,
        "texts": texts_sha256(texts),
        "count": len(texts),
        "chunk": CHUNK,
    }


def training_flags(config: Config | None, field: str, out: Path, width: int) -> str:
    """Returns the flags of the run to train, or without a config a line of a config file.

    Args:
      width: D, dimensions of a vector.
    """
    fields = {} if config is None else config.fields
    targets = [name for name, x in fields.items() if getattr(x, "aligned_with", "") == field]
    if len(targets) != 1:
        return (
            f"c.fields.target = recipe.entry(config.ArrayField(), shape=({width},), "
            f"aligned_with={field!r}, file={str(out)!r})"
        )
    path, target = f"--config.fields.{targets[0]}", fields[targets[0]]
    flags = [f"{path}.file={out}", f"{path}.shape=({width},)"]
    flags += [f"{path}.generated=False"] if getattr(target, "generated", False) else []
    flags += [f"{path}.column="] if target.column else []
    return " ".join(map(shlex.quote, flags))
