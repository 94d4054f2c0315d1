"""Targets of losses: a vector for every caption of a data set, such as a sentence encoder gives.

They stand in an .npy file [captions, D], float32, in the order of the records and of the captions
in each. The file `.texts.json` beside it has the count and the hash of the captions, which training
compares with its own (`data.fields.arrays`).
"""

import hashlib
import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.config import Config, TextField, schema
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
from big_retrieval.runtime.progress import ProgressCounter

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

log = logging.getLogger(__name__)
CHUNK = 1024  # captions that are encoded at a time; what is done is kept after each
Rows = Callable[[int, int], np.ndarray]  # of captions start .. stop - 1: [stop - start, D]


def captions_of_files(patterns: str, column: str) -> list[Text]:
    """All captions of some files, in order; records without a caption have none.

    Args:
      patterns: paths, glob patterns or {00..99} ranges, separated by commas.
      column: of one text or a list of texts.

    Raises:
      UserError: a file is missing, of no known kind or empty, or lacks the column.
    """
    table, _ = open_files.table_of(open_files.files_of_flag("data", patterns))
    records = Records(table, image=(), text=column)
    return _not_empty(all_texts(records, TextReader(TextField(column=TEXT)))[1], records.name)


def captions_of_config(config: Config, field: str) -> list[Text]:
    """All captions of the training records of a config, in the order in which training counts them.

    Args:
      config: of the run that is to be trained; its targets need not be there.
      field: its text field.
    """
    problems = list(config.data.check("config.data"))
    if problems:
        raise UserError(problems[0])
    source, part = make_source(config.data), config.fields[field]
    assert isinstance(part, TextField)  # `text_field` saw to it
    return _not_empty(all_texts(source, TextReader(part))[1], source.name)


def _not_empty(texts: list[Text], name: str) -> list[Text]:
    if not texts:
        raise UserError(f"{name} has no captions: name their column with --text, or --field.")
    return texts


def text_field(config: Config, wanted: str = "") -> str:
    """The text field that targets belong to.

    Args:
      config: of the run that is to be trained.
      wanted: its name; "": the one that a target is aligned with, or the only one.

    Raises:
      UserError: no such field, or several that it could be.
    """
    texts = [name for name, each in config.fields.items() if each.modality == "text"]
    if wanted in texts:
        return wanted
    if wanted:
        known = ", ".join(texts) or "none"
        raise UserError(f"--field is {wanted!r}, which is no text field of the config ({known}).")
    aligned = {getattr(each, "aligned_with", "") for each in config.fields.values()} & set(texts)
    for names in (list(aligned), texts):
        if len(names) == 1:
            return names[0]
    raise UserError(
        f"--field is missing: the config has the text fields {', '.join(texts) or 'none'}."
    )


def encode(model: "TrainedModel", field: str, texts: Sequence[Text], out: Path, name: str) -> int:
    """Writes what a model makes of captions; goes on where a killed process was.

    Several class tokens of a caption stand behind each other. Captions are encoded in the same
    batches whether or not the process was killed, so that the file is bit-identical on the same
    devices.

    Args:
      model: a sentence encoder.
      field: its text field.
      texts: the captions.
      out: the file, .npy.
      name: of the model, for messages.

    Returns:
      D.

    Raises:
      UserError: the field is lexical, or a vector is not finite.
    """
    if model.encoder.terms(field) is not None:
        raise UserError(
            f"{name} is lexical in {field!r}, with a number for each word piece: give an encoder "
            "with dense embeddings."
        )

    def rows(start: int, stop: int) -> np.ndarray:
        some = [as_one(text) for text in texts[start:stop]]
        found = model.encode_texts(some, field, progress=False)  # [n, M, N]
        return found.reshape(len(found), -1)

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
    """Writes vectors that were made elsewhere, when they are those of the captions.

    Args:
      vectors: an .npy file [captions, D] of floats.
      captions: a text file (UTF-8) of what the vectors were made from, a caption a line.
      texts: the captions of the data.
      out: the file, .npy.

    Returns:
      D.

    Raises:
      UserError: other captions or another order, another number of vectors, or one that is not
        finite.
    """
    if Path(vectors).resolve() == out.resolve():
        raise UserError(f"--vectors and --out are both {vectors}; give --out another name.")
    store = open_store(vectors)
    if store.ndim != 2 or store.dtype.kind != "f":
        raise UserError(
            f"--vectors {vectors} holds {store.dtype} {list(store.shape)}; it must hold floats "
            "[captions, D], a row for each caption."
        )
    lines = [line.rstrip("\r") for line in _text_of(captions).split("\n")]
    lines = lines[:-1] if lines[-1] == "" else lines
    counts = {f"--vectors {vectors}": len(store), f"--captions {captions}": len(lines)}
    for what, count in counts.items():
        if count != len(texts):
            raise UserError(
                f"{what} has {count:,} rows, but the data have {len(texts):,} captions: make it "
                "from all captions of all records, in their order."
            )
    for number, (line, text) in enumerate(zip(lines, texts, strict=True)):
        if line.split() != as_one(text).split():  # a caption may hold a line feed
            raise UserError(
                f"--captions {captions}, line {number + 1}, is {line!r:.80}, but this caption of "
                f"the data is {as_one(text)!r:.80}: the vectors must be in the order of the data."
            )
    stat = Path(vectors).stat()
    determines = {"vectors": str(Path(vectors).absolute()), "bytes": stat.st_size}
    determines["changed"] = stat.st_mtime_ns

    def rows(start: int, stop: int) -> np.ndarray:
        return open_store(vectors)[start:stop]

    return _write(out, texts, rows, determines, {"vectors": vectors})


