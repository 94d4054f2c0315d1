"""Collectives of a compiled program, and the bytes that they move between devices."""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from big_retrieval.compiled.hlo import (
    Computation,
    Instruction,
    Module,
    Visit,
    nested,
    shape_bytes,
    walk,
)

KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
)  # fmt: skip

_GROUPS = re.compile(r"\breplica_groups=\{\{([\d,]+)\}")
_IOTA_GROUPS = re.compile(r"\breplica_groups=\[\d+,(\d+)\]")
_MESH_GROUPS = re.compile(r"\breplica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}")  # jax 0.11
_PRODUCTS = {"dot", "convolution"}
_KERNELS = re.compile(r'custom_call_target="(tpu_custom_call|__cu|__gpu|mosaic_gpu|triton)')
# Other operations that take time on the device, by the bytes that they read and write.
_PASSES = {"fusion", "reduce", "reduce-window", "scatter", "gather", "sort"}
# The TPU compiler runs some collectives piecewise inside the fusions between a start and a done.
# Every fusion of the chain repeats the collective; the one with this target starts it.
_CHAIN_START = 'custom_call_target="AsyncCollectiveStart"'
_CHAIN = ('custom_call_target="AsyncCollectiveDone"', "chain_id=")


class Collective(NamedTuple):
    """One collective of a program."""

    kind: str  # one of `KINDS`; an asynchronous pair counts once
    # size of the result on one device per run, without the padding of TPU tiles
    bytes: int
    trips: int  # product of the trip counts of the loops around it; an unknown count is 1
    group: int  # number of devices that exchange data with each other
    # True if the device computes between an asynchronous start and end: a product, convolution or
    # kernel, or operations with at least as many bytes. It need not hide the whole transfer.
    overlapped: bool = False

    @property
    def wire_bytes(self) -> float:
        """Bytes that one device receives over all trips, by the ring algorithm of each kind."""
        peers = self.group - 1
        share = {
            "all-reduce": 2 * peers / self.group,
            "reduce-scatter": peers,
            "collective-permute": 1,
            "collective-broadcast": 1,
        }
        return self.trips * self.bytes * share.get(self.kind, peers / self.group)


def collectives(module: Module) -> list[Collective]:
    """Lists the collectives that one device runs, with the trip counts of the loops around them.

    Every branch of a conditional counts as taken. On a CPU the program may widen 16-bit collectives
    to 32 bits; the sizes include this.
    """
    hits = (_read(module, visit) for visit in walk(module))
    return [hit for hit in hits if hit is not None]


def by_kind(collectives: Iterable[Collective]) -> dict[str, float]:
    """Returns received bytes (`Collective.wire_bytes`) by kind, largest first."""
    totals: dict[str, float] = {}
    for c in collectives:
        totals[c.kind] = totals.get(c.kind, 0.0) + c.wire_bytes
    return dict(sorted(totals.items(), key=lambda entry: -entry[1]))


def _read(module: Module, visit: Visit) -> Collective | None:
    """Returns the collective of an instruction; None if it is not one, or counted elsewhere."""
    instruction, computation = visit.instruction, visit.computation
    if instruction.opcode == "fusion":
        return _reduce_scatter_fusion(module, visit)
    kind = instruction.opcode.removesuffix("-start").removesuffix("-done")
    if kind not in KINDS or instruction.opcode.endswith("-start"):
        return None  # a start's result also contains the operand, unlike the done's result
    source, overlapped = instruction, False
    if instruction.opcode.endswith("-done"):
        names = (name for name in instruction.operands if name in computation.instructions)
        source = computation.instructions[next(names, instruction.name)]
        overlapped = _is_overlapped(module, computation, source, instruction)
    elif visit.caller is not None and visit.caller.instruction.opcode == "async-start":
        overlapped = _is_async_overlapped(module, visit.caller)
    elif visit.fused:
        if _is_all_reduce_scatter(visit.name):
            return None
        texts = [other.text for other in computation.instructions.values()]
        overlapped = any(_CHAIN_START in text for text in texts)
        if not overlapped and any(mark in text for text in texts for mark in _CHAIN):
            return None
    size, group = shape_bytes(instruction.type), _group(source.text, module.devices)
    return Collective(kind, size, visit.trips, group, overlapped=overlapped)


def _reduce_scatter_fusion(module: Module, visit: Visit) -> Collective | None:
    """Returns the TPU's fusion of an all-reduce and a slice, which is a reduce-scatter."""
    called = visit.instruction.called
    if not called or not _is_all_reduce_scatter(called[0]):
        return None
    body = module.computations.get(called[0], Computation())
    inner = next((i for i in body.instructions.values() if i.opcode == "all-reduce"), None)
    if inner is None:
        return None
    size, group = shape_bytes(visit.instruction.type), _group(inner.text, module.devices)
    return Collective("reduce-scatter", size, visit.trips, group)


def _is_all_reduce_scatter(computation_name: str) -> bool:
    return computation_name.startswith("all-reduce-scatter")


def _is_async_overlapped(module: Module, caller: Visit) -> bool:
    """Returns True if the device computes between `async-start` and `async-done`."""
    start = caller.instruction
    ends = (
        other
        for other in caller.computation.instructions.values()
        if other.opcode == "async-done" and start.name in other.operands
    )
    end = next(ends, None)
    return end is not None and _is_overlapped(module, caller.computation, start, end)


def _is_overlapped(
    module: Module, computation: Computation, start: Instruction, end: Instruction
) -> bool:
    if '"is_sync":true' in start.text:
        return False
    names = list(computation.instructions)
    between = names[names.index(start.name) + 1 : names.index(end.name)]
    instructions = [computation.instructions[name] for name in between]
    if any(_is_product(inner) for outer in instructions for inner in nested(module, outer)):
        return True
    passed = sum(_passed_bytes(computation, i) for i in instructions if i.opcode in _PASSES)
    return passed >= shape_bytes(end.type) > 0


def _is_product(instruction: Instruction) -> bool:
    kernel = instruction.opcode == "custom-call" and _KERNELS.search(instruction.text)
    return instruction.opcode in _PRODUCTS or bool(kernel)


def _passed_bytes(computation: Computation, instruction: Instruction) -> int:
    operands = (computation.instructions.get(name) for name in instruction.operands)
    types = [instruction.type, *(operand.type for operand in operands if operand is not None)]
    return sum(map(shape_bytes, types))


def _group(attributes: str, devices: int) -> int:
    listed, iota = _GROUPS.search(attributes), _IOTA_GROUPS.search(attributes)
    named = _MESH_GROUPS.search(attributes)
    if named:
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'([^']+)'", named[2]))
    if listed:
        return listed[1].count(",") + 1
    return int(iota[1]) if iota else devices
