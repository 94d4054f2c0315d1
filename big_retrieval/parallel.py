"""The device mesh, how parameters and rows are sharded over it, and how a batch gets onto it.

Parameters carry logical axis names (`embed`, `heads`, `mlp`, ...); `RULES` maps those to the mesh
axes data, fsdp and tensor. Towers run under jit with automatic sharding. No other module names a
device.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from big_retrieval.batch import Batch
from big_retrieval.config import Config
from big_retrieval.config.checks import mesh_shape
from big_retrieval.errors import UserError

AXES = ("data", "fsdp", "tensor")
# Optional arrays of a batch besides its fields.
EXTRAS = (
    "query_id", "document_id", "weight", "negatives", "negatives_valid", "negatives_id",
)  # fmt: skip
ROWS = PartitionSpec(("data", "fsdp"))  # sharding of the rows of a batch, its first axis
RULES: tuple[tuple[str, Any], ...] = (
    ("batch", ("data", "fsdp")),
    ("embed", "fsdp"),
    ("heads", "tensor"),
    ("mlp", "tensor"),
    ("vocab", "tensor"),
    ("position", None),
    ("class_token", None),
    ("token_type", None),
    ("relative", None),
    ("heads_bias", None),
    ("patch_in", None),
    ("kernel_row", None),
    ("kernel_column", None),
    ("channel", None),
    ("projection", None),
    ("gate", None),
    ("length", None),
    ("embed_act", None),
)


def make_mesh(config: Config, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh of a run, over all devices of all processes unless given.

    Raises:
      UserError: the axes do not fit the devices or the batch.
    """
    devices = jax.devices() if devices is None else devices
    shape = mesh_shape(config, len(devices))
    return jax.make_mesh(shape, AXES, devices=devices, axis_types=(AxisType.Auto,) * len(AXES))


@contextlib.contextmanager
def use(mesh: Mesh) -> Iterator[None]:
    """Sets the mesh and the rules that the logical constraints inside the towers read."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        yield


@contextlib.contextmanager
def without_axis(axis: str) -> Iterator[None]:
    """Leaves a mesh axis out of the logical constraints, inside a `shard_map` over that axis."""
    rules: list[tuple[str, Any]] = []
    for name, axes in nn.get_logical_axis_rules():
        names = (axes,) if isinstance(axes, str) else tuple(axes or ())
        rules.append((name, tuple(each for each in names if each != axis) or None))
    with nn.logical_axis_rules(rules):
        yield


def state_shardings(abstract: Any, mesh: Mesh) -> Any:
    """The sharding of each array of a training state.

    Args:
      abstract: the state as `jax.eval_shape` gives it, leaves still boxed with their logical names.
      mesh: the devices.

    Returns:
      The tree of NamedShardings of the unboxed state. A dimension that its mesh axis does not
      divide stays whole.

    Raises:
      UserError: a tower of one's own names an axis that `RULES` does not have.
    """
    rules = dict(RULES)

    def place(spec: PartitionSpec, leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):  # where an optimizer has masked a parameter: no array
            return leaf
        axes: list[Any] = []
        taken: set[str] = set()  # a mesh axis shards one dimension only
        for size, name in zip(leaf.shape, spec, strict=False):
            if name is not None and name not in rules:
                raise UserError(
                    f"a parameter of the shape {leaf.shape} has the logical axis {name!r}, which "
                    f"is none of {', '.join(rules)}; use None for a dimension that stays whole."
                )
            axis = rules.get(name) if name is not None else None
            names = {axis} if isinstance(axis, str) else set(axis or ())
            fits = bool(names) and size % math.prod(mesh.shape[each] for each in names) == 0
            fits = fits and not names & taken
            axes.append(axis if fits else None)
            taken |= names if fits else set()
        return NamedSharding(mesh, PartitionSpec(*axes))

    specs = nn.get_partition_spec(abstract)
    return jax.tree.map(
        place, specs, nn.unbox(abstract), is_leaf=lambda x: isinstance(x, PartitionSpec)
    )


def undivided(abstract: Any, mesh: Mesh) -> list[str]:
    """Dimensions of a training state that stay whole, as their mesh axis does not divide them.

    Args:
      abstract: as for `state_shardings`, which has checked the names of its axes.
      mesh: the devices.

    Returns:
      A sentence for each size and axis: which parameters, and what a device holds more of them,
      of their gradients' averages and of other arrays of the optimizer.
    """
    found: dict[tuple[int, str], tuple[list[str], list[float]]] = {}
    rules, shardings = dict(RULES), state_shardings(abstract, mesh)

    def look(path: Any, spec: PartitionSpec, leaf: Any, sharding: Any) -> None:
        shape: tuple[int, ...] = getattr(leaf, "shape", ())
        for size, name in zip(shape, spec, strict=False):
            axis = rules.get(name)
            if not isinstance(axis, str) or axis in sharding.spec or not size % mesh.shape[axis]:
                continue
            names, more = found.setdefault((size, axis), ([], []))
            held = math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            more.append(held * (1 - 1 / mesh.shape[axis]))
            if getattr(path[0], "name", "") == "params":
                names.append("/".join(str(key.key) for key in path[1:]))

    specs = nn.get_partition_spec(abstract)
    trees = specs, nn.unbox(abstract), shardings
    is_spec = lambda x: isinstance(x, PartitionSpec)  # noqa: E731
    jax.tree_util.tree_map_with_path(look, *trees, is_leaf=is_spec)
    return [
        f"config.mesh.{axis}={mesh.shape[axis]} does not divide {size:,}, so {', '.join(names)} "
        f"stays whole: {round(sum(more)):,} bytes more per device, with the optimizer's state"
        for (size, axis), (names, more) in found.items()
    ]


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over data and fsdp."""
    return NamedSharding(mesh, ROWS)


