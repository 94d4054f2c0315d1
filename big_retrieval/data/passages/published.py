"""Published forms of text retrieval data: DPR's passages and BEIR's folders."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.ranges import NotNegative
from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source, not_empty
from big_retrieval.data.formats.open_files import file_table, find_files, table_of
from big_retrieval.data.formats.tables import Table, combined_digest
from big_retrieval.data.judged.graded import GradedPairs
from big_retrieval.data.judged.open_graded import Graded
from big_retrieval.data.negatives import read_negatives
from big_retrieval.data.sources import Record, RecordSource, as_texts, as_utf8, is_absent
from big_retrieval.data.stores.json_files import json_reader
from big_retrieval.data.synthetic.graded_scenes import GradedScenes
from big_retrieval.data.text.normalize import normalize_text
from big_retrieval.errors import Damaged, UserError

if TYPE_CHECKING:
    from big_retrieval.config.run import Config

Document = Mapping[str, Any]  # title, text and perhaps document_id

POSITIVES = "positive_ctxs"
COLUMNS = ("query", "text", "title")  # of Dpr and Triples, and by default of Beir
PASSAGE_IDS = ("passage_id", "psg_id")  # keys of DPR's passages
DPR_ADVICE = (
    'write one {"question": ..., "answers": [...], "positive_ctxs": [{"title": ..., "text": ...}], '
    '"hard_negative_ctxs": [...]} per line'
)
STRAIGHT = str.maketrans({"’": "'", "\n": " "})


class TextSource(Source):
    """Base class of sources with only texts."""

    columns: ClassVar[tuple[str, ...]] = ()  # columns of texts; empty if there may be others

    def check_training(self, config: "Config") -> Iterator[str]:
        for name, field in config.fields.items():
            path = f"config.fields.{name}"
            if field.modality == "image":
                yield f"{path} reads images; config.data of the type {self.type!r} has only texts."
            elif field.modality == "text" and self.columns and field.column not in self.columns:
                yield (
                    f"{path}.column is {field.column!r}; config.data of the type {self.type!r} has "
                    f"texts in {', '.join(map(repr, self.columns))}."
                )

    def runlocal(self) -> GradedScenes:
        return GradedScenes()


class Passages(RecordSource):
    """Records with queries, documents and negatives, converted from the rows of a table.

    Args:
      read: converts a row and its location to a record, or raises `Damaged`; can be pickled.
      others: further tables with texts for `read`.
    """

    def __init__(
        self, table: Table, read: Callable[[Record, str], Record], more_tables: Sequence[Table] = ()
    ):
        self.name, self._table, self._read, self._others = table.name, table, read, more_tables

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> Record:
        self.check_index(index)
        record = self._read(self._table.row(index), self.place(index))
        return {"id": f"{self.name}-{index:06d}", **record}

    def place(self, index: int) -> str:
        return self._table.place(index)

    @property
    def fingerprint(self) -> str:
        return combined_digest(table.fingerprint for table in (self._table, *self._others))

    def captions(self) -> Iterator[str]:
        for index in range(len(self)):
            with contextlib.suppress(Damaged):
                record = self[index]
                for column in ("query", "title", "text"):
                    value = record[column]
                    yield from filter(None, (value,) if isinstance(value, str) else value)
                for negative in read_negatives(record["negatives"], "negatives", self.place(index)):
                    yield from filter(None, (negative.title, negative.text))


def positive_columns(documents: Sequence[Document], positive: str) -> Record:
    """Returns the columns `text` and `title` of a record, and `document_id` if it is known.

    Args:
      documents: relevant documents, at least one.
      positive: "first" for the first document; "any" for all documents with a text (training
        samples one).
    """
    if positive == "first":
        record = {name: documents[0][name] for name in ("text", "title")}
        key = documents[0].get("document_id")
        return record if key is None else {**record, "document_id": key}
    documents = [document for document in documents if document["text"].strip()] or documents
    record = {name: tuple(x[name] for x in documents) for name in ("text", "title")}
    ids = tuple(document.get("document_id") for document in documents)
    return record if all(key is None for key in ids) else {**record, "document_id": ids}


@register("source")
@dataclass(frozen=True)
class Dpr(TextSource):
    """Questions with relevant and non-relevant passages, in DPR's form.

    Records have `query`, `text` and `title` of a positive passage, `negatives` and `answers`. If
    passages have a `passage_id` or `psg_id`, records have `document_id`. If `positive` is "any",
    `text`, `title` and `document_id` have a value per positive passage.
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS
    type: Literal["dpr"] = "dpr"
    # JSON lines or a JSON array of {"question", "answers", "positive_ctxs", "negative_ctxs",
    # "hard_negative_ctxs"}, whose passages are {"title", "text"}; several files: "nq/*.jsonl"
    path: str = ""
    positive: Literal["first", "any"] = "first"  # the first positive passage, or a sampled one
    # lists of negatives; later lists are used if the earlier ones have too few
    negatives: tuple[str, ...] = ("hard_negative_ctxs", "negative_ctxs")
    normalise: bool = True  # converts curly apostrophes to straight ones, and line ends to spaces
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "file with questions and passages")

    def check_training(self, config: "Config") -> Iterator[str]:
        yield from super().check_training(config)
        count = config.negatives.count
        if count > 0 and not self.negatives:
            yield (
                f"config.negatives.count is {count}, but config.data.negatives is empty; name "
                "lists, such as ('hard_negative_ctxs',)."
            )

    def build(self) -> Passages:
        table, _ = table_of(find_files(self.path, self.how_to_get, DPR_ADVICE), json_reader)
        return Passages(table, partial(dpr_record, self))


