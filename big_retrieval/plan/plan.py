"""What a run will need and cost, before any of its arrays is allocated.

    python -m big_retrieval.main --config=... --plan [--topology=h200-1]

The step is compiled ahead of time with abstract arrays. If this machine has the requested devices,
the plan consists of the compiler's figures. Otherwise virtual CPU devices stand in for them, and
the plan consists of formulas, which were fitted to the compiler's accounting on CPUs in float32;
the compiler's figures are noted, too, but CPUs widen bfloat16, which no accelerator does.
`sources` says where each part of the memory comes from.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from big_retrieval import parallel
from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.plan import cost, fit, loss_cost, memory, report
from big_retrieval.plan.program import read_program
from big_retrieval.plan.vocabulary import VocabularySize, vocabulary, with_words
from big_retrieval.runtime import chips
from big_retrieval.runtime.chips import Chip
from big_retrieval.train.build import BuiltModel, build_model
from big_retrieval.train.step import Step, abstract_batch, compile_step

_LENGTH = 1000  # steps of the schedule, which changes neither shapes nor costs
_MARGIN = 0.1  # of the usable memory, that a proposed change leaves: formulas are good to about it
_EXACT = ("parameters", "optimiser", "batch")


@dataclasses.dataclass(frozen=True)
class Target:
    """Where a step is to run.

    Attributes:
      chip: the kind of device; None if the table of chips lacks it.
      devices: jax's devices: the requested ones, or virtual CPUs in their place.
      native: whether `devices` are the requested ones.
    """

    chip: Chip | None
    devices: Sequence[Any]
    native: bool

    @property
    def platform(self) -> str:
        """ "gpu", "tpu" or "cpu"; decides the size of the loss's blocks."""
        return self.devices[0].platform if self.chip is None else self.chip.platform

    @property
    def name(self) -> str:
        """The name that --topology takes."""
        kind = self.devices[0].device_kind if self.chip is None else self.chip.name
        return f"{kind}-{len(self.devices)}"


def target(topology: tuple[Chip, int] | None) -> Target:
    """The devices of a plan; `environment.prepare` has made them visible.

    Args:
      topology: of `chips.parse`; None: all visible devices.
    """
    devices = jax.devices()
    if topology is None:
        chip = chips.of_kind(devices[0].device_kind, jax.local_device_count())
        return Target(chip, devices, True)
    chip, count = topology
    here = chips.of_kind(devices[0].device_kind)
    if len(devices) < count:
        raise UserError(
            f"--topology asks for {count} devices, but jax started with {len(devices)}: "
            "unset XLA_FLAGS and JAX_PLATFORMS."
        )
    return Target(chip, devices[:count], here is not None and here.name == chip.name)


def run(config: Config, workdir: Path, topology: tuple[Chip, int] | None) -> dict[str, Any]:
    """Makes a plan, prints it and writes plan.json into the run folder, where nothing else changes.

    Args:
      config: checked.
      workdir: the run folder; made where it is missing.
      topology: from `chips.parse`; None: all visible devices.

    Raises:
      UserError: the mesh does not fit the devices or the batch.
    """
    found = make(config, target(topology))
    workdir.mkdir(parents=True, exist_ok=True)
    write_bytes(workdir / "plan.json", to_json(found))
    print(report.text(found), flush=True)
    print(f"written to {workdir / 'plan.json'}", flush=True)
    return found


def make(config: Config, where: Target, *, compiling: bool = True) -> dict[str, Any]:
    """The content of plan.json.

    Args:
      config: checked.
      where: the devices.
      compiling: whether the step is compiled; if not, traffic between devices is not counted.
    """
    words = vocabulary(config)
    config = with_words(config, words.size)

    def build(changed: Config) -> BuiltModel:
        mesh = parallel.make_mesh(changed, where.devices)
        return build_model(changed, mesh, vocab_size=words.size, total_steps=_LENGTH)

    parts = build(config)
    formulas = memory.per_device(parts, where.platform)
    compiler = _compile(parts) if compiling else None
    native = where.native and compiler is not None
    per_device = _by_compiler(formulas, compiler) if native and compiler else formulas
    usable = None if where.chip is None else where.chip.usable
    fits = None if usable is None else per_device["total"] <= usable
    change = None
    if fits is False and usable is not None:
        offset = per_device["total"] - formulas["total"]
        limit = (1 - _MARGIN) * usable
        change = fit.smallest_change(parts, build, where.platform, limit, max(0, offset))
    return {
        **_about(config, where, parts, words),
        "per_device_bytes": per_device,
        "sources": _sources(native, where.platform),
        "activations_formula": memory.activations(parts, config, where.platform),
        "formula_bytes": formulas,
        "compiler": compiler,
        "fits": fits,
        "smallest_change": None if change is None else change._asdict(),
        **_costs(config, where, words, compiler),
    }


