"""What all tokenizers have in common: texts in, ids of a fixed length out, saved as one file."""

import functools
import html
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ftfy
import numpy as np
import tokenizers

from big_retrieval.data.text.split_words import clean_words, join_words, words_of
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io.regular import read_text

_COUNTED_PAD = "<pad>"
_PAD_NAMES = ("[PAD]", "<pad>", "<|pad|>")


def clip_text(text: str) -> str:
    """A text as CLIP cleans it, lower case apart: by ftfy and two rounds of HTML entities."""
    if "&" in text or not text.isascii() or not text.isprintable():  # ftfy changes no other texts
        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    text = " ".join(text.split())
    return text.lower() if "\u03a3" in text else text  # a sigma at the end of a word is another


CLEANERS: dict[str, Callable[[str], str]] = {"clip": clip_text, "words": clean_words}


class FixedLengthTokenizer:
    """Texts to ids of a fixed length. Never changes, so that threads may share it.

    Args:
      inner: the tokenizer of the `tokenizers` package; only read.
      pad_id: the id behind the end of short texts.
      standalone: special tokens that are recognised in a text where they stand alone as a word
        (between white space), and are plain characters elsewhere.
      clean: the name of what is done to texts first, a key of `CLEANERS`; "": nothing.
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        pad_id: int = 0,
        standalone: Sequence[str] = (),
        clean: str = "",
    ):
        self._inner = inner
        self._standalone = {name: inner.token_to_id(name) for name in standalone}
        choices = "|".join(map(re.escape, standalone))
        self._split = re.compile(rf"(?<!\S)({choices})(?!\S)") if standalone else None
        self._before, self._after = _frame(inner)
        self._between = _between(inner)
        self._pad_id = pad_id
        self._clean = clean
        # CLIP's: texts are pooled at the first end token, so nothing after it counts.
        byte_pairs = getattr(inner.model, "end_of_word_suffix", None) == "</w>"
        self._stop = self._after[0] if byte_pairs and len(self._after) == 1 else None
        # RoBERTa's: positions are counted from ids, so a padding token inside a text shifts them.
        counted = pad_id if inner.id_to_token(pad_id) == _COUNTED_PAD else None
        self._refused = counted if counted not in (*self._before, *self._after) else None

    def __reduce__(self) -> tuple:
        return FixedLengthTokenizer.from_json, (self.to_json(),)

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return self._inner.get_vocab_size(with_added_tokens=True)

    @property
    def pad_id(self) -> int:
        """The id behind the end of short texts."""
        return self._pad_id

    @property
    def clean(self) -> str:
        """The name of what is done to texts first, a key of `CLEANERS`; "": nothing."""
        return self._clean

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that stand for no piece of a text: padding, starts, ends, masks."""
        added = self._inner.get_added_tokens_decoder().items()
        special = {number for number, token in added if token.special}
        own = {number for number in self._standalone.values() if number is not None}
        padding = {self._pad_id} if self.id_to_token(self._pad_id) in _PAD_NAMES else set()
        return frozenset(special | own | padding | {*self._before, *self._after})

    @functools.cached_property
    def special_tokens(self) -> frozenset[str]:
        """The strings of `special_ids`."""
        return frozenset(self.id_to_token(number) for number in self.special_ids)

    @functools.cached_property
    def unknown_token(self) -> str:
        """What stands for an unknown word, also where a text has it as a word; "": nothing.

        CLIP's end token, which its files name as unknown, is none.
        """
        name = getattr(self._inner.model, "unk_token", None)
        number = None if name is None else self._inner.token_to_id(name)
        if name is None or number is None or number in (*self._before, *self._after):
            return ""
        return name if self._bodies([self.joined([name])]) == [[number]] else ""

    def frame(self) -> dict[str, Any]:
        """What stands around texts: `start`, `end`, `between` (a title and a text) and `pad` as
        ids, `stop`, the id that ends a text (CLIP's) or None, and `standalone`, the special tokens
        that count only where they stand alone."""
        return {
            "start": tuple(self._before),
            "end": tuple(self._after),
            "between": tuple(self._between or ()),
            "pad": self._pad_id,
            "stop": self._stop,
            "standalone": tuple(self._standalone),
        }

    def words(self, text: str) -> list[str]:
        """The words of a text: what stands between white space, or whole tokens."""
        return words_of(text) if self._clean == "words" else text.split()

    def joined(self, words: Sequence[str]) -> str:
        """A text of words, such as some of those of `words`, and the unknown token."""
        return join_words(words) if self._clean == "words" else " ".join(words)

    def id_to_token(self, number: int) -> str:
        """The string of an id.

        Raises:
          IndexError: there is no such id.
        """
        token = self._inner.id_to_token(number) if number >= 0 else None
        if token is None:
            raise IndexError(f"The vocabulary has ids 0 to {self.vocab_size - 1}, not {number}.")
        return token

    def encode(
        self, texts: Sequence[str], length: int, titles: Sequence[str] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Encodes n texts; long ones are cut so that the end token stays.

        A text with a title is a pair, such as [CLS] title [SEP] text [SEP], and cut at its end; one
        of the two that is empty is left out with what would stand between them.

        Args:
          length: ids per text, start and end token included.
          titles: of the texts, "" where one has none; (): no text has.

        Returns:
          ids int32 [n, length], filled up with `pad_id`, and mask bool [n, length], True where a
          token is.

        Raises:
          UserError: `length` has no room for the start and the end token.
          Damaged: a text has the padding token `<pad>` in it.
        """
        room = length - len(self._before) - len(self._after)
        if room < 0:
            raise UserError(f"length {length} is too short for the start and end tokens; use more.")
        ids = np.full((len(texts), length), self._pad_id, np.int32)  # [n, L]
        mask = np.zeros((len(texts), length), bool)  # [n, L]
        bodies = self._bodies(texts)
        if any(titles):
            bodies = list(map(self._joined, self._bodies(titles), bodies))
        for row, body in enumerate(bodies):
            if self._refused in body:
                raise Damaged(
                    f"text {texts[row][:60]!r}",
                    f"{_COUNTED_PAD} is the model's padding token; remove it from the text",
                )
            body = body[: body.index(self._stop)] if self._stop in body else body
            line = [*self._before, *body[:room], *self._after]
            ids[row, : len(line)] = line
            mask[row, : len(line)] = True
        return ids, mask

    def _joined(self, title: list[int], text: list[int]) -> list[int]:
        """The ids of a title and a text without start and end token."""
        if not title or not text:
            return title or text
        if self._between is None:
            raise UserError(
                "the tokenizer has no form for a pair of texts, so fields cannot have a `title`; "
                "use another tokenizer, or join title and text in the data."
            )
        return [*title, *self._between, *text]

    def _bodies(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text without start and end token."""
        if self._clean:
            texts = [CLEANERS[self._clean](text) for text in texts]
        parts, owners = [], []  # a text is one part, or several around its special tokens
        for row, text in enumerate(texts):
            pieces = self._split.split(text) if self._split and "[" in text else [text]
            parts += pieces
            owners += [row] * len(pieces)
        try:
            encoded = self._inner.encode_batch_fast(parts, add_special_tokens=False)
        except TypeError:  # half of a surrogate pair, as broken JSON escapes give it
            clean = [part.encode("utf-8", "replace").decode() for part in parts]
            encoded = self._inner.encode_batch_fast(clean, add_special_tokens=False)
        bodies: list[list[int]] = [[] for _ in texts]
        for part, row, encoding in zip(parts, owners, encoded, strict=True):
            special = self._standalone.get(part)
            bodies[row] += encoding.ids if special is None else [special]
        return bodies

    def to_json(self) -> str:
        """The content of a `tokenizer.json`, with the padding and the standalone tokens in it."""
        content = json.loads(self._inner.to_str())
        content["padding"] = {
            "strategy": "BatchLongest",
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": self._pad_id,
            "pad_type_id": 0,
            "pad_token": self.id_to_token(self._pad_id),
        }
        content["added_tokens"] += [
            {
                "id": number,
                "content": name,
                "single_word": True,  # how `from_json` knows them; others do about the same with it
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for name, number in self._standalone.items()
        ]
        if self._clean:
            content["normalizer"]["clean"] = self._clean  # a key that other readers pass over
        return json.dumps(content, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, *, pad_id: int | None = None) -> "FixedLengthTokenizer":
        """The tokenizer of the content of a `tokenizer.json`.

        Args:
          pad_id: None: the content's, else the id of a token that is named so, else 0.

        Raises:
          UserError: the content is something else.
        """
        try:
            content = json.loads(text)
            padding = content.get("padding") or {}
            content["padding"] = content["truncation"] = None
            standalone, clean = [], (content.get("normalizer") or {}).pop("clean", "")
            if clean and clean not in CLEANERS:
                raise ValueError(f"its texts are cleaned by {clean!r}, which is not known")
            if content["model"].get("type") == "WordPiece":
                added = content["added_tokens"]
                standalone = [t["content"] for t in added if t["special"] and t["single_word"]]
                content["added_tokens"] = [t for t in added if t["content"] not in standalone]
            inner = tokenizers.Tokenizer.from_str(json.dumps(content))
        except Exception as error:  # the tokenizers package raises plain Exception
            raise UserError(f"This is not the content of a tokenizer.json ({error}).") from error
        if pad_id is None:
            named = [inner.token_to_id(name) for name in _PAD_NAMES]
            fallback = next((number for number in named if number is not None), 0)
            pad_id = padding.get("pad_id", fallback)
            if not isinstance(pad_id, int) or pad_id < 0 or inner.id_to_token(pad_id) is None:
                raise UserError(
                    f"This is not the content of a tokenizer.json (no token has the id {pad_id!r} "
                    "of its padding)."
                )
        return cls(inner, pad_id=pad_id, standalone=standalone, clean=clean)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a `tokenizer.json`, which `load` and the Hugging Face libraries read."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "FixedLengthTokenizer":
        """Reads a `tokenizer.json`.

        Raises:
          UserError: there is no such file or it is something else.
        """
        try:
            text = read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"The tokenizer file {path} cannot be read ({error}).") from error
        try:
            return cls.from_json(text)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error


def _frame(inner: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and behind every text."""
    for probe in ("a", "0", "."):
        encoding = inner.encode(probe)
        special = encoding.special_tokens_mask
        inside = [place for place, flag in enumerate(special) if not flag]
        if inside:
            return encoding.ids[: inside[0]], encoding.ids[inside[-1] + 1 :]
    ids = inner.encode("").ids
    return ids[:1], ids[1:]


def _between(inner: tokenizers.Tokenizer) -> list[int] | None:
    """The ids that the tokenizer puts between the texts of a pair; None: it has no such form."""
    for probe in ("a", "0", "."):
        try:
            encoding = inner.encode(probe, probe)
        except Exception:  # the tokenizers package raises plain Exception
            return None
        owners = encoding.sequence_ids
        if 0 in owners and 1 in owners:
            last = len(owners) - 1 - owners[::-1].index(0)
            return encoding.ids[last + 1 : owners.index(1)]
    return None
