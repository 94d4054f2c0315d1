"""Cycles of Pallas kernels on TPUs, from the instruction schedules that the TPU compiler dumps.

The TPU compiler estimates cycles for its own fusions but not for kernels. It dumps the final
schedule with `DUMP_FLAGS` and `--xla_jf_dump_to=FOLDER` in LIBTPU_INIT_ARGS, before libtpu is
loaded. A kernel is a list of bundles: instructions that start in the same cycle. A bundle counts
once per iteration of the grid and of loops with a constant number of iterations. A product of 16
rows occupies a matrix unit for longer than its bundle. If a unit is busy for more cycles than there
are bundles, its cycles count instead. The schedule does not contain waits for memory, so the result
is multiplied by `MARGIN`.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from big_retrieval.compiled.hlo import array_types
from big_retrieval.compiled.program import Kernel

DUMP_FLAGS = "--xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=.*final_bundles"
MARGIN = 1.1
# Cycles of a product in a matrix unit, from large products whose time is known: 16 on v4, v5e and
# v5p; 8 on v6e, whose instruction has "mubr" in its name.
MATMUL_CYCLES, MUBR_CYCLES = 16, 8

# Address, mark (LB: first bundle of a loop), one > per loop around the bundle, instructions. Empty
# bundles have no >; they belong to the loop of the bundle before.
_BUNDLE = re.compile(r" *(?:0x[0-9a-f]+|0) +([A-Z]{2})? *: *(>*) *\{(.*)")
_MATMUL = re.compile(r"= vmatmul\.([\w.]*)(mxu\d)")
_EXIT = re.compile(r"= scmp\.(?:ge|eq)\.s32\.totalorder [^,;]*, (-?\d+) /\* loop exit test \*/")
_FILE = re.compile(r"\d+-(.*)-\d+-final_bundles\.txt")


def schedule_cycles(schedule: str) -> tuple[int, int]:
    """Returns the cycles of a kernel's schedule (`*-final_bundles.txt`), and its unknown loops.

    Loops without a constant limit count as one iteration.
    """
    bundles: list[tuple[int, str, str]] = []  # depth of loops, mark, instructions
    for line in schedule.splitlines():
        match = _BUNDLE.match(line)
        if match:
            is_empty = match[3].startswith("}")
            depth = bundles[-1][0] if is_empty and bundles else len(match[2])
            bundles.append((depth, match[1] or "", match[3]))
    return _cycles(bundles, 0)


def _cycles(bundles: list[tuple[int, str, str]], depth: int) -> tuple[int, int]:
    """Returns cycles, and number of loops without a limit, of bundles inside `depth` loops."""
    total = unknown = index = count = 0
    busy: Counter[str] = Counter()  # cycles by matrix unit
    while index < len(bundles):
        if bundles[index][0] <= depth:
            for match in _MATMUL.finditer(bundles[index][2]):
                busy[match[2]] += MUBR_CYCLES if "mubr" in match[1] else MATMUL_CYCLES
            count, index = count + 1, index + 1
            continue
        end = index + 1
        while end < len(bundles) and bundles[end][0] > depth and not _starts(bundles[end], depth):
            end += 1
        body = bundles[index:end]
        tests = [m for level, _, text in body if level == depth + 1 and (m := _EXIT.search(text))]
        inner, inner_unknown = _cycles(body, depth + 1)
        total += inner * (int(tests[-1][1]) if tests else 1)
        unknown += inner_unknown + (not tests)
        index = end
    return total + max(count, *busy.values(), 0), unknown


def _starts(bundle: tuple[int, str, str], depth: int) -> bool:
    return bundle[0] == depth + 1 and bundle[1] == "LB"


def kernel_cycles(kernels: Iterable[Kernel], folder: Path) -> dict[str, int]:
    """Returns the cycles of all calls of each TPU kernel, with `MARGIN`, by instruction name."""
    schedules = {
        match[1]: path for path in folder.iterdir() if (match := _FILE.fullmatch(path.name))
    }
    kernels = [kernel for kernel in kernels if kernel.target == "tpu_custom_call"]
    # The compiler writes one schedule for equal kernels, e.g. of a forward pass and its repetition.
    equal = {_shapes(kernel): kernel.name for kernel in kernels if kernel.name in schedules}
    cycles = {}
    for kernel in kernels:
        name = kernel.name if kernel.name in schedules else equal.get(_shapes(kernel))
        if name is None:
            raise ValueError(f"no schedule of the kernel {kernel.name} in {folder}")
        once, _ = schedule_cycles(schedules[name].read_text())
        cycles[kernel.name] = round(kernel.calls * once * MARGIN)
    return cycles


def _shapes(kernel: Kernel) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((array.dtype, array.shape) for array in array_types(kernel.type))
