"""How arrays of the PyTorch world lie in memory, and how ours do: each layout read both ways.

A layout takes the one array of a checkpoint to the one or several of ours, and back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class Layout:
    """A change of layout and its inverse.

    Attributes:
      ours: their array -> ours, as many as the entry has paths.
      theirs: our arrays -> theirs.
    """

    ours: Callable[[np.ndarray], Arrays]
    theirs: Callable[[Arrays], np.ndarray]


def _single(
    ours: Callable[[np.ndarray], np.ndarray], theirs: Callable[[np.ndarray], np.ndarray]
) -> Layout:
    return Layout(lambda x: (ours(x),), lambda xs: theirs(xs[0]))


def _patches(x: np.ndarray) -> np.ndarray:
    return x.transpose(2, 3, 1, 0).reshape(-1, x.shape[0])  # [W, 3, P, P] -> [P*P*3, W]


def _convolution(x: np.ndarray) -> np.ndarray:
    side = round((x.shape[0] / 3) ** 0.5)
    return x.reshape(side, side, 3, -1).transpose(3, 2, 0, 1)  # [P*P*3, W] -> [W, 3, P, P]


def _flat_in(x: np.ndarray) -> np.ndarray:
    return x.reshape(x.shape[0], -1)  # [W, H, d] -> [W, H*d]


def _flat_out(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1])  # [H, d, W] -> [H*d, W]


def _one_way(x: np.ndarray) -> np.ndarray:
    raise NotImplementedError("this layout is only read")


def _skip(x: np.ndarray) -> np.ndarray:
    return x[2:]


def _pad(x: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros_like(x[:2]), x])


LAYOUTS: dict[str, Layout] = {
    "same": _single(lambda x: x, lambda x: x),
    "linear": _single(np.transpose, np.transpose),  # [out, in] <-> [in, out]
    "conv": _single(lambda x: x.transpose(2, 3, 1, 0), lambda x: x.transpose(3, 2, 0, 1)),
    "patches": _single(_patches, _convolution),
    "row": _single(lambda x: x[None], lambda x: x[0]),  # [W] <-> [1, W]
    "batch": _single(lambda x: x[0], lambda x: x[None]),  # [1, L, W] <-> [L, W]
    "scalar": _single(lambda x: x.reshape(()), lambda x: x.reshape(())),
    # RoBERTa's positions begin behind the padding's id, 1; two rows are never looked at.
    "from_two": _single(_skip, _pad),
    "qkv": Layout(  # [3W, W] <-> three [W, W]
        lambda x: [part.T for part in np.split(x, 3)],
        lambda xs: np.concatenate([part.T for part in xs]),
    ),
    "qkv_bias": Layout(lambda x: np.split(x, 3), np.concatenate),
    # big_vision, only read: kernels with an axis of heads, patches as [P, P, 3, W]
    "heads_in": _single(_flat_in, _one_way),
    "heads_out": _single(_flat_out, _one_way),
    "heads_bias": _single(np.ravel, _one_way),
    "flat_patches": _single(_flat_out, _one_way),
}
