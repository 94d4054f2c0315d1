"""Parser of compiled programs: the text of an optimized HLO module (`compiled.as_text()`).

The text shows what one device runs. An instruction inside a loop appears once and runs once per
iteration, so `walk` multiplies the trip counts of the loops around it. CPU and GPU compilers write
the count into the loop (`known_trip_count`). The TPU compiler does not; there, the loop's condition
compares a counter with a constant.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_HEADER = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.-]+) = (.*)$")
_OPCODE = re.compile(r"([a-z][\w-]*)\(")
_PARENTHESIS = re.compile(r"[()]")
_NAME = re.compile(r"%?([\w.-]+)")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|true_computation|false_computation|called_computation)=%?([\w.-]+)"
)
_CONDITION = re.compile(r"\bcondition=%?([\w.-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_DIRECTION = re.compile(r"\bdirection=([A-Z]+)")
_INDEX = re.compile(r"\bindex=(\d+)")
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_PARTITIONS = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")
_BITS = {"pred": 8, "token": 0, "opaque": 0}
_FLIPPED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}
_BODIES = ("while", "call", "conditional", "async-start", "fusion")


class Instruction(NamedTuple):
    """One instruction."""

    name: str
    type: str
    opcode: str
    text: str

    @property
    def operands(self) -> list[str]:
        """Names of the operands, in order; a constant's value for a constant."""
        end = _closing(self.text)
        parts = re.split(r",\s*(?![^(\[{]*[)\]}])", self.text[1:end])
        return [match[-1] for operand in parts if (match := _NAME.findall(operand))]

    @property
    def op_name(self) -> str:
        """Origin in the traced program, e.g. `jit(step)/jvp(Model)/image/dot_general`, or ""."""
        match = _OP_NAME.search(self.text)
        return match[1].replace("\\'", "'") if match else ""

    @property
    def called(self) -> list[str]:
        """Names of the computations that the instruction calls; the condition of a loop is not."""
        names = _CALLED.findall(self.text)
        for branches in _BRANCHES.findall(self.text):
            names += _NAME.findall(branches)
        return names


@dataclass
class Computation:
    """Instructions by name, in the order of the schedule."""

    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: str = ""  # name of the instruction whose result the computation returns


class Module(NamedTuple):
    """A parsed program."""

    entry: str
    computations: dict[str, Computation]
    devices: int


class Visit(NamedTuple):
    """An instruction at one place of the program."""

    instruction: Instruction
    name: str  # name of the computation that defines it
    computation: Computation
    trips: int  # product of the trip counts of the loops around it; an unknown count is 1
    fused: bool  # True inside the body of a fusion
    # visit of the instruction that calls the computation; None in the entry
    caller: "Visit | None"


