"""Searches an index that `big-retrieval index` made.

    big-retrieval search --index=FOLDER --query="words"
    big-retrieval search --index=FOLDER                     # asks on the terminal
    big-retrieval search --index=FOLDER --queries=FILE --out=run.trec

--mode=bag asks by the words of the query alone, with the index and without its model.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import Damaged, UserError
from big_retrieval.runtime import locks, screen

if TYPE_CHECKING:
    from big_retrieval.retrieval.searching import IndexSearcher

WITHOUT = ("config", "workdir")
INDEX = flags.DEFINE_string("index", None, "The folder of the index")
QUERY = flags.DEFINE_string("query", None, "One query")
QUERIES = flags.DEFINE_string("queries", None, "Files of queries, as for documents")
OUT = flags.DEFINE_string("out", None, "With --queries: the run file to write, in TREC's format")
TAG = flags.DEFINE_string("tag", "big_retrieval", "With --out: name of the run")
TEXT = flags.DEFINE_list("text", [], "With --queries: column of the text")
IMAGE = flags.DEFINE_string("image", "", "With --queries: column of the image")
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
    from big_retrieval.retrieval.searching import open_searcher

    searcher = open_searcher(
        Path(str(INDEX.value)),
        mode=MODE.value,
        checkpoint=RUN.value,
        field=QUERY_FIELD.value,
        engine=ENGINE.value,
        verify=VERIFY.value,
        batch_size=BATCH.value,
    )
    if QUERIES.value:
        column = IMAGE.value if searcher.image else ",".join(TEXT.value)
        where = {"column": column, "id": ID.value, "tag": TAG.value}
        searcher.write_run(QUERIES.value, Path(str(OUT.value)), DEPTH.value, **where)
        print(f"written to {OUT.value}")
        return
    if QUERY.value is not None:
        answer(searcher, QUERY.value)
        return
    converse(searcher)


def _check_flags() -> None:
    """Raises a UserError for flags that are missing or do not go together."""
    if not INDEX.value:
        raise UserError("--index is missing: the folder that big-retrieval index wrote.")
    if QUERY.value is not None and QUERIES.value:
        raise UserError("--query and --queries are both given; keep one of them.")
    if QUERY.value is not None and not QUERY.value.strip():
        raise UserError("--query is empty; give it a word, or an image's file.")
    if bool(QUERIES.value) != bool(OUT.value):
        raise UserError("--queries=FILE and --out=run.trec go together; give both or neither.")


def answer(searcher: "IndexSearcher", query: str) -> None:
    """Prints the best documents of one query.

    Raises:
      UserError: it is an image that cannot be read.
    """
    try:
        found = searcher.show(query, DEPTH.value)
    except Damaged as problem:
        raise UserError(str(problem)) from None
    for rank, document in enumerate(found, 1):
        print(f"{rank:>3}  {document.score:<9.4f} {document.id}  {document.shown}".rstrip())
        if document.words:
            words = ", ".join(f"{word} {value:.3g}" for word, value in document.words[:8])
            print(f"     {words}")
    if not found:
        print("nothing found: no document shares a word with the query")
    sys.stdout.flush()


def converse(searcher: "IndexSearcher") -> None:
    """Answers one line after the other, from a terminal or a pipe, to its end.

    What is wrong with a line is said, and the next one read. Once nobody reads the answers any more
    (`| head -1`) no further line is read.
    """
    terminal = sys.stdin.isatty()
    if terminal:
        import readline  # noqa: F401  # lines can be edited, and called back

        count, about = len(searcher.index), searcher.index.about
        print(f"{count:,} documents of {about.kind} {searcher.index.folder}; Ctrl-D ends")
    while True:
        try:
            line = input("query> " if terminal else "").strip()
        except EOFError:
            if terminal:
                print()
            return
        try:
            if line:
                answer(searcher, line)
        except UserError as problem:
            print(f"error: {problem}", file=sys.stderr, flush=True)
        if screen.closed():
            return
