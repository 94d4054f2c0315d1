"""Bytes of a training step on one device, by formulas; nothing is compiled or allocated.

* parameters, optimiser (and averages), batch: exact, from shapes and shardings.
* activations: the arrays that automatic differentiation keeps of the towers for the backward pass.
  They are found by tracing on abstract arrays, so any tower, type and `remat` is counted. A tower
  with equal layers (`Tower.at_depth`) is traced with one and two layers and scaled to its depth,
  other towers are traced whole. Added are one layer's backward pass, the gradients, and the copies
  of parameters that loops and meshes make.
* representations: embeddings of both sides and their gradients, of all rows of the device.
* loss: the rows that are sent, and the tiles of scores.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from big_retrieval.config import Config
from big_retrieval.config.topologies import TopologyKey
from big_retrieval.models.towers import DTYPES, RetrievalModel
from big_retrieval.plan.loss_cost import loss, representations
from big_retrieval.plan.vocabulary import with_words
from big_retrieval.sparse.terms import Terms
from big_retrieval.train.build import BuiltModel
from big_retrieval.train.step import abstract_batch

PARTS = ("parameters", "optimiser", "batch", "activations", "representations", "loss")
SMALL = 64  # rows of a word table that does not count
_ROWS = 8191  # a prime: an array whose size it divides has a row axis


@dataclasses.dataclass(frozen=True)
class SavedBytes:
    """What the backward pass of one field needs, bytes.

    Attributes:
      base: per row, kept outside the layers.
      layer: per row and layer, kept.
      inside: per row, in addition during the backward pass of one layer.
      casts: copies of one layer's parameters in another type.
    """

    base: int
    layer: int
    inside: int
    casts: int


def arrays_bytes(tree: Any) -> int:
    """Bytes of abstract arrays on one device, by their shardings."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    )


def groups(parts: BuiltModel) -> int:
    """Devices that rows are sharded over."""
    return parts.mesh.shape["data"] * parts.mesh.shape["fsdp"]


def state_bytes(parts: BuiltModel) -> dict[str, int]:
    """`parameters`, `optimiser` and `batch` of one device; exact."""
    params = arrays_bytes(parts.abstract.params)
    return {
        "parameters": params,
        "optimiser": arrays_bytes(parts.abstract) - params,
        "batch": arrays_bytes(abstract_batch(parts.config, parts.mesh)),
    }


