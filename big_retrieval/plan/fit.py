"""The smallest change to a config that makes it fit into memory, found by the formulas."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from big_retrieval.config import Config
from big_retrieval.config.batch_norms import parts_of
from big_retrieval.plan import loss_cost, memory
from big_retrieval.train.build import BuiltModel


class Change(NamedTuple):
    """A change that fits.

    Attributes:
      flags: for the command line.
      total: bytes on one device, by the formulas.
    """

    flags: list[str]
    total: int


class _Candidate(NamedTuple):
    config: Config
    flags: list[str]
    sharded: bool = False  # whether the mesh is another


def smallest_change(
    parts: BuiltModel,
    rebuild: Callable[[Config], BuiltModel],
    platform: str,
    limit: float,
    offset: float = 0.0,
) -> Change | None:
    """The first change that fits, of: a micro-batch, remat, fsdp, ring; then combinations of them.

    A micro-batch is the largest power of two that fits; each other change is on or off.

    Args:
      parts: of the config that does not fit.
      rebuild: builds the model of a config on the mesh that it asks for.
      platform: "gpu", "tpu" or "cpu".
      limit: bytes of a device.
      offset: bytes to add to the formulas' total, to match the compiler's figure.

    Returns:
      None if no such change fits.
    """
    built = {False: (parts, memory.state_bytes(parts))}

    def total(candidate: _Candidate) -> float:
        if candidate.sharded not in built:
            sharded = rebuild(candidate.config)
            built[candidate.sharded] = sharded, memory.state_bytes(sharded)
        model, state = built[candidate.sharded]
        return memory.per_device(model, platform, candidate.config, state)["total"] + offset

    for candidate in _candidates(parts, platform):
        found = total(candidate)
        if found <= limit:
            return Change(candidate.flags, round(found))
    return None


def _candidates(parts: BuiltModel, platform: str) -> Iterator[_Candidate]:
    """Single changes, then combinations, each with its micro-batches from large to small."""
    none = _Candidate(parts.config, [])
    remat, sharded = _remat(none, platform), _sharded(none, parts)
    ring = _ring(none, parts)
    both = None if remat is None else _sharded(remat, parts)
    yield from _sliced(none, parts)
    yield from (c for c in (remat, sharded, ring) if c is not None)
    for base in (remat, sharded, both):
        if base is None:
            continue
        if base is both:
            yield base
        with_ring = _ring(base, parts)
        yield from _sliced(base, parts)
        if with_ring is not None:
            yield from _sliced(with_ring, parts)
    if ring is not None:
        yield from _sliced(ring, parts)


def _sliced(base: _Candidate, parts: BuiltModel) -> Iterator[_Candidate]:
    """Micro-batches of powers of two that divide the batch, largest first."""
    batch, rows_over = base.config.batch_size, memory.groups(parts)
    if any(part.whole_batch for part in parts_of(base.config).values()):
        return  # slices would be another training
    size = 1 << (batch.bit_length() - 1)
    now = base.config.microbatch or batch
    while size >= rows_over:
        if batch % size == 0 and size % rows_over == 0 and size < now:
            flags = [*base.flags, f"--config.microbatch={size}"]
            yield base._replace(config=_with(base.config, microbatch=size), flags=flags)
        size //= 2


def _remat(base: _Candidate, platform: str) -> _Candidate | None:
    """All towers with remat=block; in a scan on CPUs, where XLA undoes it otherwise."""
    towers: dict[str, Any] = dict(base.config.towers)
    flags = []
    for name, tower in base.config.towers.items():
        changes = tower.less_memory(platform).items()
        fresh = {key: v for key, v in changes if getattr(tower, key) != v}
        towers[name] = dataclasses.replace(tower, **fresh)  # type: ignore
        flags += [f"--config.towers.{name}.{key}={value}" for key, value in fresh.items()]
    if not flags:
        return None
    return base._replace(config=_with(base.config, towers=towers), flags=[*base.flags, *flags])


def _sharded(base: _Candidate, parts: BuiltModel) -> _Candidate | None:
    """Parameters over all devices that rows are sharded over."""
    rows_over = memory.groups(parts)
    if parts.mesh.shape["fsdp"] == rows_over:
        return None
    mesh = dataclasses.replace(base.config.mesh, data=1, fsdp=rows_over)
    flags = [*base.flags, "--config.mesh.data=1", f"--config.mesh.fsdp={rows_over}"]
    return _Candidate(_with(base.config, mesh=mesh), flags, sharded=True)


def _ring(base: _Candidate, parts: BuiltModel) -> _Candidate | None:
    """Losses that pass one side around a ring of the devices."""
    tensor = parts.mesh.shape["tensor"]
    if memory.groups(parts) == 1 or loss_cost.exchange_mode(base.config, tensor) == "ring":
        return None
    losses: dict[str, Any] = dict(base.config.losses)
    flags = list(base.flags)
    for name, loss in base.config.losses.items():
        if hasattr(loss, "exchange"):
            losses[name] = dataclasses.replace(loss, exchange="ring")  # type: ignore
            flags.append(f"--config.losses.{name}.exchange=ring")
    return base._replace(config=_with(base.config, losses=losses), flags=flags)


def _with(config: Config, **changes: Any) -> Config:
    return dataclasses.replace(config, **changes)
