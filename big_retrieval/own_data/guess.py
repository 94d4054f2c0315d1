"""Guesses which column is the image, the caption, the question ..., where the user says nothing."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from big_retrieval.errors import UserError
from big_retrieval.own_data.columns import Column, verdict_of

NAMES = {  # role -> what people call such columns, the likeliest first
    "image": ("image", "img", "picture", "photo", "image_path", "image_file", "filename",
              "file_name", "filepath", "file", "path", "jpg", "png"),
    "text": ("captions", "caption", "text", "txt", "sentences", "sentence", "title", "description",
             "alt_text", "alt", "name", "product_name", "prompt", "keywords", "tags", "label"),
    "query": ("query", "question", "search_query", "search_term", "keyword", "anchor", "queries",
              "questions", "question1", "sentence1", "text1", "premise", "input", "instruction",
              "prompt", "title"),
    "document": ("answer", "document", "passage", "positive", "positives", "pos", "response",
                 "reply", "answers", "context", "title", "product_title", "text", "question2",
                 "body", "content", "article", "abstract", "description", "sentence2", "text2",
                 "hypothesis", "output", "target"),
    "score": ("score", "weight", "clicks", "click_count", "relevance", "grade", "rating", "rank",
              "position", "purchases", "score_linear"),
    "document_id": ("document_id", "doc_id", "product_id", "item_id", "pid", "docid", "asin",
                    "sku"),
}  # fmt: skip
# Columns of wrong documents or captions.
NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?(_(caption|text|answer|passage|document)s?)?(_\d+)?")
# Columns that say whether the two texts of a row belong together.
VERDICTS = ("label", "labels", "gold_label", "is_duplicate", "duplicate", "relevance", "score",
            "relevance_score", "similarity", "similarity_score", "is_correct",
            "correct")  # fmt: skip
MOST_VERDICT = 5  # of a scale; larger numbers are votes or counts
IDS = ("id", "ids", "uuid", "guid", "key", "hash", "url")  # how names of columns of ids end


@dataclass(frozen=True)
class Said:
    """What the user says of the columns; None: nothing, "": there is none."""

    image: str | None = None
    text: str | None = None
    query: str | None = None
    document: str | None = None
    score: str | None = None
    document_id: str | None = None


class Guess:
    """The guesses.

    Args:
      columns: of the data.
      said: by the user.
      file: the data's name, for messages.

    Attributes:
      lines: what was taken for what, and why.
    """

    def __init__(self, columns: Mapping[str, Column], said: Said, file: str):
        self.columns, self._said, self._file = columns, said, file
        self.lines: list[str] = []

    def texts(self) -> list[str]:
        """The columns of texts, but for those of wrong documents."""
        found = (name for name, column in self.columns.items() if column.is_text)
        found = (name for name in found if name.strip() and not name.startswith("__"))
        return [name for name in found if not NEGATIVE.fullmatch(plain(name))]

    def _may_be(self, name: str) -> bool:
        """Whether a column of texts may be taken though its name says nothing: no class, no id."""
        column = self.columns[name]
        told = column.is_category or column.is_yes_or_no
        return not told and plain(name).split("_")[-1] not in IDS

    def numbers(self) -> list[str]:
        """The columns of numbers."""
        return [name for name, column in self.columns.items() if column.is_number]

    def named(self, role: str, among: Sequence[str] | Mapping[str, Column]) -> str:
        """The column that is called as such columns usually are; "": none is."""
        known = {plain(name): name for name in among}
        return next((known[name] for name in NAMES[role] if name in known), "")

    def tell(self, role: str, name: str, said: bool, why: str = "") -> None:
        """Notes what a column was taken for."""
        column = self.columns[name]
        if said:
            why = "as you say"
        elif not why:
            why = "as its name says"
        more = f"; texts of {column.mean_words:.0f} words" if role in ("text", "document") else ""
        self.lines.append(f"column {name!r} is the {role.replace('_', ' ')}: {why}{more}")
        if column.is_written_list:
            self.lines.insert(
                0,
                f"column {name!r} has lists written as text, each of which is taken as one text "
                "with its brackets: for several texts of a record, write JSON lines, such as by "
                f"table[{name!r}] = table[{name!r}].map(ast.literal_eval); "
                "table.to_json('table.jsonl', orient='records', lines=True) of pandas",
            )

    def image(self) -> str:
        """The column of images; "": there is none."""
        said = self._said.image
        if said == "":
            return ""
        fitting = [x for x, column in self.columns.items() if column.is_image and x != "id"]
        if said and not self.columns[said].is_image:
            column = self.columns[said]
            raise UserError(
                f"--image={said}: none of {column.filled} sampled values of {self._file} is an "
                f"image that can be read{_where(column)}."
                if not column.images
                else f"--image={said}: only {column.images} of {column.filled} sampled values of "
                f"{self._file} are images{_where(column)}."
            )
        name = said or self.named("image", fitting) or (fitting[0] if fitting else "")
        if not name:
            self._no_image()
            return ""
        column = self.columns[name]
        kind = f"files under {column.root}" if column.files else "images"
        why = f"{column.images} of {column.filled} sampled values are {kind}"
        self.lines.append(f"column {name!r} is the image: {why}")
        others = [each for each in fitting if each != name]
        if others and not said:
            self.lines[-1] += f" (others that fit: {', '.join(others)}; --image says another)"
        return name

    def _no_image(self) -> None:
        """Raises where a column was meant to be of images, but nothing can be read."""
        for name, column in self.columns.items():
            if column.missing > 0.5 * max(1, column.filled):
                raise UserError(
                    f"{self._file}: column {name!r} has names of image files, but none of "
                    f"{column.missing} is under {column.root}: put the files there, or correct the "
                    "paths."
                )
            if column.addresses > 0.5 * max(1, column.filled) and len(self.texts()) < 2:
                raise UserError(
                    f"{self._file}: column {name!r} has addresses in the network, which training "
                    "does not open: download the images, such as by img2dataset with "
                    "--output_format=webdataset, and give its tars, or name a column of files by "
                    "--image."
                )

    def text(self, image: str) -> str:
        """The column of captions."""
        said = self._said.text
        among = [name for name in self.texts() if name != image]
        free = [each for each in among if self._may_be(each)]
        name = said or self.named("text", among) or self.named("query", among)
        if not said and len(free) == 1 and (not name or self.columns[name].is_category):
            self.tell("text", free[0], False, "the only column of texts that differ")
            return free[0]
        if not name:
            raise self.none("text", "the caption", among)
        self.tell("text", name, bool(said))
        others = [each for each in free if each != name]
        if others and not said:
            self.lines[-1] += f" (other texts: {', '.join(others[:4])}; --text says another)"
        for wrong in self._negatives():
            self.lines.append(
                f"column {wrong!r} has wrong captions and is not used: the other captions of a "
                "batch are the wrong ones of an image"
            )
        return name

    def pair(self) -> tuple[str, str]:
        """The columns of queries and of documents, both texts."""
        query, document = self._said.query, self._said.document
        among = [name for name in self.texts() if name not in (query, document)]
        free = [name for name in among if self._may_be(name)]
        tell = []
        if not query:
            query = self.named("query", [x for x in among if x != document])
            tell.append(("query", query, "as its name says"))
        among = [name for name in among if name != query]
        if not document:
            document = self.named("document", among)
            tell.append(("document", document, "as its name says"))
        free = [name for name in free if name not in (query, document)]
        if bool(query) != bool(document) and len(free) == 1:  # the other one can only be this
            query, document = query or free[0], document or free[0]
        elif not query and not document and len(free) == 2:
            query, document = sorted(free, key=lambda name: self.columns[name].mean_words)
            tell = [("query", query, "the shorter one of the two columns of texts")]
            tell.append(("document", document, "the longer one"))
        if not query or not document:
            raise self.none(
                "query" if not query else "document",
                "one half of the pairs (a text to ask with, or an image)"
                if not query
                else "the other half of the pairs (a second text, or an image)",
                [name for name in self.texts() if name not in (query, document)],
            )
        for role, said in (("query", self._said.query), ("document", self._said.document)):
            why = next((why for what, name, why in tell if what == role and name), "")
            name = query if role == "query" else document
            self.tell(role, name, bool(said), why or "the only other column of texts that differ")
        return query, document

    def _negatives(self) -> list[str]:
        texts = (name for name, column in self.columns.items() if column.is_text)
        return [name for name in texts if NEGATIVE.fullmatch(plain(name))]

    def negative(self) -> str:
        """The column of documents that are wrong for the query of their row; "": there is none."""
        found = self._negatives()
        if not found:
            return ""
        rest = f" ({', '.join(found[1:])} unused)" if found[1:] else ""
        self.lines.append(
            f"column {found[0]!r} has wrong answers: one is drawn for each pair{rest}; "
            "--config.negatives.count=0 trains without"
        )
        return found[0]

    def verdict(self, pair: Sequence[str]) -> tuple[str, float]:
        """The column that says whether two texts belong together, and from which value on.

        Raises:
          UserError: its values do not tell which ones those are.
        """
        known = {plain(name): name for name in self.columns if name not in pair}
        name = next((known[x] for x in VERDICTS if x in known), "")
        column = self.columns.get(name)
        if column is None or self._said.score == "" or not column.filled:
            return "", 0.0
        values = {x[0] if isinstance(x, tuple) else x for x in column.different}
        numbers = {verdict_of(x) for x in values}
        inference = numbers in ({0, 1, 2}, {-1, 0, 1, 2}) and "label" in name
        if inference or {str(x).lower() for x in values} >= {"entailment", "contradiction"}:
            raise UserError(
                f"{self._file}: column {name!r} ({', '.join(sorted(map(str, values)))}) says how "
                "the two texts belong together: keep the rows in which they do in a file of their "
                "own, or take all of them by --score= (empty)."
            )
        if not (column.is_number or column.is_yes_or_no) or len(numbers) < 2:
            return "", 0.0
        if not column.is_number:
            self.lines.append(
                f"column {name!r} is the verdict on a pair: those without yes or true do not "
                "belong together (--score= takes all)"
            )
            return name, 0.5
        classes = len(numbers) > 2 and any(x in plain(name) for x in ("label", "correct"))
        classes = classes and all(x == int(x or 0) for x in numbers)
        if column.most > MOST_VERDICT or classes:
            self.lines.append(f"column {name!r} is not used; --score={name} weighs pairs by it")
            return "", 0.0
        least = column.most / 2
        self.lines.append(
            f"column {name!r} is the verdict on a pair, of at most {column.most:g}: pairs below "
            f"{least:g} do not belong together (--score= takes all, --score={name} weighs them)"
        )
        return name, least

    def none(self, role: str, what: str, among: Sequence[str]) -> UserError:
        """What is said where no column, or more than one, can have a role."""
        known = ", ".join(each.told() for each in self.columns.values())
        fits = "several columns could be" if len(among) > 1 else "no column is"
        example = among[0] if among else "COLUMN"
        return UserError(
            f"{self._file}: {fits} {what}; it has {known}: name one by --{role}={example}."
        )


def plain(name: str) -> str:
    """A column's name in small letters and underscores, without the sign of a tar's JSON files."""
    return re.sub(r"[^a-z0-9]+", "_", name.removeprefix("json:").lower()).strip("_")


def _where(column: Column) -> str:
    return f" (files are looked for under {column.root})" if column.missing else ""
