"""Tables of parameter names: names in checkpoints of other libraries -> paths below a tower.

A table is a text with a line per parameter: name, path, and layout unless it is "same". {i} and {j}
are indices of layers. {qkv} means query, key and value, which the checkpoint stacks in one array.
A layout converts arrays in both directions. If the layout is a key of `MODULES`, such as "Linear",
the line is for all parameters of this module.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

QKV = ("query", "key", "value")


@dataclass(frozen=True)
class Layout:
    """Conversion of a checkpoint's array into one or three arrays, and its inverse."""

    to_jax: Callable[[np.ndarray], Sequence[np.ndarray]]
    to_source: Callable[[Sequence[np.ndarray]], np.ndarray]


def _single(
    to_jax: Callable[[np.ndarray], np.ndarray], to_source: Callable[[np.ndarray], np.ndarray]
) -> Layout:
    return Layout(lambda x: (to_jax(x),), lambda xs: to_source(xs[0]))


def _patches(x: np.ndarray) -> np.ndarray:
    return x.transpose(2, 3, 1, 0).reshape(-1, x.shape[0])  # [W, 3, P, P] -> [P*P*3, W]


def _convolution(x: np.ndarray) -> np.ndarray:
    side = round((x.shape[0] / 3) ** 0.5)
    return x.reshape(side, side, 3, -1).transpose(3, 2, 0, 1)  # [P*P*3, W] -> [W, 3, P, P]


def _flat_in(x: np.ndarray) -> np.ndarray:
    return x.reshape(x.shape[0], -1)  # [W, H, d] -> [W, H*d]


def _flat_out(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1])  # [H, d, W] -> [H*d, W]


def _read_only(x: np.ndarray) -> np.ndarray:
    raise NotImplementedError("this layout is only read")


LAYOUTS: dict[str, Layout] = {
    "same": _single(lambda x: x, lambda x: x),
    "linear": _single(np.transpose, np.transpose),  # [out, in] <-> [in, out]
    "conv": _single(lambda x: x.transpose(2, 3, 1, 0), lambda x: x.transpose(3, 2, 0, 1)),
    "patches": _single(_patches, _convolution),
    # clip-mtob's class tokens are [M, W] on both sides.
    "row": _single(np.atleast_2d, lambda x: x[0] if len(x) == 1 else x),  # [W] <-> [1, W]
    "batch": _single(lambda x: x[0], lambda x: x[None]),  # [1, L, W] <-> [L, W]
    # RoBERTa's positions begin after the id of padding, 1; two rows are unused.
    "from_two": _single(lambda x: x[2:], lambda x: np.concatenate([np.zeros_like(x[:2]), x])),
    "qkv": Layout(  # [3W, W] <-> three [W, W]
        lambda x: [block.T for block in np.split(x, 3)],
        lambda xs: np.concatenate([block.T for block in xs]),
    ),
    "qkv_bias": Layout(lambda x: np.split(x, 3), np.concatenate),
    # big_vision: kernels with an axis of heads, patches as [P, P, 3, W]
    "heads_in": _single(_flat_in, _read_only),
    "heads_out": _single(_flat_out, _read_only),
    "heads_bias": _single(np.ravel, _read_only),
    "flat_patches": _single(_flat_out, _read_only),
}


MODULES = {  # module -> (name, path, layout) of its parameters
    "Linear": (("weight", "kernel", "linear"), ("bias", "bias", "same")),
    "Norm": (("weight", "scale", "same"), ("bias", "bias", "same")),
    "Averages": (("running_mean", "mean", "same"), ("running_var", "var", "same")),
}


@dataclass(frozen=True)
class NameEntry:
    """One parameter of a table."""

    source_name: str  # in the checkpoint, without the table's prefix
    jax_path: str  # below the tower
    layout: str = "same"  # key of `LAYOUTS`

    def paths(self) -> list[str]:
        """Returns the paths, one or three."""
        names = QKV if "{qkv}" in self.jax_path else ("",)
        return [self.jax_path.replace("{qkv}", name) for name in names]


