"""From an index folder and a way to ask to a searcher: texts or images in, documents out.

A search has one of three modes. "parametric": the model encodes the query. "bag": the query is the
bag of its words, so that neither model nor checkpoint is needed (VDR's nonparametric query).
"binary": the model encodes the query, and the documents are bags of words.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.config import is_lexical
from big_retrieval.errors import UserError
from big_retrieval.evals.trec import TAG, RunWriter
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval import open_index
from big_retrieval.retrieval.files import StoredTexts
from big_retrieval.retrieval.folder import REBUILD, About
from big_retrieval.retrieval.inverted import InvertedIndex
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel
    from big_retrieval.retrieval.dense import DenseIndex

CHUNK = 256  # queries that are read and searched at a time
MODES = ("parametric", "bag", "binary")


@dataclass(frozen=True)
class SearchResult:
    """A document that was found.

    Attributes:
      id: its id.
      score: higher is better.
      shown: the beginning of its text.
      words: in a lexical index, what each word adds to the score, largest first.
    """

    id: str
    score: float
    shown: str
    words: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class IndexSearcher:
    """An index with a way to encode queries.

    Attributes:
      index: of either kind.
      mode: of `MODES`.
      field: the model's field that encodes queries.
      image: whether queries are images.
      column: the column that the field reads in training.
      encode: turns queries into what `index.search` takes.
    """

    index: "InvertedIndex | DenseIndex"
    mode: str
    field: str
    image: bool
    column: str
    encode: Callable[[Sequence[Any]], Any]

    def search(self, queries: Sequence[Any], depth: int) -> tuple[np.ndarray, np.ndarray]:
        """The best documents for texts or images: numbers and scores, as `index.search` returns."""
        return self.index.search(self.encode(queries), depth)

    def ids(self, queries: Sequence[Any], depth: int) -> list[tuple[list[str], list[float]]]:
        """For each query the ids and scores of the best documents."""
        return [
            (self.index.ids.many(found), values[found >= 0].tolist())
            for found, values in zip(*self.search(queries, depth), strict=True)
        ]

    def write_run(
        self, files: str, out: Path, depth: int, *, column: str = "", id: str = "", tag: str = TAG
    ) -> None:
        """Answers all queries of files and writes a run file.

        Args:
          files: as `documents.open_records` takes them.
          out: the run file.
          depth: documents of a query at most.
          column: of the texts or images; several columns of texts are separated by commas; "": the
            field's.
          id: column of the ids; "": a usual one.
          tag: name of the run.

        Raises:
          UserError: no query can be read.
        """
        from big_retrieval.retrieval.documents import DocumentReader, open_records
        from big_retrieval.retrieval.encode import encoded

        name = column or self.column
        texts = {} if self.image else {self.field: name.split(",")}
        images = {self.field: name} if self.image else {}
        reader = DocumentReader("queries", texts, images=images, id=id, own=not column)
        records, reader = open_records("queries", files, reader)

        def answer(rows: Sequence[Any]) -> Any:
            return self.ids([row.values[self.field] for row in rows], depth)

        with RunWriter(out, tag) as run:
            for rows, answers in encoded(records, reader, CHUNK, answer):
                for row, (found, scores) in zip(rows, answers, strict=True):
                    run.add(row.id, found, scores)

    def show(self, query: Any, depth: int) -> list[SearchResult]:
        """The best documents for one query, with their texts and the words that they share."""
        encoded = self.encode([query])
        numbers, scores = self.index.search(encoded, depth)
        out = []
        for number, score in zip(numbers[0].tolist(), scores[0].tolist(), strict=True):
            if number >= 0:
                words = self._words(encoded, number)
                out.append(SearchResult(self.index.ids[number], score, self.texts[number], words))
        return out

    @functools.cached_property
    def texts(self) -> StoredTexts:
        """The text that a result shows, of each document."""
        texts = StoredTexts(self.index.folder, "texts")
        folders.check_same(self.index.folder, self.index.stamp)
        return texts

    @functools.cached_property
    def words(self) -> list[str]:
        """The word of each column of a lexical index."""
        words = BagOfWordsEncoder.load(self.index.folder).words
        folders.check_same(self.index.folder, self.index.stamp)
        return words

    def _words(self, encoded: Any, number: int) -> tuple[tuple[str, float], ...]:
        if not isinstance(self.index, InvertedIndex):
            return ()
        parts = self.index.explain(encoded.indices, encoded.data, number)
        return tuple((self.words[term], value) for term, value in parts)


def open_searcher(
    folder: Path,
    *,
    mode: str | None = None,
    checkpoint: str = "",
    field: str = "",
    engine: str = "exact",
    verify: bool = False,
    batch_size: int = 64,
    image: bool = False,
) -> IndexSearcher:
    """Opens an index and what encodes its queries.

    Args:
      folder: the index.
      mode: of `MODES`; None: "binary" for an index of bags of words, else "parametric".
      checkpoint: of the model; "": the path that the index has. Mode "bag" needs no model.
      field: the field that encodes queries; "": the one that the index names.
      engine: of dense indexes.
      verify: verify the checksums of all files.
      batch_size: queries encoded at a time.
      image: whether queries are images: without `field` the model's first image field reads them.

    Raises:
      UserError: the index is damaged, the mode does not fit the index, or the checkpoint is missing
        or holds another model than the one that made the index.
    """
    index = open_index(folder, verify=verify, engine=engine)
    binary = index.about.bags
    mode = mode or ("binary" if binary else "parametric")
    if mode == "bag":
        if field and field != index.about.query_field:
            raise UserError(
                f"--mode=bag asks by the words of {index.about.query_field!r}, for which {folder} "
                "was built; leave --query_field out."
            )
        return _bag_searcher(index)
    if mode == "binary" and not isinstance(index, InvertedIndex):
        raise _dense(mode, folder)
    if (mode == "binary") != binary:
        has = "bags of words" if binary else "encoded documents"
        fits = "binary" if binary else "parametric"
        raise UserError(
            f"--mode={mode} does not fit the index {folder}, which holds {has}: use --mode={fits}, "
            f"or build one {'without' if binary else 'with'} --binary."
        )
    return _model_searcher(index, mode, checkpoint, field, batch_size, image)


def _dense(mode: str, folder: Path) -> UserError:
    """The error for a mode that dense indexes do not have."""
    return UserError(
        f"--mode={mode} is for lexical indexes, and {folder} is dense; leave --mode out."
    )


def _bag_searcher(index: "InvertedIndex | DenseIndex") -> IndexSearcher:
    """A searcher by bags of words, which needs the files of the index only."""
    about = index.about
    if not isinstance(index, InvertedIndex):
        raise _dense("bag", index.folder)
    if not about.query_length:
        raise UserError(f"--mode=bag needs texts, and field {about.query_field!r} reads images.")
    words = BagOfWordsEncoder.load(index.folder)
    if words.fingerprint() != about.terms_sha256:
        raise UserError(f"the tokenizer or terms of {index.folder} are not its own; {REBUILD}.")

    def encode(texts: Sequence[Any]) -> Any:
        return words.bag(texts, about.query_length)

    return IndexSearcher(
        index, "bag", about.query_field, False, about.query_column or "text", encode
    )


def _model_searcher(
    index: "InvertedIndex | DenseIndex", mode: str, checkpoint: str, field: str, batch_size: int,
    image: bool,
) -> IndexSearcher:  # fmt: skip
    """A searcher that encodes queries by a model."""
    from big_retrieval.inference import load
    from big_retrieval.retrieval.encode import query_field, rows_of

    path = checkpoint or index.about.checkpoint
    if not Path(path).is_dir():
        raise UserError(
            f"the model {path} of the index {index.folder} is not there: give --run=RUN, or "
            "search by words alone with --mode=bag."
        )
    model = load.load(path, batch_size=batch_size)
    images = [n for n, each in model.config.encoded.items() if each.modality == "image"]
    if image and not field and images:
        field = images[0]
    asked = index.about.query_field
    if not field and asked not in model.config.encoded:
        raise UserError(
            f"the index {index.folder} is asked by the field {asked!r}, which {model.folder} "
            "lacks: give the model of the index with --run, or build an index with this one."
        )
    name = query_field(model.config, field or asked)
    check_model(index.about, model, name, index.folder)
    part = model.config.fields[name]

    def encode(values: Sequence[Any]) -> Any:
        return rows_of(model, values, name)

    return IndexSearcher(index, mode, name, part.modality != "text", part.column, encode)


def check_model(about: About, model: "TrainedModel", field: str, folder: Path) -> None:
    """Makes sure that a model's queries and the documents of an index can be compared.

    Raises:
      UserError: they cannot.
    """
    from big_retrieval.inference.fingerprint import params_sha256

    lexical = is_lexical(model.config, field)
    if lexical != bool(about.terms):
        kinds = ("lexical", "dense") if lexical else ("dense", "lexical")
        raise UserError(
            f"field {field!r} of {model.folder} is {kinds[0]} and the index {folder} {kinds[1]}; "
            "name another field with --query_field, or the model of the index with --run."
        )
    if lexical:
        words = BagOfWordsEncoder(model.terms(field), model.tokenizer)
        if words.fingerprint() != about.terms_sha256:
            raise UserError(
                f"the index {folder} has another vocabulary than the model {model.folder}; give "
                "the model of the index with --run, or build an index with this one."
            )
    if about.params_sha256 and about.params_sha256 != params_sha256(model.weights):
        raise UserError(
            f"the index {folder} was made by other weights than those of {model.folder}; give the "
            "model of the index with --run, or build an index with this one."
        )
