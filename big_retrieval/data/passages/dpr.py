"""Questions with right and wrong passages, as DPR's files have them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from big_retrieval.config.texts import Dpr
from big_retrieval.data.formats.lines import json_table
from big_retrieval.data.formats.open_files import files_of, table_of
from big_retrieval.data.passages.sources import Passages, right_ones
from big_retrieval.data.sources import Record, as_texts, as_utf8, is_absent
from big_retrieval.errors import Damaged

POSITIVES = "positive_ctxs"
IDS = ("passage_id", "psg_id")  # of a passage
ADVICE = (
    'write one {"question": ..., "answers": [...], "positive_ctxs": [{"title": ..., "text": ...}], '
    '"hard_negative_ctxs": [...]} a line'
)
STRAIGHT = str.maketrans({"’": "'", "\n": " "})


def dpr(config: Dpr) -> Passages:
    """Opens DPR's files; see `config.Dpr`.

    Raises:
      UserError: they are missing, or no list of objects.
    """
    table, _ = table_of(files_of(config.path, config.how_to_get or ADVICE), json_table)
    return Passages(table, partial(dpr_record, config))


def dpr_record(config: Dpr, row: Record, place: str) -> Record:
    """The record of an object of a file.

    Args:
      config: which passages are taken, and whether texts are normalised.
      row: the object.
      place: where it stands, for messages.

    Returns:
      `query`; `text` and `title` of the right passage, or of all; `negatives`, without passages
      whose text is that of a right one; `answers`; `document_id` of the right passage, or those of
      all, where it has one.

    Raises:
      Damaged: it has no question or no right passage with a text, or something else in their place.
    """
    clean = partial(_clean, normalise=config.normalise)
    (question, *_) = as_texts(row.get("question"), "question", place)
    right = [each for each in _passages(row, POSITIVES, clean, place) if each["text"].strip()]
    if not right:
        raise Damaged(place, f"{POSITIVES!r} has no passage with a text")
    known = {each["text"] for each in right}
    negatives = [
        {"title": each["title"], "text": each["text"], "pool": pool}
        for pool, key in enumerate(config.negatives)
        for each in _passages(row, key, clean, place)
        if each["text"] not in known
    ]
    answers = row.get("answers", row.get("answer"))
    record = {"query": clean(question), **right_ones(right, config.positive)}
    record["negatives"] = negatives
    record["answers"] = () if is_absent(answers) else as_texts(answers, "answers", place)
    return record


def _passages(row: Record, key: str, clean: Any, place: str) -> list[Mapping[str, Any]]:
    """The passages of one list of an object: {"title", "text", "document_id"} each."""
    items = row.get(key)
    if items is None:
        return []
    if not isinstance(items, list):
        raise Damaged(place, f"{key!r} is {items!r:.80}, not a list of passages")
    found = []
    for item in items:
        texts = [item.get(name) for name in ("title", "text")] if isinstance(item, Mapping) else [0]
        if not all(text is None or isinstance(text, str) for text in texts):
            raise Damaged(place, f'{key!r} has {item!r:.80}, not {{"title": ..., "text": ...}}')
        title, text = (clean(text or "") for text in texts)
        number = next((item[x] for x in IDS if not is_absent(item.get(x))), None)
        known = None if number is None else str(number)
        found.append({"title": title, "text": text, "document_id": known})
    return found


def _clean(text: str, normalise: bool) -> str:
    """A text, with straight apostrophes and on one line where that is asked for."""
    text = as_utf8(text)
    return text.translate(STRAIGHT).strip() if normalise else text
