"""Options of the demo; imports nothing heavy, so that --help starts quickly."""

from dataclasses import dataclass

from big_retrieval.cli.options import AtLeast1
from big_retrieval.retrieval.index_options import DocumentColumns


@dataclass(frozen=True)
class DemoOptions(DocumentColumns):
    """Models and documents of the demo."""

    # Run or checkpoint folders of the models; by default the runs that --index names
    run: tuple[str, ...] = ()
    # Index folders, of the same documents; by default documents are encoded at the start
    index: tuple[str, ...] = ()
    data: str = ""  # Files of documents, as for index; or evals.NAME or data of the run's config
    query_field: str = ""  # Model field that encodes words
    limit: AtLeast1 = 10_000  # Maximum number of documents encoded at the start