def per_device(
    parts: BuiltModel,
    platform: str,
    config: Config | None = None,
    state: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """All of `PARTS` and their `total`, bytes on one device.

    Args:
      parts: of `build_model`; its mesh is the one that the step will run on.
      platform: "gpu", "tpu" or "cpu".
      config: differs from that of `parts` only in how it is computed: `microbatch`, the losses, the
        towers' `remat` and `scan`; None: that of `parts`.
      state: from `state_bytes`, if it is known already.
    """
    config = with_words(config or parts.config, parts.model.vocab_size)
    found = {
        **(state or state_bytes(parts)),
        "activations": sum(activations(parts, config, platform).values()),
        "representations": representations(config, groups(parts), parts.mesh.shape["tensor"]),
        "loss": loss(config, groups(parts), platform, parts.mesh.shape["tensor"]),
    }
    return {**found, "total": sum(found.values())}


def activations(parts: BuiltModel, config: Config, platform: str) -> dict[str, int]:
    """Bytes that the towers hold on one device at the fullest moment of a step, by kind.

    `kept` for the backward pass; `layer`, the largest backward pass of one layer or lexical head,
    less what it takes over from the loss; `gradients` of the parameters; `copies` of parameters
    (stacked by scans, gathered by the mesh, cast).
    """
    rows = -(-(config.microbatch or config.batch_size) // groups(parts))
    tensor = parts.mesh.shape["tensor"]
    kept, layer, casts, stacked = 0, [0], 0, 0
    for name, field in config.encoded.items():
        tower = config.towers[field.tower]
        found = _saved(parts.model, name, _effective(tower, platform))
        layer.append(_blocks(name, rows, parts, platform))
        if tower.at_depth(1) is None:  # counted whole
            kept, casts = kept + rows * found.base, casts + found.casts
            layer.append(rows * found.inside)
            continue
        kept += rows * (found.base + tower.depth * found.layer)
        # Widths of heads and MLPs are sharded over the tensor axis; the residual stream is not.
        layer.append(rows * found.inside // tensor)
        casts += found.casts * (1 if tower.remat != "none" else tower.depth)
    for name, tower in config.towers.items():
        if tower.scan:
            stacked += _layers_bytes(parts, name)
    params = arrays_bytes(parts.abstract.params)
    return {
        "kept": kept,
        "layer": max(0, max(layer) - loss(config, groups(parts), platform, tensor)),
        "gradients": params + stacked,  # slices add to them in place
        "copies": stacked + casts + _gathered(parts, config),
    }


def _effective(tower: Any, platform: str) -> Any:
    """XLA on CPUs merges recomputation of unrolled layers with the forward pass: it saves nothing.

    (Seen in the compiler's accounting; inside scans it cannot.)
    """
    merged = platform == "cpu" and not tower.scan and tower.remat != "none"
    return dataclasses.replace(tower, remat="none") if merged else tower


class _Alone(NamedTuple):
    """A model of one field and nothing else, to trace the field's tower in."""

    field: Any
    topology: TopologyKey
    dtype: str
    vocab_size: int
    name: str
    terms: Terms | None

    def kept(self, tower: Any) -> tuple[int, int]:
        """(bytes per row, bytes of parameters in another type) that the backward pass keeps."""
        own = {} if self.terms is None else {self.name: self.terms}
        towers, fields = {self.field.tower: tower}, {self.name: self.field}
        how = (self.topology, self.vocab_size, own, DTYPES[self.dtype])
        return _residuals(RetrievalModel(towers, fields, *how), self.name)

    @property
    def itemsize(self) -> int:
        return jnp.dtype(DTYPES[self.dtype]).itemsize


@functools.lru_cache(maxsize=64)
def _of_layers(tower: Any, alone: _Alone) -> SavedBytes:
    """A tower of equal layers: each further layer adds what the second of two layers adds."""

    def kept(depth: int, **changes: Any) -> tuple[int, int]:
        return alone.kept(dataclasses.replace(tower.at_depth(depth), **changes))

    (one, one_casts), (two, two_casts) = kept(1), kept(2)
    layer, inside = two - one, 0
    if tower.remat != "none":
        plain = [kept(depth, remat="none", scan=False)[0] for depth in (1, 2)]
        inside = plain[1] - plain[0] - layer
    elif not tower.scan:
        layer -= tower.spared_bytes(alone.field, alone.itemsize)
    inside = max(0, inside + tower.layer_bytes(alone.field, alone.itemsize))
    return SavedBytes(max(0, 2 * one - two), layer, inside, two_casts - one_casts)


@functools.lru_cache(maxsize=16)
def _whole(tower: Any, alone: _Alone) -> SavedBytes:
    """A tower without equal layers, such as a residual network, counted whole."""
    base, casts = alone.kept(tower)
    inside = tower.layer_bytes(alone.field, alone.itemsize)
    if tower.remat != "none":
        plain = dataclasses.replace(tower, remat="none")
        inside += (_whole(plain, alone).base - base) // tower.depth
    return SavedBytes(base, 0, inside, casts)


def _saved(model: RetrievalModel, name: str, tower: Any) -> SavedBytes:
    """What one field keeps, by tracing; nothing is cached between different sizes."""
    owner = model.fields[name].shares_head or name
    whole: Any = model.fields[name]
    field = dataclasses.replace(whole, shares_head="") if whole.shares_head else whole  # alone
    dtype = next(key for key, value in DTYPES.items() if value == model.dtype)
    terms, vocab_size = model.terms.get(owner), model.vocab_size
    # A word table's size changes nothing that is kept per row, and a small one traces faster; but
    # behind a lexical head every term keeps something.
    if not field.head.lexical:
        tower, vocab_size = _small_table(tower), SMALL
    alone = _Alone(field, model.topology, dtype, vocab_size, name, terms)
    first = tower.at_depth(1)  # one entry for all depths
    return _whole(tower, alone) if first is None else _of_layers(first, alone)


def _small_table(tower: Any) -> Any:
    """A tower with a small word table, if it has one."""
    return dataclasses.replace(tower, vocab_size=SMALL) if tower.vocab_size else tower


def _residuals(model: RetrievalModel, name: str) -> tuple[int, int]:
    """(bytes per row, bytes of parameters in another type) that the backward pass keeps."""
    example = model.example_inputs()
    drawn = nn.unbox(jax.eval_shape(lambda: model.init(jax.random.key(0), example)))
    params, stats = drawn.pop("params"), drawn
    inputs = jax.tree.map(lambda x: jax.ShapeDtypeStruct((_ROWS, *x.shape[1:]), x.dtype), example)

    def backward(params: Any, stats: Any, inputs: Any) -> Any:
        def embeddings(params: Any) -> Any:
            rngs = {"dropout": jax.random.key(0)}
            trees = {"params": params, **stats}
            reps: Any = model.apply(trees, inputs, train=True, rngs=rngs)
            return reps.embeddings[name]

        return jax.vjp(embeddings, params)[1]

    per_row = cast = 0
    for x in jax.tree.leaves(jax.eval_shape(backward, params, stats, inputs)):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            continue
        if x.size % _ROWS == 0:
            per_row += x.size // _ROWS * x.dtype.itemsize
        elif x.dtype != jnp.float32:
            cast += x.size * x.dtype.itemsize
    return per_row, cast


def _blocks(name: str, rows: int, parts: BuiltModel, platform: str) -> int:
    """Bytes that a head holds at a time for the rows of one device; see `Head.block_bytes`."""
    field = parts.model.fields[name]
    terms = parts.model.terms.get(field.shares_head or name, ())
    terms_here = -(-len(terms) // parts.mesh.shape["tensor"])
    positions = parts.model.towers[field.tower].positions(field)
    return field.head.block_bytes(rows, positions, terms_here, platform)


def _layers_bytes(parts: BuiltModel, tower: str) -> int:
    """Parameters of a tower's layers on one device; all of a tower without such names."""
    whole = parts.abstract.params[tower]
    return arrays_bytes({k: v for k, v in whole.items() if k.startswith("layer")} or whole)


def _gathered(parts: BuiltModel, config: Config) -> int:
    """Whole copies of parameters that live in parts: one layer at a time in scans, else all.

    The word table is always gathered whole for the look-up.
    """
    if parts.mesh.shape["fsdp"] == 1 and parts.mesh.shape["tensor"] == 1:
        return 0
    total = 0
    itemsize = jnp.dtype(DTYPES[config.dtype]).itemsize
    fsdp = parts.mesh.shape["fsdp"]
    for name, tower in config.towers.items():
        if tower.word_table:
            table = parts.abstract.params[name][tower.word_table]
            total += 4 * table.size
        if fsdp > 1:
            whole = _layers_bytes(parts, name) * fsdp * itemsize // 4
            if tower.scan:
                whole //= tower.depth
            total += whole
    return total