def _about(
    config: Config, where: Target, parts: BuiltModel, words: VocabularySize
) -> dict[str, Any]:
    """The entries that say what was planned."""
    chip = where.chip
    return {
        "topology": where.name,
        "platform": where.platform,
        "devices": len(where.devices),
        "mesh": dict(parts.mesh.shape),
        "batch_size": config.batch_size,
        "microbatch": config.microbatch,
        "dtype": config.dtype,
        "exchange": loss_cost.exchange_mode(config, parts.mesh.shape["tensor"])
        if memory.groups(parts) > 1
        else "none",
        "parameter_count": sum(parts.parameters.values()),
        "vocabulary": words._asdict(),
        "device_memory_bytes": None if chip is None else chip.memory,
        "usable_bytes": None if chip is None else chip.usable,
    }


def _sources(native: bool, platform: str) -> dict[str, str]:
    """Where each part of `per_device_bytes` comes from."""
    sources: dict[str, str] = dict.fromkeys(memory.PARTS, "formula")
    sources |= dict.fromkeys(_EXACT, "shapes")
    if native:
        sources["activations"] = f"compiler ({platform}), the rest of its figure"
    return sources


def _by_compiler(formulas: dict[str, int], compiler: dict[str, Any]) -> dict[str, int]:
    """The formulas' parts, but activations are the rest of the compiler's temporary memory."""
    found, left = dict(formulas), compiler["temp_bytes"]
    for name in ("representations", "loss"):
        found[name] = min(found[name], left)
        left -= found[name]
    found["activations"] = left
    found["total"] = sum(found[name] for name in memory.PARTS)
    return found


def _compile(parts: BuiltModel) -> dict[str, Any]:
    """The compiler's figures for one device, of the phase that takes the most memory."""
    found = [_compile_step(parts, step) for step in _different_steps(parts)]
    return max(found, key=lambda figures: figures["temp_bytes"])


def _different_steps(parts: BuiltModel) -> list[Step]:
    """The steps of phases that train other parameters, or have other batch statistics."""
    updates = parts.updates
    kinds = [(updates.trained(i), span.phase.batch_stats) for i, span in enumerate(updates.spans)]
    return [parts.steps[i] for i, kind in enumerate(kinds) if kind not in kinds[:i]]


def _compile_step(parts: BuiltModel, step: Step) -> dict[str, Any]:
    start = time.monotonic()
    batch = abstract_batch(parts.config, parts.mesh)
    compiled = compile_step(step, parts.abstract, batch, parts.mesh)
    analysis: Any = compiled.memory_analysis()
    program = read_program(compiled.as_text() or "")
    return {
        "platform": parts.mesh.devices.flat[0].platform,
        "seconds": round(time.monotonic() - start, 1),
        "argument_bytes": analysis.argument_size_in_bytes,
        "temp_bytes": analysis.temp_size_in_bytes,
        "output_bytes": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        "wire_bytes_by_collective": program.wire_bytes,
        "loops_of_unknown_length": program.unknown_loops,
    }


def _costs(
    config: Config,
    where: Target,
    words: VocabularySize,
    compiler: dict[str, Any] | None,
) -> dict[str, Any]:
    """Operations, traffic and time."""
    operations = cost.flops(config, words.size)
    wire = {} if compiler is None else compiler["wire_bytes_by_collective"]
    received = sum(wire.values())
    out = {
        "flops_per_step": sum(operations.values()),  # executed, over all devices
        "model_flops_per_step": operations["towers"],  # what MFU counts
        "flops_by_part": operations,
        "wire_bytes": received,  # received by one device in a step
        "wire_bytes_by_collective": wire,
        "wire_bytes_source": "" if compiler is None else f"compiled for {compiler['platform']}",
    }
    times = dict.fromkeys(("step", "compute", "wire", "exposed_wire", "mfu"))
    if where.chip is not None:
        times = cost.seconds(config, where.chip, len(where.devices), operations, received)
    step = times["step"]
    return {
        **out,
        "expected": {
            "step_seconds": step,
            "compute_seconds": times["compute"],
            "wire_seconds": times["wire"],
            "exposed_wire_seconds": times["exposed_wire"],
            "mfu": times["mfu"],
            "pairs_per_second": None if step is None else config.batch_size / step,
            "achievable_share": cost.ACHIEVABLE,
            "source": "arithmetic on the data sheet, not a measurement",
        },
    }
