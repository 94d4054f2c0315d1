"""Tables of parameter names: names in checkpoints of other libraries -> paths below a tower.

A table is a text with a line for each parameter: name, path, and layout unless it is "same". In
names and paths, {i} and {j} are the indices of a layer. {qkv} stands for query, key and value,
which one array of the checkpoint has stacked. A layout converts arrays in both directions. If the
layout is a key of `MODULES`, such as "Linear", the line is for all parameters of this module.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

QKV = ("query", "key", "value")
Several = Sequence[np.ndarray]


@dataclass(frozen=True)
class Layout:
    """Conversion of arrays, and its inverse.

    Attributes:
      ours: array of a checkpoint -> arrays of the entry's paths.
      theirs: the inverse.
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


LAYOUTS: dict[str, Layout] = {
    "same": _single(lambda x: x, lambda x: x),
    "linear": _single(np.transpose, np.transpose),  # [out, in] <-> [in, out]
    "conv": _single(lambda x: x.transpose(2, 3, 1, 0), lambda x: x.transpose(3, 2, 0, 1)),
    "patches": _single(_patches, _convolution),
    "row": _single(lambda x: x[None], lambda x: x[0]),  # [W] <-> [1, W]
    "batch": _single(lambda x: x[0], lambda x: x[None]),  # [1, L, W] <-> [L, W]
    "scalar": _single(lambda x: x.reshape(()), lambda x: x.reshape(())),
    # RoBERTa's positions begin after the id of padding, 1; two rows are unused.
    "from_two": _single(lambda x: x[2:], lambda x: np.concatenate([np.zeros_like(x[:2]), x])),
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


MODULES = {  # module -> (name, path, layout) of its parameters
    "Linear": (("weight", "kernel", "linear"), ("bias", "bias", "same")),
    "Norm": (("weight", "scale", "same"), ("bias", "bias", "same")),
    "Averages": (("running_mean", "mean", "same"), ("running_var", "var", "same")),
}


@dataclass(frozen=True)
class NameEntry:
    """One parameter of a table.

    Attributes:
      theirs: name in the checkpoint, without the table's prefix.
      ours: path below the tower.
      layout: key of `LAYOUTS`.
    """

    theirs: str
    ours: str
    layout: str = "same"

    def paths(self) -> tuple[str, ...]:
        """Returns the paths, one or three."""
        if "{qkv}" not in self.ours:
            return (self.ours,)
        return tuple(self.ours.replace("{qkv}", name) for name in QKV)


@dataclass(frozen=True)
class NameTable:
    """Parameters of one tower or head.

    Attributes:
      unused: regular expression of names of the tower that are not imported (buffers, poolers,
        classifiers).
    """

    entries: tuple[NameEntry, ...]
    unused: str = "$."
    _patterns: list[tuple[re.Pattern[str], NameEntry]] = field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        self._patterns.extend((_pattern(entry.theirs), entry) for entry in self.entries)

    def inside(self, prefix: str) -> "NameTable":
        """Returns the table with a prefix before all names."""
        entries = (replace(entry, theirs=prefix + entry.theirs) for entry in self.entries)
        return NameTable(tuple(entries), rf"{re.escape(prefix)}({self.unused})")

    def find(self, name: str) -> tuple[NameEntry, dict[str, str]] | None:
        """Returns the entry of a name, with the indices of its layers."""
        for pattern, entry in self._patterns:
            if match := pattern.fullmatch(name):
                return entry, match.groupdict()
        return None

    def is_unused(self, name: str) -> bool:
        """Returns True if a name is known and not imported."""
        return re.fullmatch(self.unused, name) is not None

    def to_ours(self, arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yields (name, path, converted array) of the arrays that the table has."""
        for name, array in arrays.items():
            if (found := self.find(name)) is None:
                continue
            entry, numbers = found
            parts = LAYOUTS[entry.layout].ours(np.asarray(array))
            for path, part in zip(entry.paths(), parts, strict=True):
                yield name, path.format(**numbers), part

    def to_theirs(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns name -> converted array of the parameters that the table has."""
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
    """Returns a name with {i} and {j} as a regular expression with these groups."""
    return re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", re.escape(name)))


def table(text: str, *parts: NameTable, unused: str = "$.") -> NameTable:
    """Returns the table of a text, see the module's docstring, with the entries of other tables."""
    entries: list[NameEntry] = []
    for line in filter(str.strip, text.splitlines()):
        theirs, ours, *layout = line.split()
        if layout and layout[0] in MODULES:
            for name, path, kind in MODULES[layout[0]]:
                entries.append(NameEntry(f"{theirs}.{name}", f"{ours}/{path}", kind))
        else:
            entries.append(NameEntry(theirs, ours, *layout))
    entries += [entry for part in parts for entry in part.entries]
    return NameTable(tuple(entries), unused)


# Layers of open_clip, in both towers.
CLIP_BLOCKS = table("""
    transformer.resblocks.{i}.attn.in_proj_weight  layers_{i}/attention/{qkv}/kernel  qkv
    transformer.resblocks.{i}.attn.in_proj_bias    layers_{i}/attention/{qkv}/bias    qkv_bias
    transformer.resblocks.{i}.attn.out_proj        layers_{i}/attention/out           Linear
    transformer.resblocks.{i}.mlp.c_fc             layers_{i}/mlp/fc1                 Linear
    transformer.resblocks.{i}.mlp.c_proj           layers_{i}/mlp/fc2                 Linear
    transformer.resblocks.{i}.ln_1                 layers_{i}/ln_1                    Norm
    transformer.resblocks.{i}.ln_2                 layers_{i}/ln_2                    Norm
""")

# Layers of CLIP in transformers, below `text_model` or `vision_model`.
HF_CLIP_BLOCKS = table("""
    encoder.layers.{i}.self_attn.q_proj    layers_{i}/attention/query  Linear
    encoder.layers.{i}.self_attn.k_proj    layers_{i}/attention/key    Linear
    encoder.layers.{i}.self_attn.v_proj    layers_{i}/attention/value  Linear
    encoder.layers.{i}.self_attn.out_proj  layers_{i}/attention/out    Linear
    encoder.layers.{i}.mlp.fc1             layers_{i}/mlp/fc1          Linear
    encoder.layers.{i}.mlp.fc2             layers_{i}/mlp/fc2          Linear
    encoder.layers.{i}.layer_norm1         layers_{i}/ln_1             Norm
    encoder.layers.{i}.layer_norm2         layers_{i}/ln_2             Norm
""")