class ArrayType(NamedTuple):
    """Type and layout of one array."""

    dtype: str  # e.g. `bf16`
    shape: tuple[int, ...]
    layout: str  # text between the braces, e.g. `1,0:T(8,128)(2,1)S(1)`, or ""

    @property
    def bytes(self) -> int:
        """Bytes without padding."""
        return _bytes(self.dtype, math.prod(self.shape))

    @property
    def padded_bytes(self) -> int:
        """Bytes with the padding of the TPU's tiles, such as T(8,128)."""
        tile = _TILE.search(self.layout)
        if tile is None:
            return self.bytes
        order = [int(axis) for axis in self.layout.partition(":")[0].split(",") if axis]
        sizes = [self.shape[axis] for axis in order]  # minor dimension first
        for i, size in enumerate(reversed([int(size) for size in tile[1].split(",")])):
            if i == len(sizes):
                sizes.append(1)
            sizes[i] = -(-sizes[i] // size) * size
        return _bytes(self.dtype, math.prod(sizes))


def parse_module(text: str) -> Module:
    """Parses a program.

    Args:
      text: `jit(f).lower(...).compile().as_text()`.

    Raises:
      ValueError: the text is not an HLO module.
    """
    entry, computations, current = None, {}, Computation()
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match:
            result, rest = _split_type(match[3])
            opcode = _OPCODE.match(rest)
            if opcode:
                instruction = Instruction(match[2], result, opcode[1], rest[opcode.end() - 1 :])
                current.instructions[match[2]] = instruction
                current.root = match[2] if match[1] else current.root
            continue
        header = _HEADER.match(line)
        if header:
            current = computations.setdefault(header[2], Computation())
            entry = header[2] if header[1] else entry
    if entry is None:
        raise ValueError("the text has no ENTRY computation: it is not an HLO module")
    counts = [int(n) for n in _PARTITIONS.findall(text.partition("\n")[0])]
    return Module(entry, computations, math.prod(counts))


def walk(module: Module) -> Iterator[Visit]:
    """Yields every instruction that one device runs, once per place that calls its computation.

    Bodies of loops, calls, conditionals (every branch counts as taken), asynchronous operations and
    fusions are entered; the functions of reductions and sorts are not.
    """
    yield from _walk(module, module.entry, None)


def nested(module: Module, instruction: Instruction) -> Iterator[Instruction]:
    """Yields an instruction and the instructions of its computations, once per call."""
    yield instruction
    for name in instruction.called if instruction.opcode in _BODIES else ():
        for inner in module.computations.get(name, Computation()).instructions.values():
            yield from nested(module, inner)


def _walk(module: Module, name: str, caller: Visit | None) -> Iterator[Visit]:
    computation = module.computations.get(name, Computation())
    trips, fused = 1, False
    if caller is not None:
        trips, fused = caller.trips, caller.fused or caller.instruction.opcode == "fusion"
        if caller.instruction.opcode == "while":
            count = trip_count(module, caller.computation, caller.instruction)
            trips *= 1 if count is None else count
    for instruction in computation.instructions.values():
        visit = Visit(instruction, name, computation, trips, fused, caller)
        yield visit
        if instruction.opcode in _BODIES:
            for other in instruction.called:
                yield from _walk(module, other, visit)


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """Returns the number of iterations of a `while`, or None if the program does not give it.

    Without `known_trip_count`, the condition must compare a counter with a constant. The counter is
    assumed to grow by one from its initial value, or from 0 if that is not a constant.
    """
    match = _TRIPS.search(loop.text)
    if match:
        return int(match[1])
    name = _CONDITION.search(loop.text)
    condition = module.computations.get(name[1] if name else "")
    comparison = None if condition is None else _comparison(module, condition)
    if comparison is None:
        return None
    direction, index, limit = comparison
    first = 0
    carry = computation.instructions.get(loop.operands[0])
    if carry is not None and carry.opcode == "tuple" and index < len(carry.operands):
        value = _constant(computation, carry.operands[index])
        first = 0 if value is None else value
    trips = limit - first + (direction == "LE")
    return max(0, trips) if direction in ("LT", "LE", "NE") else None


def _comparison(module: Module, condition: Computation) -> tuple[str, int, int] | None:
    """Returns (direction, index of the counter in the carry, constant) of a loop's condition."""
    root = condition.instructions.get(condition.root)
    arguments: list[str] | None = None  # of the fusion around the comparison
    inner = condition
    if root is not None and root.opcode == "fusion" and root.called:
        arguments, inner = root.operands, module.computations.get(root.called[0], Computation())
        root = inner.instructions.get(inner.root)
    direction = _DIRECTION.search(root.text) if root is not None else None
    if root is None or root.opcode != "compare" or direction is None:
        return None
    sides: list[int | None] = []
    indices: list[int] = []
    for name in root.operands:
        where, operand = inner, inner.instructions.get(name)
        if arguments is not None and operand is not None and operand.opcode == "parameter":
            where, name = condition, arguments[int(operand.operands[0])]
            operand = condition.instructions.get(name)
        sides.append(_constant(where, name))
        if operand is not None and operand.opcode == "get-tuple-element":
            index = _INDEX.search(operand.text)
            indices += [int(index[1])] if index else []
    if len(indices) != 1 or len(sides) != 2:
        return None
    if sides[1] is not None:
        return direction[1], indices[0], sides[1]
    if sides[0] is not None:
        return _FLIPPED.get(direction[1], direction[1]), indices[0], sides[0]
    return None


def _constant(computation: Computation, name: str) -> int | None:
    instruction = computation.instructions.get(name)
    while instruction is not None and instruction.opcode in ("copy", "bitcast"):
        instruction = computation.instructions.get(instruction.operands[0])
    if instruction is None or instruction.opcode != "constant":
        return None
    value = re.match(r"\((-?\d+)\)", instruction.text)
    return int(value[1]) if value else None


def array_types(text: str) -> list[ArrayType]:
    """Returns the arrays of an HLO type, such as `f32[8,128]{1,0}`, or of a tuple."""
    return [
        ArrayType(dtype, tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size), layout)
        for dtype, sizes, layout in _ARRAY.findall(text)
    ]


def shape_bytes(text: str) -> int:
    """Returns the bytes of an HLO type without padding; of a tuple, the sum."""
    return sum(array.bytes for array in array_types(text))


def _bytes(dtype: str, count: int) -> int:
    digits = re.search(r"\d+", dtype)
    bits = _BITS.get(dtype, int(digits[0]) if digits else 0)
    return -(-count * bits // 8)


def _split_type(text: str) -> tuple[str, str]:
    """Splits `type opcode(...)` after the type, which may be a tuple."""
    if not text.startswith("("):
        result, _, rest = text.partition(" ")
        return result, rest
    end = _closing(text)
    return text[: end + 1], text[end + 2 :]


def _closing(text: str) -> int:
    depth = 0
    for match in _PARENTHESIS.finditer(text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(text)
