"""From texts to ids."""

import html
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tokenizers


class TextReader:
    """Encodes texts, by the methods `encode` and `concatenate` of another base class."""

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
    """Texts to ids of word pieces.

    Args:
      file: a tokenizer.json.
      start: ids before every text.
      end: ids after every text.
      between: ids between a title and a text.
      pad: id that fills up short texts.
      stop: id at which a text ends; None for none.
      standalone: special tokens that count only between white space.
      clean: function that cleans texts first.
    """

    def __init__(
        self,
        file: Path,
        *,
        start: tuple[int, ...] = (),
        end: tuple[int, ...] = (),
        between: tuple[int, ...] = (),
        pad: int = 0,
        stop: int | None = None,
        standalone: tuple[str, ...] = (),
        clean: Callable[[str], str] = str,
    ) -> None:
        self.start, self.end, self.between, self.pad = start, end, between, pad
        self.clean, self.stop = clean, stop
        content = json.loads(file.read_text(encoding="utf-8"))
        content["padding"] = content["truncation"] = None
        added = content["added_tokens"]
        content["added_tokens"] = [each for each in added if each["content"] not in standalone]
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
        """Ids and mask [n, L] of texts; L is `length` or that of the longest text.

        Args:
          texts: n of them.
          titles: of the texts, "" where one has none; (): none has.
          length: ids of a text at most; those behind it are cut off.
          prefix: what stands in front of every text, or of its title.
          fill: whether all texts are filled up to `length`.
        """
        titles = [prefix + title if title else "" for title in titles or [""] * len(texts)]
        texts = [
            text if title else prefix + text for title, text in zip(titles, texts, strict=True)
        ]
        room, lines = length - len(self.start) - len(self.end), []
        for title, text in zip(self.pieces(titles), self.pieces(texts), strict=True):
            body = [*title, *(self.between if title and text else ()), *text]
            body = body[: body.index(self.stop)] if self.stop in body else body
            lines.append([*self.start, *body[:room], *self.end])
        longest = length if fill else max(1, *map(len, lines))
        ids = np.array([[*line, *[self.pad] * (longest - len(line))] for line in lines])
        return ids, np.arange(longest) < np.array([[len(line)] for line in lines])

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text, without start and end."""
        parts, owners = [], []  # a text is one part, or several around its special tokens
        for row, text in enumerate(texts):
            text = self.clean(text).encode("utf-8", "replace").decode()
            found = self.split.split(text) if self.split else [text]
            parts += found
            owners += [row] * len(found)
        encoded = self.inner.encode_batch(parts, add_special_tokens=False)
        ids: list[list[int]] = [[] for _ in texts]
        for part, row, encoding in zip(parts, owners, encoded, strict=True):
            ids[row] += [self.standalone[part]] if part in self.standalone else encoding.ids
        return ids


def clip_text(text: str) -> str:
    """A text as CLIP cleans it: mojibake repaired, HTML entities read, white space made even."""
    if "&" in text or not text.isascii() or not text.isprintable():
        import ftfy  # a package that texts with such characters need

        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    text = " ".join(text.split())
    return text.lower() if "\u03a3" in text else text  # a sigma at the end of a word is another
