"""The configuration of text retrieval data in their published forms; see `big_retrieval.config`.

All three have their query in the column `query`, the right document in `text` with its `title`, so
that a model that was trained on one is evaluated on another as it is.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Dpr:
    """Questions with right and wrong passages, in DPR's form.

    Records have `query`, `text` and `title` of a right passage (of all of them where one is drawn),
    `negatives`, `answers`, and `document_id` (beside each where one is drawn) where passages have a
    `passage_id` or `psg_id`.
    """

    type: Literal["dpr"] = "dpr"
    # JSON lines or a JSON array of {"question", "answers", "positive_ctxs", "negative_ctxs",
    # "hard_negative_ctxs"}, whose passages are {"title", "text"}; several files: "nq/*.jsonl"
    path: str = ""
    positive: Literal["first", "any"] = "first"  # the first right passage, or one that is drawn
    # where the negatives come from; later lists are used when the earlier ones have too few
    negatives: tuple[str, ...] = ("hard_negative_ctxs", "negative_ctxs")
    normalise: bool = True  # curly apostrophes become straight ones, line ends spaces
    how_to_get: str = ""


@dataclass(frozen=True)
class Triples:
    """A query, a document that answers it and one that does not, in MS MARCO's forms.

    Records have `query`, `text` and `title` of a right document, `negatives`, and, where ids are
    read, `query_id` and `document_id` (of each where one is drawn).
    """

    type: Literal["triples"] = "triples"
    # a file without a header line, tab-separated: three texts, or three ids; or JSON lines of
    # {"query", "pos", "neg"}, where pos and neg may be lists, and neg lists by name
    path: str = ""
    queries: str = ""  # file of the texts of the queries' ids: id and text; empty: path has texts
    # file of the documents': id, text and perhaps title (tab-separated), or JSON lines
    documents: str = ""
    positive: Literal["first", "any"] = "first"  # of several right documents
    how_to_get: str = ""


@dataclass(frozen=True)
class Beir:
    """Judged pairs in BEIR's form: corpus.jsonl, queries.jsonl, qrels/<split>.tsv in one folder.

    Records have `query_id`, `query`, `document_id`, `title`, `text` and `score`. A grade below 0
    counts as 0.
    """

    type: Literal["beir"] = "beir"
    path: str = ""  # the folder
    split: str = "test"
    least: float = 0.0  # pairs of lower grades are left out; 1 keeps what fits, to train on
    # of a pair that is there with different grades: an error, or which one counts
    twice: Literal["refuse", "max", "min", "mean", "first"] = "refuse"
    drop: bool = False  # leave out pairs whose query or document is unknown, counted, not an error
    how_to_get: str = ""
