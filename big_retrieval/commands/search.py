"""Searches an index that `big-retrieval index` made.

    big-retrieval search --index=FOLDER --query="words"
    big-retrieval search --index=FOLDER --image=PICTURE     # of models that read images
    big-retrieval search --index=FOLDER                     # asks on the terminal
    big-retrieval search --index=FOLDER --queries=FILE --out=run.trec

--mode=bag asks by the words of the query alone, with the index and without its model.
"""

from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks

WITHOUT = ("config", "workdir")
INDEX = flags.DEFINE_string("index", None, "The folder of the index")
QUERY = flags.DEFINE_string("query", None, "One query")
QUERIES = flags.DEFINE_string("queries", None, "Files of queries, as for documents")
OUT = flags.DEFINE_string("out", None, "With --queries: the run file to write, in TREC's format")
TAG = flags.DEFINE_string("tag", "big_retrieval", "With --out: name of the run")
TEXT = flags.DEFINE_list("text", [], "With --queries: column of the text")
IMAGE = flags.DEFINE_string(
    "image", "", "An image as the query; with --queries: column of the image"
)
ID = flags.DEFINE_string("id", "", "With --queries: column of the ids")
DEPTH = flags.DEFINE_integer("depth", 10, "Documents of a query at most", lower_bound=1)
MODE = flags.DEFINE_enum(
    "mode", None, ("parametric", "bag", "binary"), "How to ask; by default as the index was made"
)
RUN = flags.DEFINE_string("run", "", "The model's run or checkpoint folder, where it has moved")
QUERY_FIELD = flags.DEFINE_string("query_field", "", "Of the model, by which queries are read")
ENGINE = flags.DEFINE_enum("engine", "exact", ("exact", "faiss"), "Of dense indexes")
VERIFY = flags.DEFINE_bool("verify", False, "Verify the checksums of all files first")
BATCH = flags.DEFINE_integer("batch_size", 64, "Queries encoded at a time", lower_bound=1)


def main() -> None:
    """Opens the index and answers what is asked."""
    _check_flags()
    if not OUT.value:
        _search()
        return
    out = Path(OUT.value)
    with cli.owning(locks.beside(out), out):
        _search()


def _search() -> None:
    from big_retrieval.retrieval.answers import answer, converse
    from big_retrieval.retrieval.searching import open_searcher

    searcher = open_searcher(
        Path(str(INDEX.value)),
        mode=MODE.value,
        checkpoint=RUN.value,
        field=QUERY_FIELD.value,
        engine=ENGINE.value,
        verify=VERIFY.value,
        batch_size=BATCH.value,
        image=bool(IMAGE.value),
    )
    if QUERIES.value:
        column = IMAGE.value if searcher.image else ",".join(TEXT.value)
        where = {"column": column, "id": ID.value, "tag": TAG.value}
        searcher.write_run(QUERIES.value, Path(str(OUT.value)), DEPTH.value, **where)
        print(f"written to {OUT.value}")
    elif IMAGE.value and not searcher.image:
        raise UserError(
            f"--image is given, and queries of {INDEX.value} are read by the field "
            f"{searcher.field!r}, which is no image: give --query=WORDS."
        )
    elif QUERY.value is not None or IMAGE.value:
        answer(searcher, QUERY.value or IMAGE.value, DEPTH.value)
    else:
        converse(searcher, DEPTH.value)


def _check_flags() -> None:
    """Raises a UserError for flags that are missing or do not go together."""
    if not INDEX.value:
        raise UserError("--index is missing: the folder that big-retrieval index wrote.")
    if QUERY.value is not None and QUERIES.value:
        raise UserError("--query and --queries are both given; keep one of them.")
    if not QUERIES.value:
        if QUERY.value is not None and IMAGE.value:
            raise UserError("--query and --image are both a query; keep one of them.")
        if TEXT.value or ID.value:
            given = "--text" if TEXT.value else "--id"
            raise UserError(f"{given} names a column of --queries=FILE: give that, too.")
    if QUERY.value is not None and not QUERY.value.strip():
        raise UserError("--query is empty; give it a word, or an image's file.")
    if bool(QUERIES.value) != bool(OUT.value):
        raise UserError("--queries=FILE and --out=run.trec go together; give both or neither.")
