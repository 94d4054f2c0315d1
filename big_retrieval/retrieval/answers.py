"""Queries from the command line or a terminal, and their printed results."""

import sys

from big_retrieval.errors import Damaged, UserError
from big_retrieval.retrieval.index_search import IndexSearcher
from big_retrieval.runtime import screen
from big_retrieval.runtime.messages import count_of


def answer(searcher: IndexSearcher, query: str, depth: int) -> None:
    """Prints at most `depth` documents for a query, a text or the path of an image."""
    try:
        results = searcher.show(query, depth)
    except Damaged as error:
        raise UserError(str(error)) from None
    for rank, document in enumerate(results, 1):
        shown = " ".join([document.id, "", *document.shown.split()])
        lines = [f"{rank:>3}  {document.score:<9.4f} {shown}".rstrip()]
        if document.words:
            common_words = ", ".join(f"{word} {value:.3g}" for word, value in document.words[:8])
            lines.append(f"     {common_words}")
        for line in lines:
            print(screen.visible(line).replace("\n", "\\n"))
    if not results:
        print("no results: no document shares a word with the query")
    sys.stdout.flush()


def converse(searcher: IndexSearcher, depth: int) -> None:
    """Answers every line of standard input, a terminal or a pipe.

    Prints errors and continues. Ends when the program that reads the results closes the pipe
    (`| head -1`).
    """
    terminal = sys.stdin.isatty()
    if terminal:
        import readline  # noqa: F401  # makes lines editable, with a history

        count, about = len(searcher.index), searcher.index.about
        print(f"{count_of(count, 'document')} of {about.kind} {searcher.index.folder}; Ctrl-D ends")
    while True:
        try:
            line = input("query> " if terminal else "").strip()
        except EOFError:
            if terminal:
                print()
            return
        try:
            if line:
                answer(searcher, line, depth)
        except UserError as error:
            print(f"error: {screen.visible(str(error))}", file=sys.stderr, flush=True)
        if screen.closed():
            return
