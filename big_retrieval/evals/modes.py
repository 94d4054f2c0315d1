"""Additional rankings of a config: other field weights, and search modes of lexical models.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", section
4.3 (nonparametric retrieval) and Tables 6 and 7 (terms after the gate). The modes are

| mode | queries | documents |
| --- | --- | --- |
| `bag` | bags of words, without the model | as encoded |
| `binary` | as encoded | bags of words |
| `top_k=64` | 64 terms and the words of the text | the same |
| `top_k=64/all` | 64 terms and the words of the text | as encoded |

`top_k=0` keeps only the words of the text, with their weights. A mode can only narrow the head's
gate: the terms outside the head's `top_k` are lost. Nothing is encoded twice.
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
    """Search mode of a lexical model."""

    name: str  # text in the config
    bags: Side | None  # side whose texts are bags of words, if any
    top_k: Mapping[Side, int | None]  # number of terms to keep by side; None for all

    def needs_words(self, side: Side) -> bool:
        """Returns True if the mode needs the bags of words of a side."""
        return self.bags == side or self.top_k[side] is not None


def misfit(mode: Mode, side: Side, fields: Mapping[str, Field], names: Sequence[str]) -> str:
    """Returns the reason why a model with these lexical fields cannot search in a mode, or ""."""
    if mode.bags == side and any(fields[name].modality == "image" for name in names):
        return f"the {side} side has images, not words"
    heads = [lexical_head(fields, name) for name in names]
    tops = [head.top_k for head in heads if head is not None and head.top_k is not None]
    top_k = mode.top_k[side]
    if top_k is None or not tops or len(tops) < len(heads) or top_k <= max(tops):
        return ""
    return (
        f"the model's gate keeps only {max(tops)} terms on the {side} side. Use at most "
        f"{max(tops)}, or 'all'"
    )


def check_modes(evaluator: Evaluator, config: Config, path: str) -> Iterator[str]:
    """Yields an error message for each mode of an evaluator that the model does not support."""
    compared = evaluator.compared(config)
    sides = {side: [x for x in compared[side] if x in config.encoded] for side in SIDES}
    if evaluator.modes and not is_lexical(config, *sides["query"], *sides["document"]):
        yield f"{path}.modes are for lexical models. Remove them for this model."
        return
    for text in evaluator.modes:
        try:
            mode = parse_mode(text, f"{path}.modes")
        except UserError as error:
            yield str(error)
            continue
        reasons = (misfit(mode, side, config.fields, sides[side]) for side in SIDES)
        yield from (
            f"{path}.modes has {mode.name!r}, but {reason}." for reason in reasons if reason
        )


def mode_prefixes(modes: Sequence[str]) -> list[str]:
    """Returns the prefixes of metric names: "" and `<mode>/` for each mode."""
    return ["", *(f"{mode}/" for mode in modes)]


def parse_mode(text: str, path: str) -> Mode:
    """Parses a mode; messages name the config key `path`."""
    if text in ("bag", "binary"):
        return Mode(text, "query" if text == "bag" else "document", dict.fromkeys(SIDES))
    match = _TOP_K.fullmatch(text)
    if match is None:
        raise UserError(
            f"{path} has {text!r}; choose 'bag', 'binary', 'top_k=64', or 'top_k=64/128' for "
            "queries and documents."
        )
    first, second = (None if x == "all" else int(x) for x in (match[1], match[2] or match[1]))
    return Mode(text, None, {"query": first, "document": second})


def parse_weighting(text: str, fields: Collection[str], path: str) -> dict[str, float]:
    """Parses weights of document fields, such as "image" or "image=0.9,title=0.1".

    Returns the weight by field name; at least one is above 0. Messages name the config key `path`.
    """
    out: dict[str, float] = {}
    for entry in text.split(","):
        name, equals, weight = (piece.strip() for piece in entry.partition("="))
        if name not in fields or name in out:
            choices = ", ".join(sorted(fields))
            reason = "a duplicate" if name in out else "not a document field"
            raise UserError(f"{path} has {text!r}: {name!r} is {reason}. Choose from: {choices}.")
        try:
            out[name] = float(weight) if equals else 1.0
        except ValueError:
            out[name] = -1.0
        if not 0 <= out[name] < float("inf"):
            raise UserError(
                f"{path} has {text!r}: the weight {weight!r} must be a number, at least 0, as in "
                "'image=0.9,title=0.1'."
            )
    if not sum(out.values()):
        raise UserError(f"{path} has {text!r}: at least one weight must be above 0.")
    return out


def in_mode(
    embeddings: Embeddings, mode: Mode, side: Side, bow: scipy.sparse.csr_array | None
) -> scipy.sparse.csr_array:
    """Converts gated embeddings [n, V] of a lexical field to a mode; `bow` is None for images."""
    if mode.bags == side:
        if bow is None:
            raise UserError(f"mode {mode.name!r} needs words on the {side} side, which has images.")
        return bow
    top_k = mode.top_k[side]
    return embeddings if top_k is None else narrowed(embeddings, top_k, bow)


def narrowed(
    embeddings: scipy.sparse.csr_array, top_k: int, bow: scipy.sparse.csr_array | None = None
) -> scipy.sparse.csr_array:
    """Keeps the `top_k` largest entries of each row (ties: the lower term), and the terms in `bow`.

    The embeddings, CSR [n, V], are not negative.
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
    """Builds the bags of words of a lexical field's texts, CSR [n, V], without the model.

    The bags have norm 1 if the representations of the field have norm 1 (VDR, section 4.3). Items
    [n, 2] are a record, and a text in the record.
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
    """Computes the mean share of each image's `count` strongest terms that occur in its texts.

    Both matrices are [n, V]: embeddings of images, and bags of words of each image's texts.
    """
    strongest = narrowed(embeddings, count)
    strongest.data[:] = 1
    present: Any = strongest.multiply(bow.astype(bool))
    total = np.maximum(np.diff(strongest.indptr), 1)
    return float(np.mean(np.asarray(present.sum(axis=1)).ravel() / total))
