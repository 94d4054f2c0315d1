"""Search in an index by texts or images, in one of three modes.

| mode | queries | documents |
| --- | --- | --- |
| `parametric` | encoded by the model | as indexed |
| `bag` | bags of words, without a model (VDR's nonparametric query) | as indexed |
| `binary` | encoded by the model | bags of words |
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from big_retrieval.config import is_lexical
from big_retrieval.errors import UserError
from big_retrieval.evals.trec import TAG, RunWriter
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval import open_index
from big_retrieval.retrieval.folder import REBUILD, About
from big_retrieval.retrieval.inverted import InvertedIndex
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel
    from big_retrieval.retrieval.dense import DenseIndex

CHUNK = 256  # queries read and searched at a time
OTHER_MODEL = "Give the model of the index by --run, or build an index with this model"


@dataclass(frozen=True)
class SearchResult:
    """A document of a search result."""

    id: str
    score: float  # higher is better
    shown: str  # beginning of the text
    # Words of a lexical index with their parts of the score, largest first
    words: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class IndexSearcher:
    """An index with an encoder of queries."""

    index: "InvertedIndex | DenseIndex"
    mode: str
    field: str  # model field that encodes queries
    image: bool  # queries are images
    column: str  # column of the field in training
    encode: Callable[[Sequence[Any]], Any]  # converts queries to the input of `index.search`

    def ids(self, queries: Sequence[Any], depth: int) -> list[tuple[list[str], list[float]]]:
        """Returns the ids and scores of each query's best documents."""
        return [
            (self.index.ids.many(hits), scores[hits >= 0].tolist())
            for hits, scores in zip(*self.index.search(self.encode(queries), depth), strict=True)
        ]

    def write_run(
        self, files: str, out: Path, depth: int, *, column: str = "", id: str = "", tag: str = TAG
    ) -> None:
        """Searches for all queries of files (as in `documents.open_records`) and writes a run.

        Args:
          depth: maximum number of documents per query.
          column: column of the texts or images, or columns of texts separated by commas; empty for
            the column of the field.
          id: column of the ids; empty for "id" or "_id".
        """
        from big_retrieval.retrieval.documents import DocumentReader, open_records
        from big_retrieval.retrieval.encode import encoded

        name = column or self.column
        texts = {} if self.image else {self.field: name.split(",")}
        images = {self.field: name} if self.image else {}
        reader = DocumentReader("queries", texts, images=images, id=id, from_config=not column)
        records, reader = open_records("queries", files, reader)

        def answer(rows: Sequence[Any]) -> Any:
            return self.ids([row.values[self.field] for row in rows], depth)

        with RunWriter(out, tag) as run:
            for rows, answers in encoded(records, reader, CHUNK, answer, range(len(records))):
                for row, (ids, scores) in zip(rows, answers, strict=True):
                    run.add(row.id, ids, scores)

    def show(self, query: Any, depth: int) -> list[SearchResult]:
        """Returns the best documents for one query, with their texts and common words."""
        encoded = self.encode([query])
        documents, scores = self.index.search(encoded, depth)
        results = []
        for document, score in zip(documents[0].tolist(), scores[0].tolist(), strict=True):
            if document >= 0:
                row = self.index.store.row(document, ("id", "shown"))
                words = self._words(encoded, document)
                results.append(SearchResult(row["id"], score, row.get("shown", ""), words))
        return results

    @functools.cached_property
    def words(self) -> list[str]:
        """Word of each term of a lexical index."""
        words = BagOfWordsEncoder.load(self.index.folder).words
        folders.check_same(self.index.folder, self.index.stamp)
        return words

    def _words(self, encoded: Any, document: int) -> tuple[tuple[str, float], ...]:
        if not isinstance(self.index, InvertedIndex):
            return ()
        parts = self.index.explain(encoded.indices, encoded.data, document)
        return tuple((self.words[term], value) for term, value in parts)


