"""Memory and cost of a run, before any of its arrays is allocated.

The training step is compiled ahead of time with abstract arrays. The devices are this machine's, or
targets of an installed compiler that need not exist (`targets`). Memory, cycles and traffic are the
compiler's figures. Without a compiler, the plan has only figures from shapes and tracing.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from big_retrieval import parallel
from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.plan import cost, fit, report, targets
from big_retrieval.plan.compiling import compile_plan
from big_retrieval.plan.vocabulary import VocabularySize, vocabulary
from big_retrieval.runtime import chips
from big_retrieval.runtime.chips import Chip
from big_retrieval.train.build import BuiltModel, build_model
from big_retrieval.train.step_figures import TIMES, step_times

_LENGTH = 1000  # steps of the schedule, which changes neither shapes nor costs


@dataclass(frozen=True)
class Target:
    """Devices that a step is compiled for."""

    chip: Chip | None  # kind of device; None if the table of chips lacks it
    # the requested devices, targets of a compiler, or virtual CPUs in their place
    devices: Sequence[Any]
    # reason why nothing can be compiled for the chip; empty if the step is compiled
    missing: str = ""

    @property
    def name(self) -> str:
        """The name that --topology takes."""
        kind = self.devices[0].device_kind if self.chip is None else self.chip.name
        return f"{kind}-{len(self.devices)}"


def target(topology: tuple[Chip, int] | None) -> Target:
    """Returns the devices of a plan; call `environment.prepare` before."""
    devices = jax.devices()
    if topology is None:
        return Target(chips.of_kind(devices[0].device_kind, jax.local_device_count()), devices)
    chip, count = topology
    visible = chips.of_kind(devices[0].device_kind)
    is_here = visible is not None and visible.name == chip.name and len(devices) >= count
    missing = "" if is_here else targets.missing(chip)
    if not is_here and not missing and chip.platform != "cpu":
        return Target(chip, targets.target_devices(chip, count))
    if len(devices) < count:
        raise UserError(
            f"--topology needs {count} devices, but jax has {len(devices)}. Unset XLA_FLAGS and "
            "JAX_PLATFORMS."
        )
    return Target(chip, devices[:count], missing)


def run(
    config: Config, workdir: Path, topology: tuple[Chip, int] | None, *, suggest: bool = False
) -> dict[str, Any]:
    """Makes a plan, prints it and writes plan.json into the run folder."""
    plan = make(config, target(topology), suggest=suggest, say=functools.partial(print, flush=True))
    workdir.mkdir(parents=True, exist_ok=True)
    write_bytes(workdir / "plan.json", to_json(plan))
    print(report.text(plan), flush=True)
    print(f"\nwritten to {workdir / 'plan.json'}", flush=True)
    return plan


def make(
    config: Config, where: Target, *, suggest: bool = False, say: fit.Say = lambda message: None
) -> dict[str, Any]:
    """Returns the content of plan.json.

    Args:
      where: the devices; nothing is compiled if `where.missing`.
      suggest: compile other settings even if this one fits.
      say: called with a line about each step that takes long.
    """
    vocab = vocabulary(config)

    def build(changed: Config) -> BuiltModel:
        mesh = parallel.make_mesh(changed, where.devices)
        return build_model(changed, mesh, vocab_size=vocab.size, total_steps=_LENGTH)

    def trial(changed: Config, flags: list[str]) -> fit.Trial:
        parts = build(changed)
        operations, program = cost.flops(changed, vocab.size), compile_plan(parts)
        times = step_times(where.chip, len(where.devices), operations, program)
        usable = None if where.chip is None else where.chip.usable
        fits = None if usable is None else program["total_bytes"] <= usable
        return fit.Trial(changed, flags, program, operations, times, fits)

    parts, current, suggestions = build(config), None, []
    if not where.missing:
        say(f"compiling the training step for {where.name} ...")
        current = trial(config, [])
        if where.chip is not None and (suggest or current.fits is False):
            rows = cost.row_devices(parts)
            suggestions = fit.suggestions(current, trial, rows, where.chip.usable, say)
    return {
        **_about(config, where, parts, vocab),
        **_figures(config, where, parts, vocab, current),
        "suggestions": [entry.summary(config.batch_size) for entry in suggestions],
    }


def _about(
    config: Config, where: Target, parts: BuiltModel, vocab: VocabularySize
) -> dict[str, Any]:
    chip = where.chip
    return {
        "topology": where.name,
        "platform": where.devices[0].platform if chip is None else chip.platform,
        "devices": len(where.devices),
        "mesh": dict(parts.mesh.shape),
        "batch_size": config.batch_size,
        "microbatch": config.microbatch,
        "dtype": config.dtype,
        "parameter_count": sum(parts.parameters.values()),
        "vocabulary": vocab._asdict(),
        "device_memory_bytes": None if chip is None else chip.memory,
        "usable_bytes": None if chip is None else chip.usable,
        "not_compiled": where.missing,
    }


def _figures(
    config: Config, where: Target, parts: BuiltModel, vocab: VocabularySize, trial: fit.Trial | None
) -> dict[str, Any]:
    program = None if trial is None else trial.program
    operations = cost.flops(config, vocab.size) if trial is None else trial.operations
    times = step_times(where.chip, len(where.devices), operations, program)
    step = times["step"]
    return {
        "per_device_bytes": _per_device(cost.state_bytes(parts), program),
        "compiler": program,
        "fits": None if trial is None else trial.fits,
        "flops_per_step": sum(operations.values()),  # executed, over all devices
        "model_flops_per_step": operations["towers"],  # what MFU counts
        "flops_by_part": operations,
        "wire_bytes": None if program is None else program.get("wire_bytes"),
        "expected": {
            **{name if "mfu" in name else f"{name}_seconds": times[name] for name in TIMES},
            "pairs_per_second": None if step is None else config.batch_size / step,
            "source": "the compiler's estimate and data sheets, not a measurement",
        },
    }


def _per_device(state: dict[str, int], program: dict[str, Any] | None) -> dict[str, int | None]:
    """Returns the bytes of one device by part; None for parts that only the compiler knows."""
    if program is None:
        return {**state, "padding": None, "temporaries": None, "output": None, "total": None}
    return {
        **state,
        "padding": max(0, (program["argument_bytes"] or 0) - sum(state.values())),
        "temporaries": program["temp_bytes"],
        "output": program["output_bytes"],
        "total": program["total_bytes"],
    }
