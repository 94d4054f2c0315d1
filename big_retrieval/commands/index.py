"""Makes an index of documents, to be searched by `big-retrieval search`.

    big-retrieval index --run=RUN --data=FILES --out=FOLDER
    big-retrieval index --run=RUN --data=FILES --out=FOLDER --binary
    big-retrieval index --run=RUN --data=FILES --out=FOLDER --format=lucene

FILES are JSONL, CSV, TSV, Parquet, npz or shards, as for training; several are separated by commas,
or written as a pattern or a range {00..99}. Lexical fields make an inverted index, all others a
dense one. --binary indexes the words of the documents, without running the model. Other formats are
for other tools: lucene (JSON lines for Anserini), seismic and csr (scipy) take lexical documents,
npz (numpy) dense ones, qdrant both.
"""

from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError
from big_retrieval.retrieval.exports import FORMATS
from big_retrieval.runtime import locks

LOG = True
WITHOUT = ("config", "workdir")
RUN = flags.DEFINE_string("run", None, "Run or checkpoint folder of the model")
DATA = flags.DEFINE_string("data", None, "Files of documents, separated by commas")
OUT = flags.DEFINE_string("out", None, "The folder to write")
FIELD = flags.DEFINE_string(
    "field", "", "Of the model: title, or image=0.9,title=0.1; all document fields by default"
)
QUERY_FIELD = flags.DEFINE_string("query_field", "", "By which queries will be read")
TEXT = flags.DEFINE_list("text", [], "Column of the text, or several; the field's by default")
TITLE = flags.DEFINE_string("title", "", "Column of the title; the field's by default")
JOIN = flags.DEFINE_string("join", " ", "Between several columns of --text")
IMAGE = flags.DEFINE_string("image", "", "Column of the image; the field's by default")
SHOW = flags.DEFINE_string("show", "", "Column that is shown with results; the text by default")
ID = flags.DEFINE_string("id", "", "Column of the ids; id, or numbers, by default")
BINARY = flags.DEFINE_bool("binary", False, "Bags of words, without running the model")
VALUES = flags.DEFINE_enum("values", "float32", ("float32", "float16"), "Type of stored values")
FORMAT = flags.DEFINE_enum("format", "index", ("index", *FORMATS), "What is written")
QUANTISE = flags.DEFINE_float(
    "quantise", None, "With --format=lucene: weights times this as whole numbers, such as 100"
)
MEMORY = flags.DEFINE_integer(
    "memory", 512, "MiB that an inverted index is built with", lower_bound=1
)
BATCH = flags.DEFINE_integer("batch_size", 64, "Rows encoded at a time", lower_bound=1)


def main() -> None:
    """Makes what the flags ask for."""
    for flag, what in (
        (RUN, "the run or checkpoint folder of the model"),
        (DATA, "files of documents"),
        (OUT, "the folder to write"),
    ):
        if not flag.value:
            raise UserError(f"--{flag.name} is missing: {what}.")
    if QUANTISE.value is not None and (FORMAT.value != "lucene" or QUANTISE.value <= 0):
        raise UserError("--quantise is a number above 0 and goes with --format=lucene.")
    out = Path(str(OUT.value))
    with cli.owning(locks.beside(out), out):
        _make(out)


def _make(out: Path) -> None:
    from big_retrieval.retrieval.making import IndexOptions, make

    make(
        IndexOptions(
            checkpoint=Path(str(RUN.value)),
            documents=str(DATA.value),
            out=out,
            field=FIELD.value,
            query_field=QUERY_FIELD.value,
            text=tuple(TEXT.value),
            title=TITLE.value,
            join=JOIN.value,
            image=IMAGE.value,
            show=SHOW.value,
            id=ID.value,
            binary=BINARY.value,
            values=VALUES.value,
            format=FORMAT.value,
            quantise=QUANTISE.value,
            memory=MEMORY.value * 2**20,
            batch_size=BATCH.value,
        )
    )
