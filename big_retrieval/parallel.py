"""The device mesh, the sharding of parameters and rows over it, and the placement of batches.

Parameters carry logical axis names (`embed`, `heads`, `mlp`, ...); `RULES` maps these names to the
mesh axes data, fsdp and tensor. Towers run under jit with automatic sharding.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
# Optional arrays of a batch in addition to its fields.
EXTRAS = (
    "query_id", "document_id", "weight", "negatives", "negatives_valid", "negatives_id",
)  # fmt: skip
ROWS = PartitionSpec(("data", "fsdp"))  # for the first axis of a batch
_REPLICATED = (
    "position", "class_token", "token_type", "relative", "heads_bias", "patch_in", "kernel_row",
    "kernel_column", "channel", "projection", "gate", "length", "embed_act",
)  # fmt: skip
RULES: tuple[tuple[str, Any], ...] = (
    ("batch", ("data", "fsdp")),
    ("embed", "fsdp"),
    *((name, "tensor") for name in ("heads", "mlp", "vocab")),
    *((name, None) for name in _REPLICATED),
)


def make_mesh(config: Config, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the mesh of a run, by default over all devices of all processes.

    Raises:
      UserError: the axes do not fit the devices or the batch.
    """
    devices = jax.devices() if devices is None else devices
    return _mesh(mesh_shape(config, len(devices)), devices)


def local_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """Returns a mesh with one axis, data, by default over all devices of this process."""
    devices = jax.local_devices() if devices is None else devices
    return _mesh((len(devices), *[1] * (len(AXES) - 1)), devices)


def _mesh(shape: tuple[int, ...], devices: Sequence[Any]) -> Mesh:
    return jax.make_mesh(shape, AXES, devices=devices, axis_types=(AxisType.Auto,) * len(AXES))


@contextlib.contextmanager
def use(mesh: Mesh) -> Iterator[None]:
    """Sets the mesh, and the rules of logical constraints in the towers."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        yield


@contextlib.contextmanager
def without_axis(axis: str) -> Iterator[None]:
    """Removes a mesh axis from the logical constraints, inside a `shard_map` over the axis."""
    rules: list[tuple[str, Any]] = []
    for name, axes in nn.get_logical_axis_rules():
        mesh_axes = (axes,) if isinstance(axes, str) else tuple(axes or ())
        rules.append((name, tuple(x for x in mesh_axes if x != axis) or None))
    with nn.logical_axis_rules(rules):
        yield


def state_shardings(abstract: Any, mesh: Mesh) -> Any:
    """Returns the NamedShardings of the unboxed training state.

    A dimension that its mesh axis does not divide is not sharded.

    Args:
      abstract: state from `jax.eval_shape`, whose leaves are boxed with their logical names.

    Raises:
      UserError: a user-defined tower names an axis that `RULES` does not have.
    """
    rules = dict(RULES)

    def sharding(spec: PartitionSpec, leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):  # a masked parameter in an optimizer's state
            return leaf
        axes: list[Any] = []
        used: set[str] = set()  # a mesh axis shards only one dimension
        for size, name in zip(leaf.shape, spec, strict=False):
            if name is not None and name not in rules:
                raise UserError(
                    f"A parameter of shape {leaf.shape} has the unknown logical axis {name!r}. Use "
                    f"None for a dimension that is not sharded, or one of {', '.join(rules)}."
                )
            axis = rules.get(name) if name is not None else None
            names = {axis} if isinstance(axis, str) else set(axis or ())
            fits = bool(names) and size % math.prod(mesh.shape[x] for x in names) == 0
            fits = fits and not names & used
            axes.append(axis if fits else None)
            used |= names if fits else set()
        return NamedSharding(mesh, PartitionSpec(*axes))

    specs = nn.get_partition_spec(abstract)
    return jax.tree.map(
        sharding, specs, nn.unbox(abstract), is_leaf=lambda x: isinstance(x, PartitionSpec)
    )


def undivided(abstract: Any, mesh: Mesh) -> list[str]:
    """Returns messages about dimensions that their mesh axis does not divide, per size and axis.

    They contain the names of the parameters and the additional bytes per device, including the
    optimizer's state. `abstract` is the argument of `state_shardings`.
    """
    undivided: dict[tuple[int, str], tuple[list[str], list[float]]] = {}
    rules, shardings = dict(RULES), state_shardings(abstract, mesh)

    def collect(path: Any, spec: PartitionSpec, leaf: Any, sharding: Any) -> None:
        shape: tuple[int, ...] = getattr(leaf, "shape", ())
        for size, name in zip(shape, spec, strict=False):
            axis = rules.get(name)
            if not isinstance(axis, str) or axis in sharding.spec or not size % mesh.shape[axis]:
                continue
            names, more = undivided.setdefault((size, axis), ([], []))
            held = math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            more.append(held * (1 - 1 / mesh.shape[axis]))
            if getattr(path[0], "name", "") == "params":
                names.append("/".join(str(key.key) for key in path[1:]))

    specs = nn.get_partition_spec(abstract)
    trees = specs, nn.unbox(abstract), shardings
    is_spec = lambda x: isinstance(x, PartitionSpec)  # noqa: E731
    jax.tree_util.tree_map_with_path(collect, *trees, is_leaf=is_spec)
    return [
        f"config.mesh.{axis}={mesh.shape[axis]} does not divide {size:,}, so {', '.join(names)} "
        f"is not sharded: {round(sum(more)):,} bytes more per device, with the optimizer's state"
        for (size, axis), (names, more) in undivided.items()
    ]


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of rows over data and fsdp."""
    return NamedSharding(mesh, ROWS)


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of arrays that every device holds in full."""
    return NamedSharding(mesh, PartitionSpec())


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Returns the rows of a global batch on this process's devices, sorted, int64 [b]."""
    slices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    starts = {(index[0].start or 0, index[0].stop or batch_size) for index in slices if index}
    return np.concatenate([np.arange(start, stop) for start, stop in sorted(starts)])


