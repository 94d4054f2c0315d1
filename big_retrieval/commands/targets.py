"""Computes a vector for every caption with a sentence encoder: targets that losses reconstruct.

    big-retrieval targets --config=FILE[:arg] --encoder=MODEL --out=FILE.npy
    big-retrieval targets --data=FILES --encoder=MODEL --out=FILE.npy
    big-retrieval targets --config=FILE --vectors=FILE.npy --captions=FILE.txt --out=FILE.npy

The captions are all those of the training data of --config, so that they fit the run exactly, or
those of --data: JSONL, CSV, TSV, Parquet, npz or shards, as for training; several are separated by
commas, or written as a pattern or a range {00..99}. MODEL is a folder of sentence-transformers, a
run of ours or any text encoder that `big-retrieval import` reads. With --vectors they were made
elsewhere; --captions is what they were made from, a caption a line, in the order of the data.

--out gets float32 [captions, D], and the file .texts.json beside it their count and hash: a run
whose captions are others is refused. A command that was stopped goes on where it was when it is
called again with the same flags. At the end it says which keys to set in the config.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

log = logging.getLogger(__name__)
LOG = True
WITHOUT = ("workdir",)
DATA = flags.DEFINE_string("data", None, "Files with the captions, separated by commas")
TEXT = flags.DEFINE_string("text", "captions", "With --data: the column of one text or several")
FIELD = flags.DEFINE_string(
    "field", "", "With --config: the text field; the one that has targets, or the only one"
)
ENCODER = flags.DEFINE_string("encoder", None, "The sentence encoder: folder, run or hub name")
ENCODER_FIELD = flags.DEFINE_string(
    "encoder_field", "", "Of the encoder: the text field that reads captions"
)
TOKENIZER = flags.DEFINE_string("tokenizer", "", "Of an encoder that comes without one")
VECTORS = flags.DEFINE_string("vectors", None, "Vectors that were made elsewhere, .npy")
CAPTIONS = flags.DEFINE_string("captions", None, "With --vectors: their captions, one a line")
OUT = flags.DEFINE_string("out", None, "The file to write, .npy")
BATCH = flags.DEFINE_integer("batch_size", 256, "Captions encoded at a time", lower_bound=1)


def main() -> None:
    """Writes the targets that the flags ask for."""
    out = _checked()
    with cli.owning(locks.beside(out), out):
        from big_retrieval.mining import targets

        config = None if cli.CONFIG.value is None else cli.load_config()
        if config is None:
            field, texts = "text", targets.captions_of_files(str(DATA.value), TEXT.value)
        else:
            field = targets.text_field(config, FIELD.value)
            texts = targets.captions_of_config(config, field)
        log.info(f"{len(texts):,} captions")
        if VECTORS.value:
            width = targets.take(VECTORS.value, str(CAPTIONS.value), texts, out)
        else:
            model, own = _encoder()
            width = targets.encode(model, own, texts, out, str(ENCODER.value))
        log.info(f"{len(texts):,} vectors of {width} numbers in {out}")
        log.info(f"to train on them: {targets.training(config, field, out, width)}")


def _checked() -> Path:
    """The file to write, when the flags go together.

    Raises:
      UserError: they do not.
    """
    if bool(DATA.value) == (cli.CONFIG.value is not None):
        raise UserError("say whose captions: --config=FILE or --data=FILES, one of them.")
    if DATA.value and FIELD.value:
        raise UserError("--field goes with --config; with --data, --text names the column.")
    if not DATA.value and TEXT.present:
        raise UserError("--text goes with --data; with --config, --field names the text field.")
    if bool(ENCODER.value) == bool(VECTORS.value):
        raise UserError("say what makes the vectors: --encoder=MODEL or --vectors=FILE.npy.")
    if bool(VECTORS.value) != bool(CAPTIONS.value):
        raise UserError("--vectors and --captions go together: vectors, and their captions.")
    if not OUT.value:
        raise UserError("--out is missing: the file to write, such as targets.npy.")
    if not OUT.value.endswith(".npy"):
        raise UserError(f"--out is {OUT.value!r}; it must end with .npy, such as targets.npy.")
    return Path(OUT.value)


def _encoder() -> "tuple[TrainedModel, str]":
    """The model of --encoder, and which of its fields reads captions."""
    from big_retrieval.interop.model import import_model
    from big_retrieval.retrieval.encode import query_field

    path = str(ENCODER.value)
    model = import_model(path, tokenizer=TOKENIZER.value, batch_size=BATCH.value)
    return model, query_field(model.config, ENCODER_FIELD.value, "encoder_field")
