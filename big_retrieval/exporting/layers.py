"""Where a library's model begins to differ from ours, if its embeddings differ.

An export stores, beside our embeddings, what each layer of ours gives for three inputs of a field,
reduced to the vectors of two positions. Only where embeddings differ, the library is asked for the
same of its own layers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from big_retrieval.inference.load import TrainedModel
from big_retrieval.interop.source import below

ROWS = (3, 8, 15)  # of the certificate's inputs: a sentence, another script, more than is read
# The second position, too: that of a causal tower's first token depends on no other token.
POSITIONS = 2
Layers = Sequence[tuple[str, str]]  # our layer, see `names`, and the library's module that gives it
ENTERS, BEHIND = "embedding", "final"  # what enters the first layer; the norm behind the last one


def stored(
    own: TrainedModel, layers: Mapping[str, Layers], inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What our layers give, float32 [3, P, W] by `layers/FIELD/LAYER`.

    Args:
      own: our model, in float32.
      layers: see `ExportTarget.layers`.
      inputs: of the certificate, by field.
    """
    found: dict[str, np.ndarray] = {}
    for field, pairs in layers.items():
        inside = _inside(own, field, inputs)
        for name in (ENTERS, *(ours for ours, _ in pairs)):
            if name in inside:
                found[f"layers/{field}/{name}"] = _reduced(inside[name])
    return found


def _inside(
    own: TrainedModel, field: str, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What our tower gives for some inputs, by layer."""
    if field in inputs:
        given = rows_of(inputs[field])
        values: Any = given.tolist() if given.dtype.kind == "U" else list(given)
        return own.features(values, field, None)
    size = own.encoder.batch_size
    rows, place = np.resize(ROWS, size), np.arange(size)
    arrays = {name: x[rows] for name, x in below(inputs, f"{field}/").items()}
    batch = {field: arrays, "record": place, "valid": place < len(ROWS)}
    return own.encoder.features(own.weights, field, [batch], None)[0]


def rows_of(values: np.ndarray) -> np.ndarray:
    """Those inputs or embeddings of a field, [16, ...], that layers are stored of, [3, ...]."""
    return values[list(ROWS)]


def _reduced(x: np.ndarray) -> np.ndarray:
    """Some vectors [n, P, W] of activations: positions [n, L, W] or feature maps [n, h, w, C]."""
    few = x.mean((1, 2))[:, None] if x.ndim == 4 else x[:, :POSITIONS]
    return np.asarray(few, np.float32)


def first_difference(
    layers: Layers,
    ours: Mapping[str, np.ndarray],
    theirs: Mapping[str, np.ndarray],
    limit: float,
) -> str:
    """Which layer is the first that differs, as a clause; "": there is none to compare.

    Args:
      layers: of a field.
      ours: layer -> [3, P, W], of `stored`.
      theirs: the same of the library.
      limit: up to which difference layers agree.
    """
    paths = dict(layers)
    compared = [name for name in (ENTERS, *paths) if name in ours and name in theirs]
    for name in compared:
        difference = difference_of(*_shared(ours[name], theirs[name]))
        if difference is not None and difference <= limit:
            continue
        by = "" if difference is None else f" (by {difference:.2g})"
        if name == ENTERS:
            return (
                f"what enters the first layer differs already{by}: tokens or pixels are prepared "
                "differently, or embedded with other weights"
            )
        what = "the norm behind the last layer" if name == BEHIND else f"layer {name}"
        return f"the first layer that differs is {what}, {paths[name]} in the library{by}"
    what = "all layers agree, so what follows them differs: pooling, head or normalisation"
    return what if compared else ""


def _shared(ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of arrays [n, P, W] the positions that both have: some norms see pooled vectors only."""
    count = min(ours.shape[1], theirs.shape[1])
    return ours[:, :count], theirs[:, :count]


def at_gate(
    ours: np.ndarray, other: np.ndarray | None, top_k: int | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Gated embeddings [n, V], comparable where rounding has let other terms through the gate.

    A term that only one side keeps counts on the other side as the weakest of the `top_k` that this
    side keeps: both are the same but for rounding unless something is wrong.
    """
    if not top_k or other is None or other.shape != ours.shape or top_k > ours.shape[1]:
        return ours, other
    weakest = (np.sort(x, axis=1)[:, -top_k, None] for x in (ours, other))
    pairs = zip((ours, other), (other, ours), weakest, strict=True)
    one, two = (np.where((x == 0) & (y != 0), least, x) for x, y, least in pairs)
    return one, two


def difference_of(ours: np.ndarray, other: np.ndarray | None) -> float | None:
    """The largest difference, by the largest value where that is above 1.

    None: there is nothing to compare, or other shapes, or no numbers.
    """
    if other is None or other.shape != ours.shape:
        return None
    found = float(np.max(np.abs(ours - other)) / max(1.0, float(np.max(np.abs(ours)))))
    return found if np.isfinite(found) else None
