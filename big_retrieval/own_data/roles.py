"""What the columns of a table are: said by the user, or guessed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from big_retrieval.errors import UserError
from big_retrieval.own_data.columns import Column
from big_retrieval.own_data.guess import NAMES, Guess, Said

RANKS = ("rank", "position")
CLICKS = ("clicks", "click_count", "purchases")


@dataclass(frozen=True)
class Roles:
    """What the columns are.

    Attributes:
      kind: "captions" (image and text), "answers" (question and answer) or "clicks" (judged pairs).
      columns: role -> column; those that are not there are missing.
      lines: what was taken for what, and why.
      least: the lowest verdict (the role of a column) of a pair that belongs together.
    """

    kind: str
    columns: Mapping[str, str]
    lines: Sequence[str] = field(default_factory=tuple)
    least: float = 0.0

    def __getitem__(self, role: str) -> str:
        return self.columns.get(role, "")


def decide(columns: Mapping[str, Column], said: Said, file: str, kind: str = "") -> Roles:
    """Gives every column that is needed its role.

    Args:
      columns: of the data.
      said: by the user.
      file: the data's name, for messages.
      kind: what the data have to be, as `Roles.kind`; "": what they look like.

    Raises:
      UserError: a column that is not there, or a role for which no column or several fit.
    """
    check_said(columns, said, file)
    guess = Guess(columns, said, file)
    if kind == "clicks" or (not kind and is_judged(columns, said, file)):
        return _clicked(guess, said)
    asks = said.query or said.document
    image = "" if kind == "answers" or (asks and not said.image) else guess.image()
    if image:
        return Roles("captions", {"image": image, "text": guess.text(image)}, guess.lines)
    if kind == "captions":
        raise guess.none("image", "the image", ())
    query, document = guess.pair()
    found = {"query": query, "document": document, "negative": guess.negative()}
    verdict, least = guess.verdict((query, document))
    return Roles("answers", {**found, "verdict": verdict}, guess.lines, least)


def check_said(columns: Mapping[str, Column], said: Said, file: str) -> None:
    """Raises a UserError where the user names a column that is not there."""
    for role in NAMES:
        name = getattr(said, role)
        if name and name not in columns:
            known = ", ".join(each.told() for each in columns.values())
            raise UserError(
                f"{file} has no column {name!r} (--{role}); it has {known}: correct --{role}."
            )


def is_judged(columns: Mapping[str, Column], said: Said, file: str) -> bool:
    """Whether the rows are judged pairs: a score, and queries that occur in several rows.

    Args:
      columns: of the data.
      said: by the user.
      file: the data's name, for messages.
    """
    if said.score is not None:
        return bool(said.score)
    guess = Guess(columns, said, file)
    query = said.query or guess.named("query", guess.texts())
    score = guess.named("score", guess.numbers())
    if not (query and score) or said.text:
        return False
    return columns[query].repeats


def _clicked(guess: Guess, said: Said) -> Roles:
    """Queries and documents with a score."""
    score = said.score or guess.named("score", guess.numbers())
    guess.tell("score", score, bool(said.score))
    query = said.query or guess.named("query", guess.texts())
    if not query:
        raise guess.none("query", "the text of the query", guess.texts())
    guess.tell("query", query, bool(said.query))
    rest = [name for name in guess.texts() if name != query]
    image = guess.image()
    title = said.document if said.document is not None else guess.named("document", rest)
    if title:
        guess.tell("document", title, bool(said.document))
    if not image and not title:
        raise guess.none("document", "the text of the document", rest)
    ids = said.document_id
    if ids is None:
        ids = guess.named("document_id", guess.columns)
    if ids:
        guess.tell("document_id", ids, bool(said.document_id))
    found = {"query": query, "score": score, "image": image, "document": title, "document_id": ids}
    return Roles("clicks", {role: name for role, name in found.items() if name}, guess.lines)


def endings(columns: Mapping[str, Column]) -> tuple[str, ...]:
    """The columns of a tar shard that hold images: the endings of its members."""
    return tuple(name for name, column in columns.items() if column.pixels)