def dpr_record(config: Dpr, row: Record, place: str) -> Record:
    """Converts a row of a file to a record; drops negatives with the text of a positive passage.

    Raises:
      Damaged: the question or a positive passage with a text is missing, or has another type.
    """

    def clean(text: str) -> str:
        text = as_utf8(text)
        return text.translate(STRAIGHT).strip() if config.normalise else text

    (question, *_) = as_texts(row.get("question"), "question", place)
    positives = [x for x in _passages(row, POSITIVES, clean, place) if x["text"].strip()]
    if not positives:
        raise Damaged(place, f"{POSITIVES!r} has no passage with a text")
    positive_texts = {normalize_text(passage["text"]) for passage in positives}
    negatives = [
        {"title": passage["title"], "text": passage["text"], "pool": pool}
        for pool, key in enumerate(config.negatives)
        for passage in _passages(row, key, clean, place)
        if normalize_text(passage["text"]) not in positive_texts
    ]
    answers = row.get("answers", row.get("answer"))
    return {
        "query": clean(question),
        **positive_columns(positives, config.positive),
        "negatives": negatives,
        "answers": () if is_absent(answers) else as_texts(answers, "answers", place),
    }


def _passages(row: Record, key: str, clean: Callable[[str], str], place: str) -> list[Document]:
    values = [] if row.get(key) is None else row[key]
    if not isinstance(values, list):
        raise Damaged(place, f"{key!r} is {values!r:.80}, not a list of passages")
    passages = []
    for passage in values:
        texts = (
            [passage.get(name) for name in ("title", "text")]
            if isinstance(passage, Mapping)
            else [0]
        )
        if not all(text is None or isinstance(text, str) for text in texts):
            raise Damaged(place, f'{key!r} has {passage!r:.80}, not {{"title": ..., "text": ...}}')
        title, text = (clean(str(text or "")) for text in texts)
        ids = (str(passage[x]) for x in PASSAGE_IDS if not is_absent(passage.get(x)))
        passages.append({"title": title, "text": text, "document_id": next(ids, None)})
    return passages


@register("source")
@dataclass(frozen=True)
class Beir(TextSource):
    """Judged pairs in BEIR's form: corpus.jsonl, queries.jsonl, qrels/<split>.tsv in one folder.

    Records have `query_id`, `query`, `document_id`, `title`, `text` and `score`. Negative relevance
    counts as 0.
    """

    graded: ClassVar[bool] = True
    same_ids: ClassVar[bool] = True
    has_negatives: ClassVar[bool] = False
    type: Literal["beir"] = "beir"
    path: str = ""  # folder
    split: str = "test"
    query_column: str = "query"  # name of the query text in records
    text_column: str = "text"  # name of the document text in records
    # pairs with lower relevance are skipped; 0 keeps all, 1 keeps relevant pairs for training
    min_relevance: NotNegative = 0.0
    # relevance of a pair that occurs with different values; refuse raises an error
    duplicates: Literal["refuse", "max", "min", "mean", "first"] = "refuse"
    skip_unknown_ids: bool = False  # skips pairs with an unknown query, instead of an error
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "folder with corpus.jsonl, queries.jsonl and qrels")
        if not self.split:
            yield f"{path}.split is empty; give the <split> of qrels/<split>.tsv, such as 'test'."
        if not self.query_column or not self.text_column:
            yield f"{path}.query_column and {path}.text_column must be names."

    def check_training(self, config: "Config") -> Iterator[str]:
        if self.min_relevance <= 0 and not config.labels.score:
            yield (
                "config.data.min_relevance is 0, so non-relevant pairs would be positives. Set it "
                "to 1, or name config.labels.score."
            )
        yield from super().check_training(config)

    def judged_pairs(self) -> Graded:
        """Returns the source of a folder with corpus, queries and qrels/<split>.tsv."""
        folder, qrels = Path(self.path), f"qrels/{self.split}.tsv"
        advice = f"give a folder in BEIR's form, with corpus.jsonl, queries.jsonl and {qrels}"
        query, text, titles = self.query_column, self.text_column, has_titles(folder)
        rename = ["pairs.query-id=query_id", "pairs.corpus-id=document_id", f"queries.text={query}"]
        if text == "title" and titles:  # a model that reads only titles reads the texts instead
            rename, titles = [*rename, "documents.title=heading"], False
        rename += [] if text == "text" else [f"documents.text={text}"]
        return Graded(
            path=str(folder / qrels),
            queries=str(folder / "queries.jsonl"),
            query_key="_id",
            documents=str(folder / "corpus.jsonl"),
            document_key="_id",
            rename=tuple(rename),
            text=(query, "title", text) if titles else (query, text),
            negative="zero",
            min_relevance=self.min_relevance,
            duplicates=self.duplicates,
            skip_unknown_ids=self.skip_unknown_ids,
            how_to_get=self.how_to_get or advice,
        )

    def build(self) -> GradedPairs:
        return self.judged_pairs().build()


def has_titles(folder: Path) -> bool:
    """Returns True if documents of a folder in BEIR's form have titles, or cannot be read."""
    try:
        return "title" in (file_table(folder / "corpus.jsonl").columns or ())
    except (OSError, UserError):
        return True  # opening the file raises the error again