def _text_of(path: str) -> str:
    try:
        return read_text(Path(path))
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8"
        raise UserError(f"--captions {path} cannot be read ({why}); give a text file.") from None


def _write(
    out: Path,
    texts: Sequence[Text],
    rows: Rows,
    determines: Mapping[str, Any],
    about: Mapping[str, Any],
) -> int:
    """Writes a store of float32 rows chunk by chunk, then what its texts are; returns D."""
    whole = {**determines, "texts": texts_sha256(texts), "count": len(texts), "chunk": CHUNK}
    with AppendedFile(out, whole) as file:
        done = int(file.noted.get("captions", 0))
        if done:
            log.info(f"goes on after the {done:,} captions that {out}.partial has")
        progress = ProgressCounter("captions", len(texts) - done)
        for start in range(done, len(texts), CHUNK):
            stop = min(start + CHUNK, len(texts))
            found = np.ascontiguousarray(rows(start, stop), "<f4")  # [stop - start, D]
            bad = ~np.isfinite(found).all(axis=1)
            if bad.any():
                number = start + int(bad.argmax())
                raise UserError(
                    f"the vector of caption {number:,} ({as_one(texts[number])!r:.60}) holds "
                    f"numbers that are not finite; they come from {next(iter(about.values()))}."
                )
            locks.check()
            head = b"" if start else header("<f4", (len(texts), found.shape[1]))
            file.add([head, found.tobytes()], {"captions": stop, "width": found.shape[1]})
            progress.add(stop - start)
        progress.close()
        locks.check()
        out.unlink(missing_ok=True)  # never beside the hash of other texts
        save_texts(out, texts, **about)
        file.finish()
        return int(file.noted["width"])


def as_one(text: Text) -> str:
    """A text with its title, if it has one, in front."""
    return text if isinstance(text, str) else " ".join(filter(None, text))


def training(config: Config | None, field: str, out: Path, width: int) -> str:
    """What to set in a config so that training reads the targets: flags, or a line of the file.

    Args:
      config: of the run that is to be trained; None: nobody said.
      field: the text field that the targets belong to.
      out: the file.
      width: D.
    """
    parts = {} if config is None else config.fields
    found = [name for name, part in parts.items() if getattr(part, "aligned_with", "") == field]
    if len(found) != 1:
        return (
            f"c.fields.target = recipe.entry(config.ArrayField(), shape=({width},), "
            f"aligned_with={field!r}, file={str(out)!r})"
        )
    path, part = f"--config.fields.{found[0]}", parts[found[0]]
    given = [f"{path}.file={out}", f"{path}.shape=({width},)"]
    given += [f"{path}.generated=False"] if getattr(part, "generated", False) else []
    given += [f"{path}.column="] if part.column else []
    return " ".join(map(shlex.quote, given))
