"""Computes a vector for every caption with a sentence encoder: targets that losses reconstruct.

    big-retrieval targets --config=FILE[:arg] --encoder=MODEL --out=FILE.npy
    big-retrieval targets --data=FILES --encoder=MODEL --out=FILE.npy

The captions are all captions of the training data of --config, or of --data: JSONL, CSV, TSV,
Parquet, npz or shards, separated by commas, or a pattern or a range {00..99}. MODEL is a folder of
sentence-transformers, a run or any text encoder that `big-retrieval import` reads.

The command writes float32 [captions, D], and next to it .texts.json with their count and hash: a
run with other captions rejects them. Repeat a command that was stopped to resume it. At the end it
prints the keys to set in the config.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from big_retrieval.cli.option_groups import ConfigOptions
from big_retrieval.cli.options import AtLeast1, Flag, only_one
from big_retrieval.errors import UserError
from big_retrieval.runtime.messages import count_of

log = logging.getLogger(__name__)
LOG = True


@dataclass(frozen=True, kw_only=True)
class TargetsOptions(ConfigOptions):
    out: Path  # File to write, .npy
    data: str | None = None  # Files with the captions, separated by commas
    text: Annotated[str, Flag(needs="data")] = "captions"  # Column of one text or several
    # Text field; by default the field with targets, or the only one
    field: Annotated[str, Flag(needs="config")] = ""
    encoder: str  # Sentence encoder: folder, run or hub name
    encoder_field: str = ""  # Text field of the encoder that reads captions
    tokenizer: str = ""  # Tokenizer of an encoder that comes without one
    batch_size: AtLeast1 = 256  # Captions encoded at a time


def main(options: TargetsOptions) -> None:
    out = options.out
    only_one(options, "config", "data", required=True)
    if out.suffix != ".npy":
        raise UserError(f"--out is {str(out)!r}; it must end with .npy.")
    with options.owning_file(out):
        from big_retrieval.interop.model import import_model
        from big_retrieval.mining import targets
        from big_retrieval.retrieval.encode import query_field

        config = None if options.config is None else options.load_config()
        if config is None:
            field, texts = "text", targets.captions_of_files(str(options.data), options.text)
        else:
            field = targets.text_field(config, options.field)
            texts = targets.captions_of_config(config, field)
        log.info(f"{count_of(len(texts), 'caption')}")
        path = options.encoder
        model = import_model(path, tokenizer=options.tokenizer, batch_size=options.batch_size)
        reader = query_field(model.config, options.encoder_field, "encoder_field")
        width = targets.encode(model, reader, texts, out, path)
        log.info(f"{len(texts):,} vectors of {width} numbers in {out}")
        log.info(f"to train on them: {targets.training_flags(config, field, out, width)}")