def open_searcher(
    folder: Path,
    *,
    mode: str | None = None,
    checkpoint: str = "",
    field: str = "",
    verify: bool = False,
    batch_size: int = 64,
    image: bool = False,
    lazy: bool = False,
) -> IndexSearcher:
    """Opens an index and the encoder of its queries.

    Args:
      mode: None for "binary" if the index has bags of words, else "parametric".
      checkpoint: folder of the model; empty for the path in the index. Mode "bag" needs no model.
      field: field that encodes queries; empty for the default of the index.
      batch_size: queries encoded at a time.
      image: True if queries are images. Without `field`, the model's first image field reads them.
      lazy: True loads the model, and compares it with the index, when it encodes the first query.
    """
    index = open_index(folder, verify=verify)
    binary = index.about.bags
    mode = mode or ("binary" if binary else "parametric")
    if mode != "parametric" and not isinstance(index, InvertedIndex):
        raise UserError(f"--mode={mode} needs a lexical index, but {folder} is dense. Remove it.")
    if mode == "bag":
        if field and field != index.about.query_field:
            raise UserError(
                f"--mode=bag searches by the words of {index.about.query_field!r}, as {folder} was "
                "built. Remove --query_field."
            )
        return _bag_searcher(index)
    if (mode == "binary") != binary:
        content = "bags of words" if binary else "encoded documents"
        fitting = "binary" if binary else "parametric"
        raise UserError(
            f"--mode={mode} does not fit index {folder} with {content}. Use --mode={fitting}, or "
            f"build an index {'without' if binary else 'with'} --binary."
        )
    searcher, load_model = _model_searcher(index, mode, checkpoint, field, batch_size, image)
    if not lazy:
        load_model()
    return searcher


def _bag_searcher(index: "InvertedIndex | DenseIndex") -> IndexSearcher:
    """Opens a searcher by bags of words, which needs only the files of the index."""
    about = index.about
    if not about.query_length:
        raise UserError(f"--mode=bag needs texts, but field {about.query_field!r} reads images.")
    encoder = BagOfWordsEncoder.load(index.folder)
    if encoder.fingerprint() != about.terms_sha256:
        raise UserError(f"The tokenizer or terms of {index.folder} were replaced. {REBUILD}.")
    encode = functools.partial(encoder.bag, length=about.query_length)
    column = about.query_column or "text"
    return IndexSearcher(index, "bag", about.query_field, False, column, encode)


def _model_searcher(
    index: "InvertedIndex | DenseIndex",
    mode: str,
    checkpoint: str,
    field: str,
    batch_size: int,
    image: bool,
) -> tuple[IndexSearcher, Callable[[], "TrainedModel"]]:
    """Returns the searcher and the function that loads its model once."""
    from big_retrieval.inference import load, saved
    from big_retrieval.retrieval.encode import query_field, rows_of

    path = checkpoint or index.about.checkpoint
    if not Path(path).is_dir():
        or_words = ", or search by words only with --mode=bag" if index.about.terms else ""
        raise UserError(
            f"The model {path} of index {index.folder} does not exist. Add --run=RUN{or_words}."
        )
    folder = saved.find(path)
    config = saved.read_config(folder)
    images = [n for n, x in config.encoded.items() if x.modality == "image"]
    if image and not field and images:
        field = images[0]
    default = index.about.query_field
    if not field and default not in config.encoded:
        raise UserError(
            f"Queries of index {index.folder} need field {default!r}, but {folder} has no "
            f"such field. {OTHER_MODEL}."
        )
    name = query_field(config, field or default)

    @functools.cache
    def load_model() -> "TrainedModel":
        model = load.load_verified(folder, batch_size)
        check_model(index.about, model, name, index.folder)
        return model

    def encode(queries: Sequence[Any]) -> Any:
        return rows_of(load_model(), queries, field=name)

    part = config.fields[name]
    is_image = part.modality != "text"
    return IndexSearcher(index, mode, name, is_image, part.column, encode), load_model


def check_model(about: About, model: "TrainedModel", field: str, folder: Path) -> None:
    """Raises a UserError if a model's queries cannot be compared with an index's documents."""
    from big_retrieval.inference.fingerprint import params_sha256

    lexical, reason = is_lexical(model.config, field), ""
    if lexical != bool(about.terms):
        types = ("lexical", "dense") if lexical else ("dense", "lexical")
        reason = f"field {field!r} is {types[0]}, the index {types[1]} (see --query_field)"
    elif lexical:
        encoder = BagOfWordsEncoder(model.terms(field), model.tokenizer)
        if encoder.fingerprint() != about.terms_sha256:
            reason = "the vocabulary differs"
    expected = about.params_sha256
    if not reason and expected and expected != params_sha256(model.weights):
        reason = "the weights differ"
    if reason:
        raise UserError(
            f"Index {folder} does not fit model {model.folder}: {reason}. {OTHER_MODEL}."
        )
