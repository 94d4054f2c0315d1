"""Judged pairs of queries and documents, from files or generated; see `big_retrieval.config`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from big_retrieval.config.registry import register
from big_retrieval.config.sources import (
    Source,
    check_drawn,
    check_min_relevance,
    check_terms,
    not_empty,
)

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.data.sources import RecordSource

MOST_DOCUMENTS = 1_000_000  # every query is compared with all of them at the start
SCENE_TEXTS = ("query", "title")


@register("source")
@dataclass(frozen=True)
class Graded(Source):
    """Judged pairs of queries and documents, with how well they fit.

    A record is a pair with the columns of its query and its document; evaluations rank all
    documents for each query.
    """

    graded: ClassVar[bool] = True
    type: Literal["graded"] = "graded"
    # the pairs: CSV, TSV, JSONL, Parquet, {query: {document: score}} in JSON, qrels, or a prepared
    # data set: "tfds:marqo_gs_10m/in_domain"; `queries` and `documents` can be one, too
    path: str = ""
    query: str = "query_id"  # column of the query's id in the pairs; or of the text itself
    document: str = "document_id"  # column of the document's id in the pairs
    score: str = "score"  # column of the score, rank or clicks
    # what that column holds; the best rank, 1, is a score of s_max, as are the most clicks
    score_from: Literal["score", "rank", "clicks"] = "score"
    s_max: float = 100.0  # of scores from ranks and clicks
    where: tuple[str, ...] = ()  # such as "split=train": only pairs with this value
    queries: str = ""  # file with a row a query; empty: its columns are those of the pairs
    query_key: str = ""  # column of ids in that file; empty: named as in the pairs
    documents: str = ""  # file with a row a document; empty: its columns are those of the pairs
    document_key: str = ""  # column of ids in that file; empty: named as in the pairs
    where_documents: tuple[str, ...] = ()  # such as "corpus=A": the documents that are ranked
    text: tuple[str, ...] = ("query", "title")  # columns of texts, of queries and documents
    image: str = ""  # column of the documents' images: a path, bytes, or one or several keys
    images: str = ""  # file (npz, Parquet, ...) of the images with these keys
    image_key: str = "image_id"  # column of keys in that file
    image_value: str = "images"  # column of images in that file
    root: str = ""  # folder that image paths start from; empty: that of the documents' file
    # pairs without ids, or with a query that no file has, are skipped and counted instead of an
    # error; documents that no file has are counted as not found in any case
    skip_unknown_ids: bool = False
    # of a pair that is there with different scores: an error, or which one counts
    duplicates: Literal["refuse", "max", "min", "mean", "first"] = "refuse"
    negative: Literal["refuse", "zero"] = "refuse"  # what a score below 0 is: an error, or 0
    min_relevance: float = 0.0  # pairs of lower scores are skipped; 1 keeps what fits, to train on
    rename: tuple[str, ...] = ()  # columns, before all else: "queries.text=query", "pairs.pid=id"
    how_to_get: str = ""  # said when `path` does not exist

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "file with your judged pairs")
        yield from self.check_columns(path)

    def check_columns(self, path: str) -> Iterator[str]:
        """What is wrong with all keys but `path`, a sentence each.

        Args:
          path: of this source, such as `config.data`.
        """
        names = {key: getattr(self, key) for key in ("query", "document", "score")}
        for key, name in names.items():
            if not name:
                yield f"{path}.{key} is empty; name the column of the pairs."
        if len(set(names.values())) < len(names):
            said = ", ".join(f"{path}.{key} {name!r}" for key, name in names.items())
            yield f"{said}: query, document and score need three columns."
        if not (math.isfinite(self.s_max) and self.s_max >= 1):
            yield f"{path}.s_max is {self.s_max}; it must be 1 or more."
        yield from check_min_relevance(self, path)
        for term in self.rename:
            part, _, rest = term.partition(".")
            column, _, name = rest.partition("=")
            if part not in ("pairs", "queries", "documents") or not column or not name:
                yield f"{path}.rename has {term!r}; write such as queries.text=query."
        if not self.text:
            yield f"{path}.text is empty; name the columns of texts, such as ('query', 'title')."
        yield from check_terms(self, path, "where", "where_documents")
        for key, needs in (
            ("query_key", "queries"),
            ("document_key", "documents"),
            ("where_documents", "documents"),
            ("images", "image"),
        ):
            if getattr(self, key) and not getattr(self, needs):
                yield f"{path}.{key} is set, but {path}.{needs} is empty; give both or neither."
        for key in ("image_key", "image_value"):
            if self.images and not getattr(self, key):
                yield f"{path}.{key} is empty; name the column of {path}.images."

    def check_training(self, config: "Config") -> Iterator[str]:
        for name, each in config.fields.items():
            if each.modality == "image" and not self.image:
                yield (
                    f"config.data.image is empty, but config.fields.{name} reads images; name the "
                    "column of the documents' images."
                )
            elif each.modality == "image" and each.column != "image":
                yield (
                    f"config.fields.{name}.column is {each.column!r}; judged pairs have their "
                    "image in 'image'."
                )

    def build(self) -> "RecordSource":
        from big_retrieval.data.judged import open_graded

        return open_graded.graded(self)

    def runlocal(self) -> "GradedScenes":
        return GradedScenes()


@register("source")
@dataclass(frozen=True)
class GradedScenes(Source):
    """Generated judged pairs: queries such as "red circle" and scenes with images and titles."""

    generated: ClassVar[bool] = True
    graded: ClassVar[bool] = True
    type: Literal["graded_scenes"] = "graded_scenes"
    split: Literal["in_domain", "novel_query", "novel_document", "zero_shot"] = "in_domain"
    size: int = 32
    count: int = 400  # documents
    seed: int = 0

    def check(self, path: str) -> Iterator[str]:
        yield from check_drawn(self, path, MOST_DOCUMENTS)

    def check_training(self, config: "Config") -> Iterator[str]:
        known = {"image": ("images", ("image",)), "text": ("texts", SCENE_TEXTS)}
        for name, each in config.fields.items():
            words, columns = known.get(each.modality, ("", (each.column,)))
            if each.column not in columns:
                yield (
                    f"config.fields.{name}.column is {each.column!r}; generated judged pairs have "
                    f"{words} in {' and '.join(map(repr, columns))}."
                )

    def build(self) -> "RecordSource":
        from big_retrieval.data.synthetic.graded_scenes import graded_scenes

        return graded_scenes(self.split, size=self.size, count=self.count, seed=self.seed)

    def runlocal(self) -> "GradedScenes":
        return GradedScenes()
