"""Tables of names: how a checkpoint of another library calls what our parameters are.

A table is data and reads in both directions. In names and paths {i} stands for a layer's number
(and {j} for a second one). `ours` is below the tower; {qkv} stands for query, key, value, which one
array of theirs holds stacked. A layout says how arrays of the PyTorch world lie in memory and how
ours do: it takes the one array of a checkpoint to the one or several of ours, and back.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

QKV = ("query", "key", "value")
Several = Sequence[np.ndarray]


@dataclass(frozen=True)
class Layout:
    """A change of layout and its inverse.

    Attributes:
      ours: their array -> ours, as many as the entry has paths.
      theirs: our arrays -> theirs.
    """

    ours: Callable[[np.ndarray], Several]
    theirs: Callable[[Several], np.ndarray]


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


@dataclass(frozen=True)
class NameEntry:
    """One line of a table.

    Attributes:
      theirs: a name in the checkpoint, without the table's prefix.
      ours: the path below the tower.
      layout: of `LAYOUTS`.
    """

    theirs: str
    ours: str
    layout: str = "same"

    def paths(self) -> tuple[str, ...]:
        """Our paths, one or three."""
        if "{qkv}" not in self.ours:
            return (self.ours,)
        return tuple(self.ours.replace("{qkv}", each) for each in QKV)


@dataclass(frozen=True)
class NameTable:
    """Entries of one tower or head.

    Attributes:
      entries: the lines.
      unused: regular expression of names that belong to the tower and that we have no use for
        (buffers, poolers, classifiers).
    """

    entries: tuple[NameEntry, ...]
    unused: str = "$."
    _patterns: list[tuple[re.Pattern[str], NameEntry]] = field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        self._patterns.extend((_pattern(entry.theirs), entry) for entry in self.entries)

    def inside(self, prefix: str) -> "NameTable":
        """The same names with a prefix before them."""
        entries = (replace(entry, theirs=prefix + entry.theirs) for entry in self.entries)
        return NameTable(tuple(entries), rf"{re.escape(prefix)}({self.unused})")

    def find(self, name: str) -> tuple[NameEntry, dict[str, str]] | None:
        """The entry of one of their names, with the numbers of its layers."""
        for pattern, entry in self._patterns:
            if match := pattern.fullmatch(name):
                return entry, match.groupdict()
        return None

    def is_unused(self, name: str) -> bool:
        """Whether a name is known to be of no use."""
        return re.fullmatch(self.unused, name) is not None

    def to_ours(self, arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, np.ndarray]]:
        """(their name, our path, array in our layout) of all names that the table knows."""
        for name, array in arrays.items():
            if (found := self.find(name)) is None:
                continue
            entry, numbers = found
            parts = LAYOUTS[entry.layout].ours(np.asarray(array))
            for path, part in zip(entry.paths(), parts, strict=True):
                yield name, path.format(**numbers), part

    def to_theirs(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All of our parameters that the table knows, under their names and in their layout."""
        found: dict[str, np.ndarray] = {}
        for entry in self.entries:
            first, *rest = entry.paths()
            for path in params:
                if (match := _pattern(first).fullmatch(path)) is None:
                    continue
                numbers = match.groupdict()
                arrays = [params[path], *(params[other.format(**numbers)] for other in rest)]
                found[entry.theirs.format(**numbers)] = LAYOUTS[entry.layout].theirs(arrays)
        return found


def _pattern(name: str) -> re.Pattern[str]:
    """A name with {i} and {j} as a regular expression with these groups."""
    return re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", re.escape(name)))


def _module(theirs: str, ours: str, layout: str, names: tuple[str, str]) -> Iterator[NameEntry]:
    yield NameEntry(f"{theirs}.weight", f"{ours}/{names[0]}", layout)
    yield NameEntry(f"{theirs}.bias", f"{ours}/{names[1]}")


def linear(modules: Mapping[str, str]) -> Iterator[NameEntry]:
    """Linear layers with bias: their module -> our module."""
    for theirs, ours in modules.items():
        yield from _module(theirs, ours, "linear", ("kernel", "bias"))


def norms(modules: Mapping[str, str]) -> Iterator[NameEntry]:
    """Layer norms: their module -> our module."""
    for theirs, ours in modules.items():
        yield from _module(theirs, ours, "same", ("scale", "bias"))


def table(*parts: Iterable[NameEntry], unused: str = "$.") -> NameTable:
    """A table of several lists of names."""
    return NameTable(tuple(entry for part in parts for entry in part), unused)


def clip_blocks(prefix: str) -> list[NameEntry]:
    """open_clip's residual blocks, in both towers."""
    block, ours = f"{prefix}transformer.resblocks.{{i}}", "layers_{i}"
    return [
        NameEntry(f"{block}.attn.in_proj_weight", f"{ours}/attention/{{qkv}}/kernel", "qkv"),
        NameEntry(f"{block}.attn.in_proj_bias", f"{ours}/attention/{{qkv}}/bias", "qkv_bias"),
        *linear(
            {
                f"{block}.attn.out_proj": f"{ours}/attention/out",
                f"{block}.mlp.c_fc": f"{ours}/mlp/fc1",
                f"{block}.mlp.c_proj": f"{ours}/mlp/fc2",
            }
        ),
        *norms({f"{block}.ln_1": f"{ours}/ln_1", f"{block}.ln_2": f"{ours}/ln_2"}),
    ]


_HF_CLIP_BLOCK = {
    "self_attn.q_proj": "attention/query",
    "self_attn.k_proj": "attention/key",
    "self_attn.v_proj": "attention/value",
    "self_attn.out_proj": "attention/out",
    "mlp.fc1": "mlp/fc1",
    "mlp.fc2": "mlp/fc2",
}


def hf_clip_blocks(model: str) -> list[NameEntry]:
    """The layers of a tower of transformers' CLIP, `text_model` or `vision_model`."""
    block, ours = f"{model}.encoder.layers.{{i}}", "layers_{i}"
    pairs = {f"{block}.{a}": f"{ours}/{b}" for a, b in _HF_CLIP_BLOCK.items()}
    lns = {f"{block}.layer_norm1": f"{ours}/ln_1", f"{block}.layer_norm2": f"{ours}/ln_2"}
    return [*linear(pairs), *norms(lns)]
