"""Further rankings that a config can list: other field weights, and modes of lexical models.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", section
4.3 (nonparametric retrieval) and Tables 6 and 7 (terms after the gate). The modes are

| mode | queries | documents |
| --- | --- | --- |
| `bag` | bags of words, without the model | as encoded |
| `binary` | as encoded | bags of words |
| `top_k=64` | 64 terms and the words of the text | the same |
| `top_k=64/all` | 64 terms and the words of the text | as encoded |

0 keeps only the words of the text, with their weights. A mode can only narrow the head's gate: the
terms outside the head's `top_k` are lost. Nothing is encoded twice.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse

from big_retrieval.config import Config, Evaluator, Field, is_lexical, lexical_head
from big_retrieval.data.fields.reader import FieldReader, stack
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.inference.encoder import Embeddings, Encoder, concatenate

Side = Literal["query", "document"]
SIDES: tuple[Side, Side] = ("query", "document")
CHUNK = 4096  # texts tokenized at a time
_TOP_K = re.compile(r"top_k=(\d+|all)(?:/(\d+|all))?")


@dataclass(frozen=True)
class Mode:
    """Search mode of a lexical model.

    Attributes:
      name: text in the config.
      bags: side whose texts are bags of words, if any.
      top_k: number of terms to keep by side; None for all.
    """

    name: str
    bags: Side | None
    top_k: Mapping[Side, int | None]

    def needs_words(self, side: Side) -> bool:
        """Returns True if the mode needs the bags of words of a side."""
        return self.bags == side or self.top_k[side] is not None


def own_top_k(fields: Mapping[str, Field], chosen: Sequence[str]) -> int | None:
    """Returns the largest `top_k` of the lexical fields `chosen`; None for all terms."""
    heads = [lexical_head(fields, name) for name in chosen]
    tops = [head.top_k for head in heads if head is not None and head.top_k is not None]
    return max(tops, default=None) if len(tops) == len(heads) else None


def misfit(mode: Mode, side: Side, fields: Mapping[str, Field], chosen: Sequence[str]) -> str:
    """Returns the reason why a model cannot search in a mode; "" if it can.

    Args:
      fields: all fields of the model.
      chosen: names of the fields of the side.
    """
    if mode.bags == side and any(fields[name].modality == "image" for name in chosen):
        return f"the {side} side has images, not words"
    model_top_k, top_k = own_top_k(fields, chosen), mode.top_k[side]
    if model_top_k is None or top_k is None or top_k <= model_top_k:
        return ""
    return (
        f"the model's own gate leaves {model_top_k} terms of the {side} side, which can only be "
        f"narrowed: take {model_top_k} at most, or 'all'"
    )


def check_modes(part: Evaluator, config: Config, path: str) -> Iterator[str]:
    """Yields an error message for each mode of an evaluator in which the model cannot search."""
    compared = part.compared(config)
    sides = {side: [x for x in compared[side] if x in config.encoded] for side in SIDES}
    if part.modes and not is_lexical(config, *sides["query"], *sides["document"]):
        yield f"{path}.modes are for lexical models, which this is not; leave them out."
        return
    for text in part.modes:
        try:
            mode = parse_mode(text, f"{path}.modes")
        except UserError as problem:
            yield str(problem)
            continue
        reasons = (misfit(mode, side, config.fields, sides[side]) for side in SIDES)
        yield from (
            f"{path}.modes has {mode.name!r}, but {reason}." for reason in reasons if reason
        )


def parse_mode(text: str, path: str) -> Mode:
    """Parses a mode; `path` is the config key, for messages.

    Raises:
      UserError: the mode is unknown.
    """
    if text in ("bag", "binary"):
        return Mode(text, "query" if text == "bag" else "document", dict.fromkeys(SIDES))
    match = _TOP_K.fullmatch(text)
    if match is None:
        raise UserError(
            f"{path} has {text!r}; known: 'bag', 'binary', 'top_k=64', or 'top_k=64/128' for "
            "queries and documents."
        )
    first, second = (None if x == "all" else int(x) for x in (match[1], match[2] or match[1]))
    return Mode(text, None, {"query": first, "document": second})


def parse_weighting(text: str, fields: Collection[str], path: str) -> dict[str, float]:
    """Parses weights of document fields, such as "image" or "image=0.9,title=0.1".

    Args:
      fields: names of the document fields.
      path: the config key, for messages.

    Returns:
      Weight by field name; at least one is above 0.

    Raises:
      UserError: a field is unknown, a weight is negative or not a number, or all weights are 0.
    """
    out: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if name not in fields or name in out:
            known = ", ".join(sorted(fields))
            twice = "is there twice" if name in out else "is no field of the documents' side"
            raise UserError(f"{path} has {text!r}: {name!r} {twice} (there are: {known}).")
        try:
            out[name] = float(number) if equals else 1.0
        except ValueError:
            out[name] = -1.0
        if not 0 <= out[name] < float("inf"):
            raise UserError(
                f"{path} has {text!r}: the weight {number!r} must be a number from 0 on, as in "
                "'image=0.9,title=0.1'."
            )
    if not sum(out.values()):
        raise UserError(f"{path} has {text!r}, in which all weights are 0.")
    return out


def in_mode(
    embeddings: Embeddings, mode: Mode, side: Side, bow: scipy.sparse.csr_array | None
) -> scipy.sparse.csr_array:
    """Converts the embeddings of a lexical field to a mode.

    Args:
      embeddings: CSR [n, V], after the head's gate.
      side: side of the field.
      bow: bags of words of the texts, [n, V]; None for images.

    Raises:
      UserError: the mode needs words of a field without words.
    """
    if mode.bags == side:
        if bow is None:
            raise UserError(f"mode {mode.name!r} needs words on the {side} side, which has images.")
        return bow
    top_k = mode.top_k[side]
    return embeddings if top_k is None else narrowed(embeddings, top_k, bow)


def narrowed(
    embeddings: scipy.sparse.csr_array, top_k: int, bow: scipy.sparse.csr_array | None = None
) -> scipy.sparse.csr_array:
    """Keeps the `top_k` largest entries of each row (the lower term of equal ones).

    Args:
      embeddings: CSR [n, V], not negative.
      bow: bags of words [n, V], whose terms are kept, too.
    """
    matrix: Any = scipy.sparse.csr_array(embeddings)
    matrix.sort_indices()
    starts = np.asarray(matrix.indptr, np.int64)
    counts = np.diff(starts)
    rows = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((matrix.indices, -matrix.data, rows))
    rank = np.empty(len(order), np.int64)  # of an entry in its row, largest first
    rank[order] = np.arange(len(order)) - np.repeat(starts[:-1], counts)
    keep_mask = rank < top_k
    if bow is not None:
        positions = matrix.copy()
        positions.data = np.arange(1, len(order) + 1, dtype=np.float64)
        in_bow: Any = positions.multiply(bow.astype(bool))
        keep_mask[np.asarray(in_bow.data, np.int64) - 1] = True
    entries = (matrix.data[keep_mask], (rows[keep_mask], matrix.indices[keep_mask]))
    return scipy.sparse.csr_array(entries, shape=matrix.shape)


def bags_of_texts(
    encoder: Encoder, field: str, source: RecordSource, reader: FieldReader, items: np.ndarray
) -> scipy.sparse.csr_array:
    """Builds the bags of words of texts, CSR [n, V], without the model.

    They have norm 1 if the representations of the field have (VDR, section 4.3).

    Args:
      field: a lexical text field.
      items: int64 [n, 2]: record, and text in the record.
    """
    terms, normalise = encoder.terms(field), encoder.normalises(field)
    assert terms is not None  # the caller has lexical embeddings of the field
    chunks: list[Any] = [scipy.sparse.csr_array((0, len(terms)), dtype=np.float32)]
    for start in range(0, len(items), CHUNK):
        rows = items[start : start + CHUNK].tolist()
        arrays = stack(reader, [source_texts(source, r, reader)[t] for r, t in rows])
        chunks.append(terms.bag(arrays["ids"], arrays["mask"], normalise=normalise))
    return concatenate(chunks)


def words_shared(
    embeddings: scipy.sparse.csr_array, bow: scipy.sparse.csr_array, count: int
) -> float:
    """Computes the mean share of each row's strongest terms that are in the bag of words.

    Args:
      embeddings: of images, CSR [n, V].
      bow: bags of words of each image's texts, [n, V].
      count: number of strongest terms per row.
    """
    strongest = narrowed(embeddings, count)
    strongest.data[:] = 1
    present: Any = strongest.multiply(bow.astype(bool))
    total = np.maximum(np.diff(strongest.indptr), 1)
    return float(np.mean(np.asarray(present.sum(axis=1)).ravel() / total))