@dataclass(frozen=True)
class NameTable:
    """Parameters of one tower or head.

    Attributes:
      unused: regular expression for names that are not imported (buffers, poolers, classifiers).
    """

    entries: tuple[NameEntry, ...]
    unused: str = "$."

    @functools.cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], NameEntry]]:
        return [(_pattern(entry.source_name), entry) for entry in self.entries]

    def inside(self, prefix: str) -> "NameTable":
        """Returns the table with a prefix before all names."""
        entries = (replace(x, source_name=prefix + x.source_name) for x in self.entries)
        return NameTable(tuple(entries), rf"{re.escape(prefix)}({self.unused})")

    def is_unused(self, name: str) -> bool:
        """Returns True if a name is known and not imported."""
        return re.fullmatch(self.unused, name) is not None

    def to_jax(self, arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yields (name, path, converted array) of the arrays that the table has."""
        for name, array in arrays.items():
            for pattern, entry in self._patterns:
                if match := pattern.fullmatch(name):
                    converted = LAYOUTS[entry.layout].to_jax(np.asarray(array))
                    for path, values in zip(entry.paths(), converted, strict=True):
                        yield name, path.format(**match.groupdict()), values
                    break

    def to_source(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns name -> converted array of the parameters that the table has."""
        arrays: dict[str, np.ndarray] = {}
        for entry in self.entries:
            paths = entry.paths()
            for first in params:
                if match := _pattern(paths[0]).fullmatch(first):
                    layer = match.groupdict()
                    values = [params[path.format(**layer)] for path in paths]
                    name = entry.source_name.format(**layer)
                    arrays[name] = LAYOUTS[entry.layout].to_source(values)
        return arrays


def _pattern(name: str) -> re.Pattern[str]:
    """Returns a name with {i} and {j} as a regular expression with these groups."""
    return re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", re.escape(name)))


def name_table(text: str, *tables: NameTable, unused: str = "$.") -> NameTable:
    """Parses a table (its syntax: see the module), and appends the entries of other tables."""
    entries: list[NameEntry] = []
    for line in filter(str.strip, text.splitlines()):
        name, path, *layout = line.split()
        if layout and layout[0] in MODULES:
            entries += [
                NameEntry(f"{name}.{x}", f"{path}/{y}", z) for x, y, z in MODULES[layout[0]]
            ]
        else:
            entries.append(NameEntry(name, path, *layout))
    entries += [entry for other in tables for entry in other.entries]
    return NameTable(tuple(entries), unused)


# Layers of open_clip, in both towers.
CLIP_BLOCKS = name_table("""
    transformer.resblocks.{i}.attn.in_proj_weight  layers_{i}/attention/{qkv}/kernel  qkv
    transformer.resblocks.{i}.attn.in_proj_bias    layers_{i}/attention/{qkv}/bias    qkv_bias
    transformer.resblocks.{i}.attn.out_proj        layers_{i}/attention/out           Linear
    transformer.resblocks.{i}.mlp.c_fc             layers_{i}/mlp/fc1                 Linear
    transformer.resblocks.{i}.mlp.c_proj           layers_{i}/mlp/fc2                 Linear
    transformer.resblocks.{i}.ln_1                 layers_{i}/ln_1                    Norm
    transformer.resblocks.{i}.ln_2                 layers_{i}/ln_2                    Norm
""")

# Layers of CLIP in transformers, below `text_model` or `vision_model`.
HF_CLIP_BLOCKS = name_table("""
    encoder.layers.{i}.self_attn.q_proj    layers_{i}/attention/query  Linear
    encoder.layers.{i}.self_attn.k_proj    layers_{i}/attention/key    Linear
    encoder.layers.{i}.self_attn.v_proj    layers_{i}/attention/value  Linear
    encoder.layers.{i}.self_attn.out_proj  layers_{i}/attention/out    Linear
    encoder.layers.{i}.mlp.fc1             layers_{i}/mlp/fc1          Linear
    encoder.layers.{i}.mlp.fc2             layers_{i}/mlp/fc2          Linear
    encoder.layers.{i}.layer_norm1         layers_{i}/ln_1             Norm
    encoder.layers.{i}.layer_norm2         layers_{i}/ln_2             Norm
""")
