"""The files of judged pairs, of their queries and of their documents as tables."""

from collections.abc import Sequence
from pathlib import Path

from big_retrieval.config.graded import Graded
from big_retrieval.data.formats.arrow import read_csv
from big_retrieval.data.formats.open_files import file_table, files_of, opened, table_of, terms_of
from big_retrieval.data.formats.prepared import SCHEME, open_prepared
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.formats.views import renamed, selected
from big_retrieval.data.formats.whole import JUDGED, judged_lines, judged_objects, objects
from big_retrieval.errors import UserError

ADVICE = "write a file with a row for each pair: the ids of query and document, and their score"


def pairs_table(config: Graded) -> Table:
    """The rows of the pairs that `where` chooses; of files without columns' names under ours.

    Raises:
      UserError: the file is missing or of another kind, or no row is chosen.
    """
    names = (config.query, config.document, config.score)

    if config.path.startswith(SCHEME):
        image = "" if config.documents or config.images else config.image
        return _chosen(_prepared(config.path, image, config.how_to_get), config.where, "where")

    def open_file(path: Path) -> Table:
        ending = path.suffix.lower()
        if ending == ".json":
            return opened(path, judged_objects, *names)
        lines = opened(path, judged_lines, *names) if ending in JUDGED else None
        if lines is None and ending in JUDGED and ending != ".tsv":
            return opened(path, read_csv, "\t")
        return file_table(path) if lines is None else lines

    table, _ = table_of(files_of(config.path, config.how_to_get or ADVICE), open_file)
    return _chosen(table, config.where, "where")


def side_table(
    path: str, key: str, where: Sequence[str] = (), how_to_get: str = "", image: str = ""
) -> Table:
    """The rows of a file of queries or documents.

    Args:
      path: a file or a pattern.
      key: the column that the ids of a JSON object get.
      where: conditions on its rows.
      how_to_get: said where it is missing.
      image: the feature of a prepared data set that holds images; "": none.

    Raises:
      UserError: the file is missing or of another kind, or no row is chosen.
    """

    if path.startswith(SCHEME):
        return _chosen(_prepared(path, image, how_to_get), where, "where_documents")

    def open_file(path: Path) -> Table:
        json = path.suffix.lower() == ".json"
        return opened(path, objects, key) if json else file_table(path)

    table, _ = table_of(files_of(path, how_to_get or "write a file with a row for each"), open_file)
    return _chosen(table, where, "where_documents")


def _chosen(table: Table, where: Sequence[str], key: str) -> Table:
    """The rows that meet the conditions of a key of the configuration."""
    return selected(table, terms_of(where, key), key) if where else table


def _prepared(path: str, image: str, how_to_get: str) -> Table:
    """A split of a prepared data set."""
    try:
        return open_prepared(path, image)
    except UserError as problem:
        hint = f"; {how_to_get}" if how_to_get else ""
        raise UserError(f"{str(problem).rstrip('.')}{hint}.") from None


def renamed_part(table: Table, terms: Sequence[str], part: str) -> Table:
    """A table under the names that terms such as "queries.text=query" give to its columns.

    Args:
      table: of the file.
      terms: of all files.
      part: whose table it is: pairs, queries or documents.

    Raises:
      UserError: a term that is none, or of a column that the table lacks.
    """
    mine = [x.removeprefix(f"{part}.") for x in terms if x.startswith(f"{part}.")]
    return renamed(table, terms_of(mine, "rename", "queries.text=query"))
