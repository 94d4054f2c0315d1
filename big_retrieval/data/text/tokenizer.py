"""Tokenizer from texts to ids of a fixed length, saved as one file."""

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
    """Cleans a text as CLIP does before lower-casing: ftfy, then HTML entities twice."""
    if "&" in text or not text.isascii() or not text.isprintable():  # ftfy changes no other texts
        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    text = " ".join(text.split())
    return text.lower() if "\u03a3" in text else text  # a final sigma has another lower case


CLEANERS: dict[str, Callable[[str], str]] = {"clip": clip_text, "words": clean_words}


class FixedLengthTokenizer:
    """Converts texts to ids of a fixed length; must not change, so that threads may share it.

    Args:
      inner: tokenizer of the `tokenizers` package.
      pad_id: id after the end of short texts.
      standalone: special tokens that count only between white space; elsewhere in a text, they are
        plain characters.
      clean: cleaning of the texts, a key of `CLEANERS`; empty for none.
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
        self.pad_id = pad_id
        self.clean = clean
        # CLIP pools texts at the first end token, so tokens after it do not count.
        byte_pairs = getattr(inner.model, "end_of_word_suffix", None) == "</w>"
        self._stop = self._after[0] if byte_pairs and len(self._after) == 1 else None
        # RoBERTa counts positions from ids, so a padding token inside a text shifts them.
        counted = pad_id if inner.id_to_token(pad_id) == _COUNTED_PAD else None
        self._refused = counted if counted not in (*self._before, *self._after) else None

    def __reduce__(self) -> tuple:
        return FixedLengthTokenizer.from_json, (self.to_json(),)

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self._inner.get_vocab_size(with_added_tokens=True)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that are not a piece of a text: padding, starts, ends, masks."""
        added = self._inner.get_added_tokens_decoder().items()
        special = {token_id for token_id, token in added if token.special}
        standalone = {token_id for token_id in self._standalone.values() if token_id is not None}
        padding = {self.pad_id} if self.id_to_token(self.pad_id) in _PAD_NAMES else set()
        return frozenset(special | standalone | padding | {*self._before, *self._after})

    @functools.cached_property
    def special_tokens(self) -> frozenset[str]:
        """Strings of `special_ids`."""
        return frozenset(self.id_to_token(token_id) for token_id in self.special_ids)

    @functools.cached_property
    def unknown_token(self) -> str:
        """Token of unknown words, if texts may contain it; else empty, as in CLIP.

        CLIP's files name the end token as the unknown token.
        """
        name = getattr(self._inner.model, "unk_token", None)
        token_id = None if name is None else self._inner.token_to_id(name)
        if name is None or token_id is None or token_id in (*self._before, *self._after):
            return ""
        return name if self._bodies([self.joined([name])]) == [[token_id]] else ""

    def frame(self) -> dict[str, Any]:
        """Returns ids around texts: `start`, `end`, `between` (title and text), `pad` and `stop`.

        `stop` is CLIP's end token, after which tokens do not count; else it is None. Values are
        ids, except `standalone`: strings of special tokens.
        """
        return {
            "start": tuple(self._before),
            "end": tuple(self._after),
            "between": tuple(self._between or ()),
            "pad": self.pad_id,
            "stop": self._stop,
            "standalone": tuple(self._standalone),
        }

    def words(self, text: str) -> list[str]:
        """Splits a text at white space, or into tokens if the tokenizer has the type "words"."""
        return words_of(text) if self.clean == "words" else text.split()

    def joined(self, words: Sequence[str]) -> str:
        """Joins results of `words` and unknown tokens to a text."""
        return join_words(words) if self.clean == "words" else " ".join(words)

    def id_to_token(self, token_id: int) -> str:
        """Returns the string of an id; raises an IndexError if it is out of range."""
        token = self._inner.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            raise IndexError(f"The vocabulary has ids 0 to {self.vocab_size - 1}, not {token_id}.")
        return token

    def encode(
        self, texts: Sequence[str], length: int, titles: Sequence[str] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Encodes n texts; cuts long texts, but keeps the end token.

        A text with a title becomes a pair, such as [CLS] title [SEP] text [SEP]. An empty title or
        text is left out, together with the separator between them.

        Args:
          length: ids per text, including start and end token.
          titles: title per text, empty for none; () for no titles.

        Returns:
          ids int32 [n, length], filled up with `pad_id`, and mask bool [n, length] of tokens.

        Raises:
          UserError: `length` has no room for the start and the end token.
          Damaged: a text contains the padding token `<pad>`.
        """
        room = length - len(self._before) - len(self._after)
        if room < 0:
            raise UserError(f"length {length} is too short for the start and end tokens; use more.")
        ids = np.full((len(texts), length), self.pad_id, np.int32)  # [n, L]
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
        """Returns the ids of a title and a text, without start and end token."""
        if not title or not text:
            return title or text
        if self._between is None:
            raise UserError(
                "the tokenizer has no form for a pair of texts, so fields cannot have a `title`; "
                "use another tokenizer, or join title and text in the data."
            )
        return [*title, *self._between, *text]

    def _bodies(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of every text, without start and end token."""
        if self.clean:
            texts = [CLEANERS[self.clean](text) for text in texts]
        parts, owners = [], []  # a text is one part, or several around its special tokens
        for row, text in enumerate(texts):
            pieces = self._split.split(text) if self._split and "[" in text else [text]
            parts += pieces
            owners += [row] * len(pieces)
        try:
            encoded = self._inner.encode_batch_fast(parts, add_special_tokens=False)
        except TypeError:  # half of a surrogate pair, from broken JSON escapes
            clean = [piece.encode("utf-8", "replace").decode() for piece in parts]
            encoded = self._inner.encode_batch_fast(clean, add_special_tokens=False)
        bodies: list[list[int]] = [[] for _ in texts]
        for piece, row, encoding in zip(parts, owners, encoded, strict=True):
            special = self._standalone.get(piece)
            bodies[row] += encoding.ids if special is None else [special]
        return bodies

    def to_json(self) -> str:
        """Returns the content of a `tokenizer.json`, with padding and standalone tokens."""
        content = json.loads(self._inner.to_str())
        content["padding"] = {
            "strategy": "BatchLongest",
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": self.pad_id,
            "pad_type_id": 0,
            "pad_token": self.id_to_token(self.pad_id),
        }
        content["added_tokens"] += [
            {
                "id": token_id,
                "content": name,
                "single_word": True,  # marks them for `from_json`; other readers act similarly
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for name, token_id in self._standalone.items()
        ]
        if self.clean:
            content["normalizer"]["clean"] = self.clean  # other readers ignore this key
        return json.dumps(content, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, *, pad_id: int | None = None) -> "FixedLengthTokenizer":
        """Returns the tokenizer of the content of a `tokenizer.json`.

        Args:
          pad_id: None for the id in the content; if it has none, the id of a token such as [PAD],
            or else 0.
        """
        try:
            content = json.loads(text)
            padding = content.get("padding") or {}
            content["padding"] = content["truncation"] = None
            standalone, clean = [], (content.get("normalizer") or {}).pop("clean", "")
            if clean and clean not in CLEANERS:
                raise ValueError(f"unknown cleaning {clean!r}")
            if content["model"].get("type") == "WordPiece":
                added = content["added_tokens"]
                standalone = [t["content"] for t in added if t["special"] and t["single_word"]]
                content["added_tokens"] = [t for t in added if t["content"] not in standalone]
            inner = tokenizers.Tokenizer.from_str(json.dumps(content))
        except Exception as error:  # the tokenizers package raises plain Exception
            raise UserError(f"This is not the content of a tokenizer.json ({error}).") from error
        if pad_id is None:
            named = [inner.token_to_id(name) for name in _PAD_NAMES]
            fallback = next((token_id for token_id in named if token_id is not None), 0)
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
        """Reads a `tokenizer.json`; raises a UserError for a missing or other file."""
        try:
            text = read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"The tokenizer file {path} cannot be read ({error}).") from error
        try:
            return cls.from_json(text)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error


def _frame(inner: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Returns the ids that the tokenizer puts before and after every text."""
    for probe in ("a", "0", "."):
        encoding = inner.encode(probe)
        special = encoding.special_tokens_mask
        inside = [index for index, flag in enumerate(special) if not flag]
        if inside:
            return encoding.ids[: inside[0]], encoding.ids[inside[-1] + 1 :]
    ids = inner.encode("").ids
    return ids[:1], ids[1:]


def _between(inner: tokenizers.Tokenizer) -> list[int] | None:
    """Returns the ids between the texts of a pair; None if the tokenizer cannot encode pairs."""
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
