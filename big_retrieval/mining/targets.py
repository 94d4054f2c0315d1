"""Targets of losses: a vector for every caption of a data set, such as from a sentence encoder.

The .npy file contains float32 [captions, D], in the order of the records and of their captions. The
file `.texts.json` next to it contains the number and the hash of the captions, which training
compares with its captions (`data.fields.arrays`).
"""

import hashlib
import itertools
import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.config import Config, TextField, schema
from big_retrieval.config.ranges import out_of_range
from big_retrieval.data.build import make_source
from big_retrieval.data.fields.stores import open_store, save_texts, texts_sha256
from big_retrieval.data.fields.texts import Text, TextReader, all_texts
from big_retrieval.data.formats import open_files
from big_retrieval.data.formats.records import TEXT, Records
from big_retrieval.errors import UserError
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.io.appended import AppendedFile
from big_retrieval.io.npy import header
from big_retrieval.io.regular import read_text
from big_retrieval.mining.task import as_one
from big_retrieval.runtime import locks
from big_retrieval.runtime.progress import progress_bar

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

log = logging.getLogger(__name__)
CHUNK = 1024  # captions per chunk; a restarted process continues after the last chunk
Rows = Callable[[int, int], np.ndarray]  # (start, stop) of captions -> [stop - start, D]


def captions_of_files(patterns: str, column: str) -> list[Text]:
    """Reads a column of texts, or of lists of texts, of files.

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

    A restarted process continues. The batches do not depend on interruptions, so the file is
    bit-identical on the same devices.

    Args:
      field: text field of the model.
      name: name of the model, for messages.
    """
    if model.encoder.terms(field) is not None:
        raise UserError(
            f"{name} is lexical in {field!r}, with a number for each word piece. Use an encoder "
            "with dense embeddings."
        )

    def rows(start: int, stop: int) -> np.ndarray:
        captions = [as_one(text) for text in texts[start:stop]]
        embeddings = model.encode_texts(captions, field, progress=False)  # [n, M, N]
        return embeddings.reshape(len(embeddings), -1)

    config, sha256 = model.config, params_sha256(model.weights)
    part = config.fields[field]
    settings = {
        "parameters": sha256,
        "field": schema.to_plain(part),
        "tower": schema.to_plain(config.towers[part.tower]),
        "topology": schema.to_plain(config.topology),
        "tokenizer": hashlib.sha256(model.tokenizer.to_json().encode()).hexdigest(),
        "batch_size": model.encoder.batch_size,
    }
    return _write(out, texts, rows, settings, {"encoder": name, "params_sha256": sha256})


def take(vectors: str, captions: str, texts: Sequence[Text], out: Path) -> int:
    """Copies another program's vectors after checking that they belong to the data; returns D.

    Args:
      vectors: .npy file with floats [captions, D].
      captions: UTF-8 text file with the captions of the vectors, one per line.
    """
    if Path(vectors).resolve() == out.resolve():
        raise UserError(f"--vectors and --out are both {vectors}. Choose another --out.")
    store = open_store(vectors)
    if store.ndim != 2 or store.dtype.kind != "f":
        raise UserError(
            f"--vectors {vectors} contains {store.dtype} {list(store.shape)}. It must contain "
            "floats [captions, D]."
        )
    try:
        lines = read_text(Path(captions)).removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(
            f"Cannot read --captions {captions}: {reason}. Use a UTF-8 text file."
        ) from None
    counts = {f"--vectors {vectors}": len(store), f"--captions {captions}": len(lines)}
    for label, count in counts.items():
        if count != len(texts):
            raise UserError(
                f"{label} has {count:,} rows, but the data have {len(texts):,} captions. Create it "
                "from all captions of all records, in their order."
            )
    for index, (line, text) in enumerate(zip(lines, texts, strict=True), 1):
        if line.split() != as_one(text).split():  # a caption may contain a line feed
            raise UserError(
                f"--captions {captions}, line {index}, is {line!r:.80}, but this caption of "
                f"the data is {as_one(text)!r:.80}. Sort the vectors in the order of the data."
            )
    stat = Path(vectors).stat()
    settings = {
        "vectors": str(Path(vectors).absolute()),
        "bytes": stat.st_size,
        "changed": stat.st_mtime_ns,
    }

    def rows(start: int, stop: int) -> np.ndarray:
        return open_store(vectors)[start:stop]

    return _write(out, texts, rows, settings, {"vectors": vectors})


def _write(
    out: Path,
    texts: Sequence[Text],
    rows: Rows,
    settings: Mapping[str, Any],
    origin: Mapping[str, Any],
) -> int:
    """Writes float32 rows chunk by chunk, then the hash of their texts; returns D.

    Args:
      settings: values that must be equal to continue.
      origin: values to store with the hash; messages show the first one.
    """
    settings = {**settings, "texts": texts_sha256(texts), "count": len(texts), "chunk": CHUNK}
    with AppendedFile(out, settings) as file:
        finished = int(file.noted.get("captions", 0))
        if finished:
            log.info(f"resuming after the {finished:,} captions in {out}.partial")
        progress = progress_bar("captions", len(texts) - finished)
        for start in range(finished, len(texts), CHUNK):
            stop = min(start + CHUNK, len(texts))
            vectors = np.ascontiguousarray(rows(start, stop), "<f4")  # [stop - start, D]
            is_bad = ~np.isfinite(vectors).all(axis=1)
            if is_bad.any():
                index = start + int(is_bad.argmax())
                raise UserError(
                    f"The vector of caption {index:,} ({as_one(texts[index])!r:.60}), from "
                    f"{next(iter(origin.values()))}, is not finite."
                )
            locks.check()
            head = b"" if start else header("<f4", (len(texts), vectors.shape[1]))
            file.add([head, vectors.tobytes()], {"captions": stop, "width": vectors.shape[1]})
            progress.update(stop - start)
        progress.close()
        locks.check()
        out.unlink(missing_ok=True)  # before the hash of its texts changes
        save_texts(out, texts, **origin)
        file.finish()
        return int(file.noted["width"])


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