def replicated(mesh: Mesh) -> NamedSharding:
    """Whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """The rows of a global batch that this process's devices hold, ascending, int64 [b]."""
    slices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    starts = {(index[0].start or 0, index[0].stop or batch_size) for index in slices if index}
    return np.concatenate([np.arange(start, stop) for start, stop in sorted(starts)])


def to_batch(arrays: Mapping[str, Any], mesh: Mesh, rows: np.ndarray, batch_size: int) -> Batch:
    """This process's rows of a batch, as one global `Batch` over the mesh.

    Args:
      arrays: what `data.pipeline` yields: field name -> arrays [b, ...], `record` and `valid` [b],
        and labels [b] and negatives [b, K, ...] where there are some.
      mesh: the devices.
      rows: the rows of the global batch that `arrays` holds (`local_rows`).
      batch_size: B.
    """
    sharding = batch_sharding(mesh)

    def put(local: np.ndarray) -> jax.Array:
        def rows_of(index: Any) -> np.ndarray:
            start = index[0].start or 0
            stop = batch_size if index[0].stop is None else index[0].stop
            first = int(np.searchsorted(rows, start))
            return local[first : first + stop - start]

        return jax.make_array_from_callback((batch_size, *local.shape[1:]), sharding, rows_of)

    extras = {name: jax.tree.map(put, arrays[name]) for name in EXTRAS if name in arrays}
    extras.setdefault("document_id", put(arrays["record"].astype(np.int32)))
    fields = {name: arrays[name] for name in arrays.keys() - set(EXTRAS)}
    fields = {name: part for name, part in fields.items() if isinstance(part, Mapping)}
    return Batch(fields=jax.tree.map(put, fields), valid=put(arrays["valid"]), **extras)


def fetch(x: jax.Array) -> np.ndarray:
    """A possibly sharded array as numpy on every process."""
    if not x.is_fully_addressable and not x.is_fully_replicated:
        x = jax.jit(lambda y: y, out_shardings=replicated(x.sharding.mesh))(x)  # type: ignore
    return np.asarray(x)
