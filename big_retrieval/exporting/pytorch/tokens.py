"""Texts to token ids."""

import html
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tokenizers


class TextReader:
    """Encodes texts with the methods `encode` and `concatenate` of another base class."""

    TEXTS: ClassVar[dict[str, dict[str, Any]]]  # field -> arguments of `Tokenizer.__call__`
    tokenizer: Any
    encode: Callable[..., Any]
    concatenate: Callable[..., Any]

    def encode_texts(
        self,
        texts: Sequence[str],
        field: str = "",
        titles: Sequence[str] = (),
        batch_size: int = 64,
    ) -> Any:
        """Returns embeddings of texts, with their titles if the field has titles.

        Args:
          field: the model's first field of texts if empty.
        """
        field = field or next(iter(self.TEXTS))
        embeddings = []
        for start in range(0, len(texts), batch_size):
            rows = slice(start, start + batch_size)
            ids, mask = self.tokenizer(texts[rows], titles[rows], **self.TEXTS[field])
            embeddings.append(self.encode(field, ids=ids, mask=mask))
        return self.concatenate(embeddings)


class Tokenizer:
    """Texts to ids of word pieces."""

    def __init__(
        self,
        file: Path,  # tokenizer.json
        *,
        start: tuple[int, ...] = (),  # ids before every text
        end: tuple[int, ...] = (),  # ids after every text
        between: tuple[int, ...] = (),  # ids between title and text
        pad: int = 0,
        stop: int | None = None,  # id at which a text ends
        standalone: tuple[str, ...] = (),  # special tokens only between white space
        clean: Callable[[str], str] = str,
    ) -> None:
        self.start, self.end, self.between, self.pad = start, end, between, pad
        self.clean, self.stop = clean, stop
        content = json.loads(file.read_text(encoding="utf-8"))
        content["padding"] = content["truncation"] = None
        added = content["added_tokens"]
        content["added_tokens"] = [token for token in added if token["content"] not in standalone]
        self.inner = tokenizers.Tokenizer.from_str(json.dumps(content))
        self.standalone = {name: self.inner.token_to_id(name) for name in standalone}
        names = "|".join(map(re.escape, standalone))
        self.split = re.compile(rf"(?<!\S)({names})(?!\S)") if standalone else None

    def __call__(
        self,
        texts: Sequence[str],
        titles: Sequence[str] = (),
        *,
        length: int,
        prefix: str = "",
        fill: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids and mask [n, L] of n texts; L is `length` or the length of the longest text.

        Args:
          titles: n titles, "" for texts without one; empty if no text has a title.
          length: maximum number of ids per text; later ids are cut off.
          prefix: prefix of every title, or of the text if it has no title.
          fill: True to pad all texts to `length`.
        """
        titles = [prefix + title if title else "" for title in titles or [""] * len(texts)]
        texts = [
            text if title else prefix + text for title, text in zip(titles, texts, strict=True)
        ]
        room, rows = length - len(self.start) - len(self.end), []
        for title, text in zip(self.pieces(titles), self.pieces(texts), strict=True):
            body = [*title, *(self.between if title and text else ()), *text]
            body = body[: body.index(self.stop)] if self.stop in body else body
            rows.append([*self.start, *body[:room], *self.end])
        longest = length if fill else max(1, *map(len, rows))
        ids = np.array([[*row, *[self.pad] * (longest - len(row))] for row in rows])
        return ids, np.arange(longest) < np.array([[len(row)] for row in rows])

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of every text, without start and end."""
        parts, owners = [], []  # a text is split at its special tokens
        for row, text in enumerate(texts):
            text = self.clean(text).encode("utf-8", "replace").decode()
            text_parts = self.split.split(text) if self.split else [text]
            parts += text_parts
            owners += [row] * len(text_parts)
        encoded = self.inner.encode_batch(parts, add_special_tokens=False)
        ids: list[list[int]] = [[] for _ in texts]
        for piece, row, encoding in zip(parts, owners, encoded, strict=True):
            ids[row] += [self.standalone[piece]] if piece in self.standalone else encoding.ids
        return ids


def clip_text(text: str) -> str:
    """Cleans a text as CLIP does: mojibake, HTML entities, white space."""
    if "&" in text or not text.isascii() or not text.isprintable():
        import ftfy  # only texts with such characters need this package

        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    text = " ".join(text.split())
    return text.lower() if "\u03a3" in text else text  # a final sigma has another lower case