def to_batch(arrays: Mapping[str, Any], mesh: Mesh, batch_size: int) -> Batch:
    """Returns one global `Batch` of B = `batch_size` rows over the mesh.

    Args:
      arrays: output of `data.pipeline` for the rows `local_rows`, or for all B rows, equal on every
        process: field name -> arrays [b, ...], `record` and `valid` [b], and labels [b] and
        negatives [b, K, ...], if any.
    """
    sharding = batch_sharding(mesh)

    def put(local: np.ndarray) -> jax.Array:
        shape = (batch_size, *local.shape[1:])
        return jax.make_array_from_process_local_data(sharding, local, shape)

    extras = {name: jax.tree.map(put, arrays[name]) for name in EXTRAS if name in arrays}
    extras.setdefault("document_id", put(arrays["record"].astype(np.int32)))
    fields = {
        name: jax.tree.map(put, field)
        for name, field in arrays.items()
        if isinstance(field, Mapping) and name not in EXTRAS
    }
    return Batch(fields=fields, valid=put(arrays["valid"]), **extras)


def gather_rows(arrays: Any, mesh: Mesh, batch_size: int) -> Any:
    """Returns all B rows of arrays; each process gives its `local_rows`, [b, ...]."""
    sharding = batch_sharding(mesh)
    if sharding.is_fully_addressable:
        return arrays

    def gather(local: np.ndarray) -> np.ndarray:
        shape = (batch_size, *local.shape[1:])
        return fetch(jax.make_array_from_process_local_data(sharding, local, shape))

    return jax.tree.map(gather, arrays)


def fetch(x: jax.Array) -> np.ndarray:
    """Returns a possibly sharded array as numpy on every process."""
    if not x.is_fully_addressable and not x.is_fully_replicated:
        x = _replicating(x.sharding.mesh)(x)  # type: ignore
    return np.asarray(x)


@functools.lru_cache(maxsize=8)
def _replicating(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """Returns a jitted function that replicates an array; the cache avoids compiling it again."""
    return jax.jit(lambda x: x, out_shardings=replicated(mesh))
