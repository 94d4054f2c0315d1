"""Queries from the command line or a terminal, and what is printed as their answers."""

import sys

from big_retrieval.errors import Damaged, UserError
from big_retrieval.retrieval.searching import IndexSearcher
from big_retrieval.runtime import screen


def answer(searcher: IndexSearcher, query: str, depth: int) -> None:
    """Prints the best documents of one query.

    Args:
      searcher: finds them.
      query: a text, or an image's file.
      depth: documents at most.

    Raises:
      UserError: the image cannot be read.
    """
    try:
        found = searcher.show(query, depth)
    except Damaged as problem:
        raise UserError(str(problem)) from None
    for rank, document in enumerate(found, 1):
        shown = " ".join([document.id, "", *document.shown.split()])
        lines = [f"{rank:>3}  {document.score:<9.4f} {shown}".rstrip()]
        if document.words:
            words = ", ".join(f"{word} {value:.3g}" for word, value in document.words[:8])
            lines.append(f"     {words}")
        for line in lines:
            print(screen.visible(line).replace("\n", "\\n"))
    if not found:
        print("nothing found: no document shares a word with the query")
    sys.stdout.flush()


def converse(searcher: IndexSearcher, depth: int) -> None:
    """Answers every line of standard input, which is a terminal or a pipe.

    A mistake in a line is said, and the next line is read. Once nobody reads the answers any more
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
                answer(searcher, line, depth)
        except UserError as problem:
            print(f"error: {screen.visible(str(problem))}", file=sys.stderr, flush=True)
        if screen.closed():
            return
