"""Prints the memory, time and communication of a run, without training.

    big-retrieval plan --config=quickstart
    big-retrieval plan --config=FILE.py[:arg] [--topology=h200-8] [--config.a.b=value ...]

The step is compiled for the devices of this machine, or of --topology. This machine need not have
these devices: the extras plan-tpu and plan-gpu install the compilers. The command prints the plan
and writes it to plan.json in the run folder, --workdir.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from big_retrieval.cli.option_groups import RunOptions

if TYPE_CHECKING:
    from big_retrieval.config import Config

LOG = True


@dataclass(frozen=True, kw_only=True)
class PlanOptions(RunOptions):
    topology: str | None = None  # Devices to plan for, e.g. h200-1, v5e-256, cpu-8
    suggest: bool = False  # Compile other settings, too, and list them by speed


def main(options: PlanOptions) -> None:
    from big_retrieval.config.checks import check

    config = options.load_config()
    check(config)
    plan(config, options.run_folder, options)


def plan(config: "Config", workdir: Path, options: PlanOptions) -> None:
    """Prints the memory and cost of a run, and writes plan.json."""
    from big_retrieval.config.checks import mesh_shape
    from big_retrieval.plan import environment, targets
    from big_retrieval.runtime import chips

    topology = None if options.topology is None else chips.parse(options.topology)
    if topology is not None:
        mesh_shape(config, topology[1])
        targets.check_count(*topology)
        environment.prepare(*topology)
    from big_retrieval.plan.plan import run

    file = workdir / "plan.json"
    with options.owning_file(file, "--workdir"):
        run(config, workdir, topology, suggest=options.suggest)
