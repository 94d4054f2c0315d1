"""Runs a list of configurations with several seeds, and makes one table of their results.

    big-retrieval sweep --sweep=configs/sweeps/X.py[:arg] [--workdir=DIR] [--only=0-2,5]

Finished runs are skipped and an interrupted one resumes, so the same command goes on. --list shows
the runs, --dry-run checks all configurations and prints the commands, --table only makes the table
anew, --slurm prints the command that submits the same list as a SLURM array (--submit runs it).
"""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError
from big_retrieval.sweep import runner, slurm, spec
from big_retrieval.sweep.check import check_all
from big_retrieval.sweep.spec import Sweep, SweepRun
from big_retrieval.sweep.table import progress_table, read_results, write_tables

LOG = True
WITHOUT = ("config", "wait")
SWEEP = flags.DEFINE_string("sweep", None, "Sweep file, e.g. configs/sweeps/quickstart_seeds.py")
ONLY = flags.DEFINE_string("only", "", "Numbers of the runs to do, e.g. 3 or 0-2,5; all by default")
LIST = flags.DEFINE_bool("list", False, "Show the runs and how far they are")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Check all configurations and print the commands")
flags.DEFINE_alias("dry-run", "dry_run")  # as the launch scripts have it
TABLE = flags.DEFINE_bool("table", False, "Only make the tables anew")
SLURM = flags.DEFINE_bool("slurm", False, "Print the command that submits a SLURM array")
SUBMIT = flags.DEFINE_bool("submit", False, "With --slurm: submit it")
SBATCH = flags.DEFINE_string("sbatch", "", "With --slurm: more options of sbatch")


def main() -> None:
    """Reads the sweep file and does what the flags say."""
    sweep = _load()
    folder = cli.workdir(SWEEP.value)
    runs = spec.runs_of(sweep, folder)
    chosen = spec.choose(runs, ONLY.value)

    def tables() -> str:
        return write_tables(sweep, runs, folder, f"{folder.name}: {SWEEP.value}")

    if LIST.value:
        print(progress_table(chosen))
        return
    if TABLE.value:
        print(tables())
        return
    check_all(sweep, chosen)
    if DRY_RUN.value:
        for run in chosen:
            name = "evaluate" if run.entry.evaluate else "train"
            print(shlex.join(["big-retrieval", name, *run.flags()]))
        return
    status = _submit(chosen, folder) if SLURM.value else runner.run_all(chosen, tables)
    if status:
        sys.exit(status)


def _load() -> Sweep:
    """The sweep file of this command line, whose flags go together."""
    if not SWEEP.value:
        raise UserError("--sweep is missing, e.g. --sweep=configs/sweeps/quickstart_seeds.py.")
    modes = [flag.name for flag in (LIST, DRY_RUN, TABLE, SLURM) if flag.value]
    if len(modes) > 1:
        raise UserError(f"--{modes[0]} and --{modes[1]} are both given; keep one of them.")
    if (SUBMIT.value or SBATCH.value) and not SLURM.value:
        raise UserError("--submit and --sbatch are for --slurm; give that too.")
    if int(os.environ.get("JAX_NUM_PROCESSES", "1") or 1) > 1:
        raise UserError(
            "JAX_NUM_PROCESSES is set, but the runs of a sweep have one process each: unset it, or "
            "start big-retrieval train for each run that --dry-run prints."
        )
    return spec.load(SWEEP.value)


def _submit(runs: Sequence[SweepRun], folder: Path) -> int:
    """Prints the sbatch command of the runs that are not finished; with --submit, runs it."""
    left = [run.number for run in runs if read_results(run) is None]
    if not left:
        raise UserError(f"all chosen runs are finished: --table makes the table in {folder} anew.")
    command = slurm.command(left, sweep=SWEEP.value or "", workdir=folder, options=SBATCH.value)
    print(shlex.join(command), flush=True)
    return slurm.submit(command, folder) if SUBMIT.value else 0
