"""Targets of losses: a vector for every caption of a data set, such as from a sentence encoder.

The .npy file has float32 [captions, D], in the order of the records and of the captions in each.
The file `.texts.json` next to it has the number and the hash of the captions, which training
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
from big_retrieval.runtime import locks
from big_retrieval.runtime.progress import progress_bar

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

log = logging.getLogger(__name__)
CHUNK = 1024  # captions per chunk; a killed process continues after its last chunk
Rows = Callable[[int, int], np.ndarray]  # (start, stop) of captions -> [stop - start, D]


def captions_of_files(patterns: str, column: str) -> list[Text]:
    """Reads all captions of files, in order.

    Args:
      patterns: paths, glob patterns or {00..99} ranges, separated by commas.
      column: column with a text or a list of texts.
    """
    table, _ = open_files.table_of(open_files.files_of_flag("data", patterns))
    return _captions(Records(table, image=(), text=column), TextField(column=TEXT))


def captions_of_config(config: Config, field: str) -> list[Text]:
    """Reads all captions of a text field from a config's training records, in their order.

    Files of the config's targets may be missing.
    """
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


def text_field(config: Config, wanted: str = "") -> str:
    """Returns the text field of the targets.

    Args:
      config: config of the run to train.
      wanted: name of the field; "" for the field that a target is aligned with, or the only one.
    """
    texts = [name for name, part in config.fields.items() if part.modality == "text"]
    if wanted in texts:
        return wanted
    if wanted:
        choices = ", ".join(texts) or "none"
        raise UserError(f"--field is {wanted!r}. Text fields of the config: {choices}.")
    aligned = {getattr(part, "aligned_with", "") for part in config.fields.values()} & set(texts)
    for names in (list(aligned), texts):
        if len(names) == 1:
            return names[0]
    raise UserError(f"Add --field. Text fields of the config: {', '.join(texts) or 'none'}.")


def encode(model: "TrainedModel", field: str, texts: Sequence[Text], out: Path, name: str) -> int:
    """Writes a model's embeddings of captions; continues where a killed process stopped.

    The class tokens of a caption are concatenated. The batches do not depend on interruptions, so
    that the file is bit-identical on the same devices.

    Args:
      model: a sentence encoder.
      field: its text field.
      out: the .npy file.
      name: name of the model, for messages.

    Returns:
      D.
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
    determines = {
        "parameters": sha256,
        "field": schema.to_plain(part),
        "tower": schema.to_plain(config.towers[part.tower]),
        "topology": schema.to_plain(config.topology),
        "tokenizer": hashlib.sha256(model.tokenizer.to_json().encode()).hexdigest(),
        "batch_size": model.encoder.batch_size,
    }
    return _write(out, texts, rows, determines, {"encoder": name, "params_sha256": sha256})


def take(vectors: str, captions: str, texts: Sequence[Text], out: Path) -> int:
    """Copies vectors from another program after checking that they belong to the captions.

    Args:
      vectors: an .npy file with floats [captions, D].
      captions: a UTF-8 text file with the captions of the vectors, one per line.
      texts: the captions of the data.
      out: the .npy file.

    Returns:
      D.
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
    for number, (line, text) in enumerate(zip(lines, texts, strict=True), 1):
        if line.split() != as_one(text).split():  # a caption may contain a line feed
            raise UserError(
                f"--captions {captions}, line {number}, is {line!r:.80}, but this caption of "
                f"the data is {as_one(text)!r:.80}. Sort the vectors in the order of the data."
            )
    stat = Path(vectors).stat()
    determines = {
        "vectors": str(Path(vectors).absolute()),
        "bytes": stat.st_size,
        "changed": stat.st_mtime_ns,
    }

    def rows(start: int, stop: int) -> np.ndarray:
        return open_store(vectors)[start:stop]

    return _write(out, texts, rows, determines, {"vectors": vectors})


def _write(
    out: Path,
    texts: Sequence[Text],
    rows: Rows,
    determines: Mapping[str, Any],
    origin: Mapping[str, Any],
) -> int:
    """Writes float32 rows chunk by chunk, then the hash of their texts; returns D.

    Args:
      determines: values that must be equal to continue a killed process.
      origin: values to store with the hash; messages show the first one.
    """
    settings = {**determines, "texts": texts_sha256(texts), "count": len(texts), "chunk": CHUNK}
    with AppendedFile(out, settings) as file:
        done = int(file.noted.get("captions", 0))
        if done:
            log.info(f"resuming after the {done:,} captions in {out}.partial")
        progress = progress_bar("captions", len(texts) - done)
        for start in range(done, len(texts), CHUNK):
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


def as_one(text: Text) -> str:
    """Joins a text and its title, if any."""
    return text if isinstance(text, str) else " ".join(filter(None, text))


def training(config: Config | None, field: str, out: Path, width: int) -> str:
    """Returns the flags, or the line of a config file, with which training reads the targets.

    Args:
      config: config of the run to train; None if unknown.
      field: text field of the targets.
      width: D.
    """
    parts = {} if config is None else config.fields
    targets = [name for name, part in parts.items() if getattr(part, "aligned_with", "") == field]
    if len(targets) != 1:
        return (
            f"c.fields.target = recipe.entry(config.ArrayField(), shape=({width},), "
            f"aligned_with={field!r}, file={str(out)!r})"
        )
    path, part = f"--config.fields.{targets[0]}", parts[targets[0]]
    flags = [f"{path}.file={out}", f"{path}.shape=({width},)"]
    flags += [f"{path}.generated=False"] if getattr(part, "generated", False) else []
    flags += [f"{path}.column="] if part.column else []
    return " ".join(map(shlex.quote, flags))
