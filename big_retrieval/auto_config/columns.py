"""Chooses the roles of a table's columns by flags and names."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from big_retrieval.auto_config.data_flags import DataFlags
from big_retrieval.data.formats.pictures import IMAGES
from big_retrieval.data.formats.tables import Table
from big_retrieval.errors import Damaged, UserError

ENDINGS = tuple(ending.removeprefix(".") for ending in IMAGES)  # of members of tar shards
CLICKS, RANKS = ("clicks", "click_count", "purchases"), ("rank", "position")
NAMES = {  # role -> names of columns, in any case; the first present name counts
    "image": ("image", "img", "picture", "photo", "images", "pictures", "photos", "image_path",
              "image_file", "image_name", "filename", "file_name", "filepath", "file", "path",
              *ENDINGS),
    "text": ("captions", "caption", "text", "txt", "sentences", "sentence", "title", "description",
             "alt_text", "alt", "name", "product_name", "prompt", "comment", "keywords", "tags",
             "label", "query", "question", "search_query"),
    "query": ("query", "question", "search_query", "search_term", "keyword", "anchor", "queries",
              "questions", "question1", "sentence1", "text1", "premise", "input", "instruction",
              "prompt", "title"),
    "document": ("answer", "document", "passage", "positive", "positives", "pos", "response",
                 "reply", "answers", "context", "title", "product_title", "text", "question2",
                 "body", "content", "article", "abstract", "description", "sentence2", "text2",
                 "hypothesis", "output", "target"),
    "score": ("score", *CLICKS, "relevance", "grade", "rating", *RANKS, "score_linear"),
    "document_id": ("document_id", "doc_id", "product_id", "item_id", "pid", "docid", "asin",
                    "sku"),
}  # fmt: skip
# Columns that may contain the relevance of a row's two texts.
JUDGMENTS = (*NAMES["score"], "label", "labels", "gold_label", "is_duplicate", "duplicate",
             "relevance_score", "similarity", "similarity_score", "is_correct",
             "correct")  # fmt: skip
KINDS = {"captions": "images with texts", "answers": "pairs of texts", "clicks": "judged pairs"}
ROLES = {  # kind -> roles in the order of assignment
    "captions": ("image", "text"),
    "answers": ("query", "document"),
    "clicks": ("query", "image", "document", "score", "document_id"),
}
NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?(_(caption|text|answer|passage|document)s?)?(_\d+)?")
FIRST_ROWS = 2000  # rows that are checked for repeated queries


@dataclass(frozen=True)
class Roles:
    """Columns by role; `messages` gives the reasons for the choice."""

    kind: str
    columns: Mapping[str, str]
    messages: Sequence[str] = ()

    def __getitem__(self, role: str) -> str:
        return self.columns.get(role, "")


def normalize_name(name: str) -> str:
    """Returns the name of a column in lower case with underscores, without a prefix `json:`."""
    return re.sub(r"[^a-z0-9]+", "_", name.removeprefix("json:").lower()).strip("_")


def columns_of(table: Table) -> list[str]:
    """Returns the sorted columns of a table; if rows differ, the columns of the first row."""
    return sorted(table.row(0) if table.columns is None else table.columns)


class ColumnChooser:
    """Chooses columns for roles: columns of flags, then `preferred` columns, then known names.

    `preferred` is None if the data choose the model, too.
    """

    def __init__(
        self, table: Table, flags: DataFlags, data: str, preferred: Mapping[str, str] | None = None
    ):
        self._table, self._data, self._columns = table, data, columns_of(table)
        self._flags = {role: getattr(flags, role) for role in NAMES}
        self._preferred, self._messages = preferred, list[str]()
        self._images = flags.images
        for role, name in self._flags.items():
            if name and name not in self._columns:
                raise UserError(
                    f"{data} has no column {name!r}; it has {', '.join(self._columns)}. Correct "
                    f"--{role}."
                )

    def kind(self) -> str:
        """Returns the kind of the data, a key of `KINDS`."""
        flags = self._flags
        if self.is_judged():
            return "clicks"
        if flags["image"] or flags["text"]:
            return "captions"
        is_text = flags["query"] or flags["document"] or not self._candidates("image")
        return "answers" if is_text else "captions"

    def is_judged(self) -> bool:
        """Returns True for judged pairs: a score column, and queries that repeat."""
        if self._flags["score"] is not None:
            return bool(self._flags["score"])
        queries = [
            x for x in self._candidates("query") if normalize_name(x) not in ("title", "prompt")
        ]
        if self._flags["text"] or not queries or not self._candidates("score"):
            return False
        query, values = queries[0], []
        for index in range(min(FIRST_ROWS, len(self._table))):
            try:
                values.append(str(self._table.row(index, (query,)).get(query)))
            except Damaged:
                continue
        return len(set(values)) < 0.95 * len(values)

    def decide(self, kind: str) -> Roles:
        """Returns the roles of the columns for a kind of data."""
        unused = [role for role, name in self._flags.items() if name and role not in ROLES[kind]]
        if unused or (self._images and kind == "answers"):
            flag, choices = (*unused, "images")[0], ", ".join(f"--{role}" for role in ROLES[kind])
            raise UserError(f"--{flag} is not for {KINDS[kind]}, which take {choices}. Remove it.")
        columns: dict[str, str] = {}
        for role in ROLES[kind]:
            columns[role] = self._choose(role, columns.values())
        optional = {"document_id", "document" if columns.get("image") else "image"}
        for role, name in columns.items():
            if not name and (kind == "captions" or role not in optional):
                raise self._missing(role)
        negative = next((x for x in self._columns if NEGATIVE.fullmatch(normalize_name(x))), "")
        if kind == "captions" and negative:
            self._messages.append(f"column {negative!r} is not used: other captions are negatives")
        if kind == "answers":
            self._check_judgments(columns["document"])
            columns["negative"] = negative
            if negative:
                self._messages.append(
                    f"column {negative!r} has hard negatives; --config.negatives.count=0 ignores it"
                )
        return Roles(kind, columns, self._messages)

    def _check_judgments(self, document: str) -> None:
        name = next(
            (x for x in self._columns if normalize_name(x) in JUDGMENTS and x != document), ""
        )
        if name and self._flags["score"] is None:
            raise UserError(
                f"{self._data}: column {name!r} may say which pairs belong together. "
                f"--score={name} weighs the pairs by it; --score= (empty) takes all pairs alike."
            )

    def _candidates(self, role: str) -> list[str]:
        """Returns the columns that fit a role; the first column counts."""
        if (name := self._flags[role]) is not None:
            return [name] if name else []
        named = {x for role, x in self._flags.items() if role != "document_id"}
        free = [x for x in self._columns if x not in named]
        if (name := (self._preferred or {}).get(role)) in free:
            return [name]
        by_name = {normalize_name(name): name for name in reversed(free)}
        return [by_name[name] for name in NAMES[role] if name in by_name]

    def _choose(self, role: str, taken: Collection[str]) -> str:
        """Returns the column of a role, or an empty string if no free column fits."""
        named = self._flags[role]
        names = [x for x in self._candidates(role) if named or x not in taken]
        if names:
            reason = f"by --{role}" if named else "by its name"
            alternatives = (
                f"; --{role} chooses another: {', '.join(names[1:])}" if names[1:] else ""
            )
            label = role.replace("_", " ")
            self._messages.append(f"column {names[0]!r} is the {label} ({reason}{alternatives})")
        return names[0] if names else ""

    def _missing(self, role: str) -> UserError:
        flags = f"--{role}=COLUMN"
        other = "other " * any(self._flags.values())
        if role == "query" and self._preferred is None:
            flags = "--query=COLUMN and --document=COLUMN, or --image=COLUMN and --text=COLUMN"
        return UserError(
            f"{self._data}: no {other}column is the {role} by its name; it has "
            f"{', '.join(self._columns)}. Name it: {flags}."
        )
