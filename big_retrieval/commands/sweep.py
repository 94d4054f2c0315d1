"""Trains a list of configurations with several seeds, and makes one table of their results.

    big-retrieval sweep --sweep=configs/sweeps/X.py[:arg] [--workdir=DIR] [--only=0-2,5]

Finished runs are skipped and an interrupted one resumes, so repeat the command to continue. --slurm
prints the command that submits the runs as a SLURM array; --submit runs it.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from big_retrieval.cli.option_groups import PluginOptions, default_folder
from big_retrieval.cli.options import Flag, only_one
from big_retrieval.errors import UserError
from big_retrieval.sweep.spec import Sweep, SweepRun

LOG = True


@dataclass(frozen=True, kw_only=True)
class SweepOptions(PluginOptions):
    sweep: str  # Sweep file, e.g. configs/sweeps/quickstart_seeds.py
    workdir: Path | None = None  # Folder of the runs; runs/<sweep>-<arg> by default
    only: str = ""  # Indices of the runs to do, e.g. 3 or 0-2,5; all by default
    list: bool = False  # Show the runs and their progress
    dry_run: bool = False  # Check all configurations and print the commands
    table: bool = False  # Only recreate the tables
    slurm: bool = False  # Print the command that submits a SLURM array
    submit: Annotated[bool, Flag(needs="slurm")] = False  # Submit the array
    sbatch: Annotated[str, Flag(needs="slurm")] = ""  # Additional options of sbatch


def main(options: SweepOptions) -> None:
    from big_retrieval.sweep import runner, spec
    from big_retrieval.sweep.check import check_all
    from big_retrieval.sweep.table import progress_table, write_tables

    sweep = _load(options)
    folder = options.workdir or default_folder(options.sweep)
    runs = spec.runs_of(sweep, folder)
    selected = spec.select_runs(runs, options.only)

    def tables() -> str:
        return write_tables(sweep, runs, folder, f"{folder.name}: {options.sweep}")

    if options.list:
        print(progress_table(selected))
        return
    if options.table:
        print(tables())
        return
    check_all(sweep, selected)
    if options.dry_run:
        for run in selected:
            name = "evaluate" if run.entry.evaluate else "train"
            print(shlex.join(["big-retrieval", name, *run.flags()]))
        return
    if options.slurm:
        status = _submit(selected, folder, options)
    else:
        status = runner.run_all(selected, tables)
    if status:
        sys.exit(status)


def _load(options: SweepOptions) -> Sweep:
    from big_retrieval.sweep import spec

    only_one(options, "list", "dry_run", "table", "slurm")
    if int(os.environ.get("JAX_NUM_PROCESSES", "1") or 1) > 1:
        raise UserError(
            "JAX_NUM_PROCESSES is set, but each run of a sweep has one process. Unset it, or start "
            "big-retrieval train for each run that --dry-run prints."
        )
    return spec.load(options.sweep)


def _submit(runs: Sequence[SweepRun], folder: Path, options: SweepOptions) -> int:
    """Prints the sbatch command of the runs that are not finished; with --submit, runs it."""
    from big_retrieval.sweep import slurm
    from big_retrieval.sweep.table import read_results

    missing = [run.number for run in runs if read_results(run) is None]
    if not missing:
        raise UserError(f"All selected runs are finished. --table writes the table of {folder}.")
    command = slurm.command(missing, sweep=options.sweep, workdir=folder, options=options.sbatch)
    print(shlex.join(command), flush=True)
    return slurm.submit(command, folder) if options.submit else 0
