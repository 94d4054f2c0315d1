"""Searches an index that `big-retrieval index` built.

    big-retrieval search --index=FOLDER --query="words"
    big-retrieval search --index=FOLDER --image=PICTURE     # for models that read images
    big-retrieval search --index=FOLDER                     # reads queries from the terminal
    big-retrieval search --index=FOLDER --queries=FILE --out=run.trec

--mode=bag searches by the words of the query, with the index and without its model.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from big_retrieval.cli.option_groups import OutputOptions, PluginOptions
from big_retrieval.cli.options import AtLeast1, Flag, only_one
from big_retrieval.errors import UserError


@dataclass(frozen=True, kw_only=True)
class SearchOptions(OutputOptions, PluginOptions):
    index: Path  # Folder of the index
    query: str | None = None  # One query
    queries: str | None = None  # Files of queries, in the forms of documents
    out: Annotated[Path | None, Flag(needs="queries")] = None  # TREC run file to write
    tag: Annotated[str, Flag(needs="out")] = "big_retrieval"  # Name of the run in that file
    text: Annotated[tuple[str, ...], Flag(needs="queries")] = ()  # Column of the text
    image: str = ""  # Image file as the query; with --queries: column of the image
    id: Annotated[str, Flag(needs="queries")] = ""  # Column of the ids
    depth: AtLeast1 = 10  # Maximum number of documents per query
    # Search mode; by default the mode of the index
    mode: Literal["parametric", "bag", "binary"] | None = None
    run: str = ""  # Run or checkpoint folder of the model, if it has moved
    query_field: str = ""  # Model field that encodes queries
    verify: bool = False  # Verify the checksums of all files first
    batch_size: AtLeast1 = 64  # Queries encoded at a time


def main(options: SearchOptions) -> None:
    only_one(options, "query", "queries")
    only_one(options, "query", "image")
    if options.query is not None and not options.query.strip():
        raise UserError("--query is empty. Add words, or an image file.")
    if options.queries and not options.out:
        raise UserError("--queries needs --out. Add --out=run.trec.")
    with options.owning_file(options.out):
        _search(options)


def _search(options: SearchOptions) -> None:
    from big_retrieval.retrieval.answers import answer, converse
    from big_retrieval.retrieval.index_search import open_searcher

    searcher = open_searcher(
        options.index,
        mode=options.mode,
        checkpoint=options.run,
        field=options.query_field,
        verify=options.verify,
        batch_size=options.batch_size,
        image=bool(options.image),
        lazy=options.queries is not None,  # reads the files of queries first
    )
    if options.queries and options.out:
        column = options.image if searcher.image else ",".join(options.text)
        where = {"column": column, "id": options.id, "tag": options.tag}
        searcher.write_run(options.queries, options.out, options.depth, **where)
        print(f"written to {options.out}")
    elif options.image and not searcher.image:
        raise UserError(
            f"--image needs an image field, but queries of {options.index} have the field "
            f"{searcher.field!r}. Use --query=WORDS."
        )
    elif options.query is not None or options.image:
        answer(searcher, options.query or options.image, options.depth)
    else:
        converse(searcher, options.depth)
