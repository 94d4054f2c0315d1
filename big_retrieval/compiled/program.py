"""Summary of a compiled program: cycles, kernels, collectives and arrays of one device.

Only the TPU compiler writes cycles into the program (`estimated_cycles`). They are the compiler's
estimate, not a measurement. Collectives, Pallas kernels, scatters, gathers and sorts have none;
`kernel_cycles` and `unestimated` add all except the collectives.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from big_retrieval.compiled.collectives import Collective, by_kind, collectives
from big_retrieval.compiled.hlo import Visit, array_types, parse_module, trip_count, walk
from big_retrieval.compiled.unestimated import CYCLES, Unestimated, unestimated_operations

MAX_ARRAYS = 20

_KERNEL = re.compile(r'custom_call_target="(tpu_custom_call|mosaic_gpu\w*|triton\w*|__cudnn\$\w+)"')
_CONTROL = ("while", "conditional", "call")  # their bodies are counted
# Instructions whose result is an array of another instruction.
_ALIASES = {
    "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "opt-barrier",
}  # fmt: skip
_VMEM = ")S(1)"  # after the tiles of a TPU layout; GPU layouts have no tiles
_MODEL = re.compile(r"(?:^|[/(])RetrievalModel\)*/(.*)")
_BLOCK = re.compile(r"(?:^|[/(])Block\)*/(.*)")


@dataclass(frozen=True)
class Kernel:
    """A hand-written kernel: Pallas (TPU or GPU), Triton or cuDNN."""

    name: str
    target: str
    calls: int
    type: str = ""


class Array(NamedTuple):
    """One type of array in the device's memory."""

    # with layout, such as `bf16[64,212,768]{2,1,0:T(8,128)(2,1)}`
    type: str
    bytes: int  # without padding
    padded_bytes: int  # with the padding of the TPU's tiles; equal to `bytes` elsewhere
    origin: str  # operation of the traced program that creates one such array


@dataclass(frozen=True)
class Program:
    """A compiled program, as one device runs it per call."""

    # the compiler's estimate, without kernels, collectives and `unestimated`; None unless the
    # target is a TPU. Every branch of a conditional counts as taken
    cycles: int | None
    cycles_by_part: dict[str, int]  # cycles by `part_of`, most first
    # operations of a TPU without an estimate, with cycles by rules, most first
    unestimated: list[Unestimated]
    kernels: list[Kernel]  # hand-written kernels in the order of the program
    collectives: list[Collective]  # exchanges between devices
    # The largest array types, by padded bytes; without arrays in the TPU's VMEM
    arrays: list[Array]
    unknown_loops: int  # number of loops without a known trip count, counted as one iteration

    @property
    def wire_bytes(self) -> dict[str, float]:
        """Bytes that one device receives, by kind of collective, without padding."""
        return by_kind(self.collectives)

    @property
    def overlapped_wire_bytes(self) -> dict[str, float]:
        """The share of `wire_bytes` that arrives while the device computes."""
        return by_kind(c for c in self.collectives if c.overlapped)


def read_program(text: str) -> Program:
    """Summarizes a compiled program."""
    module = parse_module(text)
    everything = list(walk(module))
    visits = [visit for visit in everything if not visit.fused]
    cycles: Counter[str] = Counter()
    for visit in visits:
        estimate = CYCLES.search(visit.instruction.text)
        if estimate and visit.instruction.opcode not in _CONTROL:
            cycles[part_of(visit.instruction.op_name)] += int(estimate[1]) * visit.trips
    arrays = _arrays(visits)
    return Program(
        cycles=cycles.total() if cycles else None,
        cycles_by_part=dict(cycles.most_common()),
        unestimated=unestimated_operations(everything) if cycles else [],
        kernels=[kernel for visit in visits if (kernel := _kernel(visit))],
        collectives=collectives(module),
        arrays=sorted(arrays, key=lambda array: -array.padded_bytes)[:MAX_ARRAYS],
        unknown_loops=sum(
            visit.instruction.opcode == "while"
            and trip_count(module, visit.computation, visit.instruction) is None
            for visit in visits
        ),
    )


def part_of(op_name: str) -> str:
    """Returns the part of a training step that an instruction belongs to, from its origin.

    Parts are `optimizer`, `rest`, and `loss`, `head` or `TOWER/LAYER` with ` forward`,
    ` recomputed` (remat) or ` backward`. A fusion counts for its last operation.
    """
    match = _MODEL.search(op_name)
    if match is None and "jvp(" not in op_name:
        return "optimizer" if op_name.startswith("jit(") else "rest"
    direction = "backward" if "transpose(" in op_name else "forward"
    # `again`: a gradient rule that computes the layer again (`models/layer_loop.py`).
    again = direction == "backward" and match is not None and "/jvp(" in match[1]
    if "rematted_computation" in op_name or again:
        direction = "recomputed"
    return f"{_module_of(match[1]) if match else 'loss'} {direction}"


def _module_of(path: str) -> str:
    """Returns tower and kind of layer, from the path below the model."""
    name, _, inner = path.partition("/")
    if not inner or "(" in name or name.endswith("_head"):
        return "head"
    block = _BLOCK.search(inner)
    layer = (block[1] if block else inner).partition("/")[0]
    if layer in ("attention", "mlp"):
        return f"{name}/{layer}"
    if layer.startswith("ln"):
        return f"{name}/norms"
    return f"{name}/{'embedding' if 'embed' in layer else 'rest'}"


def _kernel(visit: Visit) -> Kernel | None:
    instruction = visit.instruction
    target = _KERNEL.search(instruction.text) if instruction.opcode == "custom-call" else None
    if target is None:
        return None
    return Kernel(instruction.name, target[1], visit.trips, instruction.type)


def _arrays(visits: Iterable[Visit]) -> list[Array]:
    arrays: dict[str, Array] = {}
    for visit in visits:
        opcode = visit.instruction.opcode
        if opcode in _ALIASES or opcode.endswith("-start"):
            continue
        if opcode == "parameter" and visit.caller is not None:
            continue  # the caller's array
        for array in array_types(visit.instruction.type):
            if _VMEM in array.layout:
                continue
            shape = ",".join(map(str, array.shape))
            layout = f"{{{array.layout}}}" if array.layout else ""
            key = f"{array.dtype}[{shape}]{layout}"
            origin = visit.instruction.op_name
            arrays.setdefault(key, Array(key, array.bytes, array.padded_bytes, origin))
    return list(arrays.values())
