"""Options of `big-retrieval index`; imports nothing heavy, so that --help starts quickly."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from big_retrieval.cli.options import AtLeast1, Flag
from big_retrieval.retrieval.exports import FORMATS


@dataclass(frozen=True, kw_only=True)
class DocumentColumns:
    """Columns of documents."""

    # Column of the text, or several, which are joined; by default as in training
    text: tuple[str, ...] = ()
    title: str = ""  # Column of the title; by default as in training, if any
    image: str = ""  # Column of the image; by default as in training
    show: str = ""  # Column that is shown with results; the text by default
    id: str = ""  # Column of the ids; "id", or numbers, by default


@dataclass(frozen=True)
class IndexOptions(DocumentColumns):
    """Options of an index."""

    run: Path  # Run or checkpoint folder of the model
    data: str  # Files of documents, separated by commas
    out: Path  # Folder to write
    # Model field, such as title, or image=0.9,title=0.1; all document fields by default
    field: str = ""
    query_field: str = ""  # Model field that will encode queries
    join: str = " "  # Text between several columns of --text
    binary: bool = False  # Index bags of words, without running the model
    values: Literal["float32", "float16"] = "float32"  # Type of stored values
    format: Annotated[str, Flag(choices=("index", *FORMATS))] = "index"  # Form of the output
    # With --format=lucene: factor of weights before they are rounded, such as 100
    quantise: float | None = None
    memory: Annotated[float, Flag(low=1)] = 512  # MiB of memory for building an inverted index
    # Maximum number of rows encoded at a time; CPUs take fewer of long texts
    batch_size: AtLeast1 = 64
