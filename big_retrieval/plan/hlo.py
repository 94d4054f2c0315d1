"""Reads the collectives out of a compiled program's text.

The text of an optimised HLO module (`compiled.as_text()`) shows what one device does. A collective
inside a loop stands there once; it runs as often as the loops around it turn, which the compiler
notes in the loop's `known_trip_count`.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
)  # fmt: skip

_HEADER = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (.*)$")
_OPCODE = re.compile(r"([a-z][\w-]*)\(")
_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,<=]*)\]")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OP_NAME = re.compile(r'\bop_name="([^"]*)"')
_GROUPS = re.compile(r"\breplica_groups=\{\{([\d,]+)\}")
_IOTA_GROUPS = re.compile(r"\breplica_groups=\[\d+,(\d+)\]")
_MESH_GROUPS = re.compile(r"\breplica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}")  # jax 0.11
_PARTITIONS = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")
_BITS = {"pred": 8, "token": 0, "opaque": 0}


class Collective(NamedTuple):
    """One collective of a program.

    Attributes:
      kind: one of `KINDS`; an asynchronous pair counts once.
      bytes: of its result on one device, each time that it runs.
      trips: how often it runs, the product of the trip counts of the loops around it.
      group: devices that take part together.
      counted: False if a loop around it has no known trip count; that loop then counts as one trip.
      name: where it comes from in the traced program.
    """

    kind: str
    bytes: int
    trips: int
    group: int
    counted: bool
    name: str

    @property
    def wire_bytes(self) -> float:
        """Bytes that one device receives over all trips, by the ring algorithms of each kind."""
        others = self.group - 1
        share = {
            "all-reduce": 2 * others / self.group,
            "reduce-scatter": others,
            "collective-permute": 1,
            "collective-broadcast": 1,
        }
        return self.trips * self.bytes * share.get(self.kind, others / self.group)


class _Instruction(NamedTuple):
    name: str
    shape: str
    opcode: str
    rest: str


def collectives(compiled_text: str) -> list[Collective]:
    """The collectives that one device runs, those of loop bodies with their trip counts.

    Of a conditional, every branch counts as if it were taken. A computation that several places
    call is listed once for each.

    Args:
      compiled_text: of `jit(f).lower(...).compile().as_text()`. On a CPU the program may widen
        16-bit collectives to 32 bits; the sizes are those of the program as compiled.

    Raises:
      ValueError: the text is no HLO module.
    """
    entry, computations = _parse(compiled_text)
    if entry is None:
        raise ValueError("the text has no ENTRY computation: it is no HLO module")
    found = [int(n) for n in _PARTITIONS.findall(compiled_text.partition("\n")[0])]
    return list(_walk(computations, entry, math.prod(found), 1, True))


def by_kind(found: list[Collective]) -> dict[str, float]:
    """Received bytes (`Collective.wire_bytes`) summed by kind, largest first."""
    totals: dict[str, float] = {}
    for c in found:
        totals[c.kind] = totals.get(c.kind, 0.0) + c.wire_bytes
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def shape_bytes(text: str) -> int:
    """Bytes of an HLO type, e.g. `f32[8,128]{1,0}` or a tuple of such."""
    total = 0
    for kind, sizes in _SHAPE.findall(text):
        count = math.prod(int(s.lstrip("<=")) for s in sizes.split(",") if s)
        digits = re.search(r"\d+", kind)
        bits = _BITS.get(kind, int(digits[0]) if digits else 0)
        total += count * bits // 8 if bits >= 8 else -(-count * bits // 8)
    return total


def _parse(text: str) -> tuple[str | None, dict[str, list[_Instruction]]]:
    """(name of the entry, computation -> its instructions)."""
    entry, computations, current = None, {}, []
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
            continue
        match = _INSTRUCTION.match(line)
        if match:
            shape, rest = _split_type(match[2])
            opcode = _OPCODE.match(rest)
            if opcode:
                current.append(_Instruction(match[1], shape, opcode[1], rest))
    return entry, computations


def _split_type(text: str) -> tuple[str, str]:
    """Cuts `type opcode(...)` behind the type, which may be a tuple."""
    if not text.startswith("("):
        shape, _, rest = text.partition(" ")
        return shape, rest
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[: i + 1], text[i + 2 :]
    return text, ""


def _walk(
    computations: Mapping[str, list[_Instruction]],
    name: str,
    devices: int,
    trips: int,
    counted: bool,
) -> Iterator[Collective]:
    """The collectives of a computation and of all that it calls."""
    instructions = computations.get(name, [])
    by_name = {i.name: i for i in instructions}
    for i in instructions:
        kind = i.opcode.removesuffix("-start").removesuffix("-done")
        if kind in KINDS:
            if i.opcode.endswith("-start"):
                continue  # its result holds the operand too; the matching -done has the bare result
            source = i
            if i.opcode.endswith("-done"):
                operands = re.findall(r"%?([\w.-]+)", i.rest.partition("(")[2])
                source = next((by_name[o] for o in operands if o in by_name), i)
            op_name = _OP_NAME.search(source.rest)
            size, group = shape_bytes(i.shape), _group(source.rest, devices)
            yield Collective(kind, size, trips, group, counted, op_name[1] if op_name else "")
            continue
        inner, known = trips, counted
        if i.opcode == "while":
            found = _TRIPS.search(i.rest)
            inner, known = trips * int(found[1]) if found else trips, counted and found is not None
        called = _CALLED.findall(i.rest)
        for branches in _BRANCHES.findall(i.rest):
            called += re.findall(r"%?([\w.-]+)", branches)
        for other in called:
            yield from _walk(computations, other, devices, inner, known)


def _group(attributes: str, devices: int) -> int:
    """Devices that take part together."""
    listed, iota = _GROUPS.search(attributes), _IOTA_GROUPS.search(attributes)
    named = _MESH_GROUPS.search(attributes)
    if named:
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'([^']+)'", named[2]))
    if listed:
        return listed[1].count(",") + 1
    return int(iota[1]) if iota else devices
