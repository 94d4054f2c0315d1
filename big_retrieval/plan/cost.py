"""Operations, bytes on the wire and seconds of a training step, by formulas.

Towers and heads bring theirs (`config.Tower`, `config.Head`); what has none is traced.

Operations count a multiplication and an addition as two. Model operations are what forward and
backward pass of the towers need (3 forward passes), the usual base of MFU; executed ones add what
is computed twice and the loss.
"""

import math

import jax.numpy as jnp

from big_retrieval.config import Config, negatives_field
from big_retrieval.models.flops import head_flops, tower_flops
from big_retrieval.models.towers import DTYPES, lexical_terms
from big_retrieval.plan.loss_cost import loss_flops, loss_wire
from big_retrieval.plan.memory import arrays_bytes, groups
from big_retrieval.runtime.chips import Chip
from big_retrieval.train.build import BuiltModel
from big_retrieval.train.optimizer import names_of

# What a good program reaches of the chip's peak, and how much of the computation can hide traffic.
ACHIEVABLE = 0.5
HIDING = 0.5


def flops(config: Config, vocab_size: int) -> dict[str, int]:
    """Operations of one step over all devices.

    Returns:
      `towers`, forward and backward, of hard negatives, too; `recomputation`, by remat and
      micro-batches; `loss`, see `loss_flops`.
    """
    sliced = config.microbatch is not None and config.microbatch < config.batch_size
    towers = again = 0
    terms = lexical_terms(config, vocab_size)
    for name, field in config.encoded.items():
        tower = config.towers[field.tower]
        forward = tower_flops(tower, field, vocab_size)
        own = terms.get(field.shares_head or name)
        head = head_flops(field, tower, own, vocab_size, config.topology)
        times = 1 + (config.negatives.count if name == negatives_field(config) else 0)
        towers += times * 3 * (forward + head)
        again += times * tower.flops_again(field, forward)
        again += times * (forward + head) if sliced else 0
    n, loss = config.batch_size, loss_flops(config, vocab_size)
    return {"towers": n * towers, "recomputation": n * again, "loss": loss}


def wire_bytes(parts: BuiltModel, config: Config) -> dict[str, float]:
    """Bytes that one device receives in a step, by kind of collective.

    * Gradients: all-reduce over the devices that share the rows, 2 s (D - 1) / D for an array of
      s bytes; under fsdp a reduce-scatter (the CPU backend has an all-reduce, twice as much), and
      gathers of the parameters in every pass. The compiled program reduces once per micro-batch,
      so all of this counts per slice.
    * Tensor: per layer all-reduces of the activations, 2 forward and 4 backward (query, key, value
      and MLP inputs), 1 more where layers are computed again; 1 of what a lexical head reads.
    * Loss: see `loss_wire`.
    """
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute")
    total: dict[str, float] = dict.fromkeys(kinds, 0.0)
    for kind, size in (*_parameters(parts, config), *_activations(parts, config)):
        total[kind] += size
    for kind, size in loss_wire(config, groups(parts), parts.mesh.shape["tensor"]).items():
        total[kind] += size
    return {kind: size for kind, size in total.items() if size}


def _slices(config: Config) -> int:
    return config.batch_size // (config.microbatch or config.batch_size)


def _parameters(parts: BuiltModel, config: Config) -> list[tuple[str, float]]:
    """What gradients and sharded parameters send."""
    mesh, slices = parts.mesh.shape, _slices(config)
    data, fsdp, tensor, rows_over = mesh["data"], mesh["fsdp"], mesh["tensor"], groups(parts)
    out: list[tuple[str, float]] = []
    for name, leaf in names_of(parts.abstract.params).items():
        size = slices * 4 * math.prod(leaf.sharding.shard_shape(leaf.shape))
        table = name.endswith("/token_embedding")  # its gradient needs no second look at it
        if fsdp > 1 and "fsdp" in leaf.sharding.spec:
            passes = 2 + (slices > 1) - table
            out.append(("all-gather", passes * (fsdp - 1) * size))
            out.append(("reduce-scatter", (fsdp - 1) * size))
            out.append(("all-reduce", 2 * size * (data - 1) / data))
        else:
            out.append(("all-reduce", 2 * size * (rows_over - 1) / rows_over))
        if table and "tensor" in leaf.sharding.spec:  # whole for the look-up, and so its gradient
            out.append(("all-gather", fsdp * (tensor - 1) * size))
            out.append(("all-reduce", 2 * size * (tensor - 1) * (rows_over - 1) / rows_over))
    # Batch norms reduce two numbers a channel in each pass, as many as their averages are.
    stats = (2 + (slices > 1)) * slices * arrays_bytes(parts.abstract.batch_stats)
    out.append(("all-reduce", 2 * stats * (rows_over - 1) / rows_over))
    return out


def _activations(parts: BuiltModel, config: Config) -> list[tuple[str, float]]:
    """What layers that are sharded over the tensor axis send."""
    tensor = parts.mesh.shape["tensor"]
    if tensor == 1:
        return []
    out: list[tuple[str, float]] = []
    rows, itemsize = config.batch_size // groups(parts), jnp.dtype(DTYPES[config.dtype]).itemsize
    for field in config.encoded.values():
        tower = config.towers[field.tower]
        values = rows * tower.tensor_values(field, sliced=_slices(config) > 1)
        out.append(("all-reduce", 2 * values * itemsize * (tensor - 1) / tensor))
        if field.head.lexical:  # the gradient of the positions that it reads
            size = rows * tower.positions(field) * tower.width
            out.append(("all-reduce", 2 * size * 4 * (tensor - 1) / tensor))
    return out


def seconds(
    config: Config, chip: Chip, devices: int, operations: dict[str, int], wire: float
) -> dict[str, float | None]:
    """How long a step should take. Arithmetic on data sheets, not a measurement.

    Computation at `ACHIEVABLE` of the peak of the towers' type, the loss at that of float32; plus
    the traffic that `HIDING` of the computation cannot hide. Loading data counts nothing.

    Args:
      config: of the run.
      chip: its nominal figures.
      devices: how many.
      operations: of `flops`.
      wire: bytes received per device.

    Returns:
      `step`, `compute`, `wire`, `exposed_wire` in seconds and `mfu` of the bfloat16 peak; all None
      where the chip's peaks are not known.
    """
    speed, peak = chip.speed(devices), chip.bfloat16
    names = ("step", "compute", "wire", "exposed_wire", "mfu")
    if speed is None or peak is None or chip.float32 is None:
        return dict.fromkeys(names)
    towers = (operations["towers"] + operations["recomputation"]) / devices
    compute = towers / (peak if config.dtype == "bfloat16" else chip.float32)
    compute = (compute + operations["loss"] / devices / chip.float32) / ACHIEVABLE
    travel = wire / speed
    exposed = max(0.0, travel - HIDING * compute)
    step = compute + exposed
    mfu = operations["towers"] / devices / peak / step
    return dict(zip(names, (step, compute, travel, exposed, mfu), strict=True))
