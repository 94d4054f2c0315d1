"""The configuration of text retrieval data in their published forms; see `big_retrieval.config`.

All three have their query in the column `query`, the right document in `text` with its `title`, so
that a model that was trained on one is evaluated on another as it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from big_retrieval.config.graded import GradedScenes
from big_retrieval.config.ranges import AtLeast0
from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source, check_min_relevance, not_empty

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.data.sources import RecordSource

COLUMNS = ("query", "text", "title")


class TextSource(Source):
    """The base of sources that have texts alone."""

    columns: ClassVar[tuple[str, ...]] = ()  # that their texts are in; (): more than are known

    def check_training(self, config: "Config") -> Iterator[str]:
        for name, each in config.fields.items():
            path = f"config.fields.{name}"
            if each.modality == "image":
                yield f"{path} reads images; config.data of the type {self.type!r} has texts alone."
            elif each.modality == "text" and self.columns and each.column not in self.columns:
                yield (
                    f"{path}.column is {each.column!r}; config.data of the type {self.type!r} has "
                    f"texts in {', '.join(map(repr, self.columns))}."
                )

    def runlocal(self) -> GradedScenes:
        return GradedScenes()


@register("source")
@dataclass(frozen=True)
class Dpr(TextSource):
    """Questions with right and wrong passages, in DPR's form.

    Records have `query`, `text` and `title` of a right passage (of all of them where one is drawn),
    `negatives`, `answers`, and `document_id` (beside each where one is drawn) where passages have a
    `passage_id` or `psg_id`.
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS
    type: Literal["dpr"] = "dpr"
    # JSON lines or a JSON array of {"question", "answers", "positive_ctxs", "negative_ctxs",
    # "hard_negative_ctxs"}, whose passages are {"title", "text"}; several files: "nq/*.jsonl"
    path: str = ""
    positive: Literal["first", "any"] = "first"  # the first right passage, or one that is drawn
    # where the negatives come from; later lists are used when the earlier ones have too few
    negatives: tuple[str, ...] = ("hard_negative_ctxs", "negative_ctxs")
    normalise: bool = True  # curly apostrophes become straight ones, line ends spaces
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "file with questions and passages")

    def check_training(self, config: "Config") -> Iterator[str]:
        yield from super().check_training(config)
        count = config.negatives.count
        if count > 0 and not self.negatives:
            yield (
                f"config.negatives.count is {count}, but config.data.negatives is empty; name the "
                "lists that they come from, such as ('hard_negative_ctxs',)."
            )

    def build(self) -> "RecordSource":
        from big_retrieval.data.passages.published import dpr

        return dpr(self)


@register("source")
@dataclass(frozen=True)
class Triples(TextSource):
    """A query, a document that answers it and one that does not, in MS MARCO's forms.

    Records have `query`, `text` and `title` of a right document, `negatives`, and, where ids are
    read, `query_id` and `document_id` (of each where one is drawn).
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS
    type: Literal["triples"] = "triples"
    # a file without a header line, tab-separated: three texts, or three ids; or JSON lines of
    # {"query", "pos", "neg"}, where pos and neg may be lists, and neg lists by name
    path: str = ""
    queries: str = ""  # file of the texts of the queries' ids: id and text; empty: path has texts
    # file of the documents': id, text and perhaps title (tab-separated), or JSON lines
    documents: str = ""
    positive: Literal["first", "any"] = "first"  # of several right documents
    # names of the lists of `neg` that negatives come from, such as ("bm25",); empty for all lists
    lists: tuple[str, ...] = ()
    # 0: a line is a record. N: the tab-separated lines of one query are one record, so that an
    # epoch has each query once; at most N of these lines are read, evenly spread
    by_query: AtLeast0 = 0
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "file with triples")
        if self.lists and self.by_query:
            yield (
                f"{path}.lists names lists of JSON lines, {path}.by_query groups tab-separated "
                "lines; set one of them only."
            )
        if bool(self.queries) != bool(self.documents):
            key = "documents" if self.queries else "queries"
            yield (
                f"{path}.{key} is empty; triples of ids need the files of both texts, of texts "
                "none."
            )

    def build(self) -> "RecordSource":
        from big_retrieval.data.passages.triples import triples

        return triples(self)


@register("source")
@dataclass(frozen=True)
class Beir(TextSource):
    """Judged pairs in BEIR's form: corpus.jsonl, queries.jsonl, qrels/<split>.tsv in one folder.

    Records have `query_id`, `query`, `document_id`, `title`, `text` and `score`. A relevance below
    0 counts as 0.
    """

    graded: ClassVar[bool] = True
    same_ids: ClassVar[bool] = True
    has_negatives: ClassVar[bool] = False
    type: Literal["beir"] = "beir"
    path: str = ""  # the folder
    split: str = "test"
    query_column: str = "query"  # what records call the text of a query,
    text_column: str = "text"  # and that of a document
    min_relevance: float = 0.0  # pairs of lower relevance are skipped; 1: train on relevant ones
    # of a pair that is there with different relevance: an error, or which one counts
    duplicates: Literal["refuse", "max", "min", "mean", "first"] = "refuse"
    # pairs with a query that no file has are skipped and counted, instead of an error; documents
    # that no file has are counted as not found in any case
    skip_unknown_ids: bool = False
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "folder with corpus.jsonl, queries.jsonl and qrels")
        if not self.split:
            yield f"{path}.split is empty; name that of qrels/<split>.tsv, such as 'test'."
        if not self.query_column or not self.text_column:
            yield f"{path}.query_column and {path}.text_column must be names."
        yield from check_min_relevance(self, path)

    def check_training(self, config: "Config") -> Iterator[str]:
        if self.min_relevance <= 0 and not config.labels.score:
            yield (
                "config.data.min_relevance is 0, so that pairs judged as wrong would be trained as "
                "right ones; set it to 1, or name config.labels.score."
            )
        yield from super().check_training(config)

    def build(self) -> "RecordSource":
        from big_retrieval.data.passages.published import beir

        return beir(self).build()
