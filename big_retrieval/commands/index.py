"""Makes an index of documents, to be searched by `big-retrieval search`.

    big-retrieval index --run=RUN --data=FILES --out=FOLDER
    big-retrieval index --run=RUN --data=FILES --out=FOLDER --binary
    big-retrieval index --run=RUN --data=FILES --out=FOLDER --format=lucene
    big-retrieval index --run=RUN --data=FILES --out=FOLDER --part=2/4

FILES are JSONL, CSV, TSV, Parquet, npz or shards, as for training, or a folder of pictures; several
are separated by commas, or written as a pattern or a range {00..99}. Lexical fields make an
inverted index, all others a dense one. --binary indexes the words of the documents, without running
the model. Other formats are for other tools: lucene (JSON lines for Anserini) and csr (scipy) take
lexical documents, npz (numpy) dense ones, qdrant both.

With --part, several processes of any hosts that see the same FOLDER make one index: each encodes
its part, and the process that finishes the last part joins all parts. A command that was stopped is
called again; parts that are there are not made again.
"""

import logging
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from big_retrieval import cli
from big_retrieval.cli import columns
from big_retrieval.errors import UserError
from big_retrieval.retrieval.exports import FORMATS
from big_retrieval.runtime import locks

if TYPE_CHECKING:
    from big_retrieval.retrieval.preparing import IndexOptions

log = logging.getLogger(__name__)
LOG = True
WITHOUT = ("config", "workdir")
RUN = flags.DEFINE_string("run", None, "Run or checkpoint folder of the model")
DATA = flags.DEFINE_string("data", None, "Files of documents, separated by commas")
OUT = flags.DEFINE_string("out", None, "The folder to write")
FIELD = flags.DEFINE_string(
    "field", "", "Of the model: title, or image=0.9,title=0.1; all document fields by default"
)
QUERY_FIELD = flags.DEFINE_string("query_field", "", "By which queries will be read")
JOIN = flags.DEFINE_string("join", " ", "Between several columns of --text")
BINARY = flags.DEFINE_bool("binary", False, "Bags of words, without running the model")
VALUES = flags.DEFINE_enum("values", "float32", ("float32", "float16"), "Type of stored values")
FORMAT = flags.DEFINE_enum("format", "index", ("index", *FORMATS), "What is written")
QUANTISE = flags.DEFINE_float(
    "quantise", None, "With --format=lucene: weights times this as whole numbers, such as 100"
)
MEMORY = flags.DEFINE_integer(
    "memory", 512, "MiB that an inverted index is built with", lower_bound=1
)
PART = flags.DEFINE_string(
    "part", "", "Make one part of the index, such as 2/4; several processes make one part each"
)
BATCH = flags.DEFINE_integer("batch_size", 64, "Rows encoded at a time at most", lower_bound=1)


def main() -> None:
    """Makes what the flags ask for."""
    cli.require(
        (RUN, "the run or checkpoint folder of the model"),
        (DATA, "files of documents"),
        (OUT, "the folder to write"),
    )
    if QUANTISE.value is not None and (FORMAT.value != "lucene" or QUANTISE.value <= 0):
        raise UserError("--quantise is a number above 0 and goes with --format=lucene.")
    out = Path(str(OUT.value))
    if PART.value:
        _make_part(out)
        return
    with cli.owning(locks.beside(out), out):
        from big_retrieval.retrieval.making import make

        make(_options(out))


def _make_part(out: Path) -> None:
    """Makes a part of the index, and the index if this is the last part."""
    from big_retrieval.retrieval import parts

    part = parts.IndexPart.parse(PART.value)
    own = part.folder(out)
    with cli.owning(locks.beside(own), own, "--part"):
        missing = parts.make_part(_options(out), part)
    if missing:
        names = ", ".join(map(str, missing))
        log.info(f"parts {names} of {out} are not there yet; the last one to finish joins all")
        log.info(f"to make part {missing[0]}: {_command(str(missing[0]))}")
        return
    # A process that waits here takes over if the one that joins is killed.
    with cli.owning(locks.beside(out), out, wait=True):
        parts.join(_options(out), part)


def _command(part: str) -> str:
    """This command with another part."""
    words = shlex.join(sys.argv[1:])
    return f"{sys.argv[0]} " + re.sub(r"(--?part[= ])\S+", rf"\g<1>{part}", words)


def _options(out: Path) -> "IndexOptions":
    """What the flags ask for."""
    from big_retrieval.retrieval.preparing import IndexOptions

    return IndexOptions(
        checkpoint=Path(str(RUN.value)),
        documents=str(DATA.value),
        out=out,
        field=FIELD.value,
        query_field=QUERY_FIELD.value,
        join=JOIN.value,
        binary=BINARY.value,
        values=VALUES.value,
        format=FORMAT.value,
        quantise=QUANTISE.value,
        memory=MEMORY.value * 2**20,
        batch_size=BATCH.value,
        **columns.named(),
    )
