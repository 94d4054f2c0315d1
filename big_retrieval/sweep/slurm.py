"""A sweep as a SLURM array: one task per run; all tasks write the same tables.

The script adds --only with the index of its task, and requeues the task until its run ends.
"""

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from big_retrieval.cli import shipped
from big_retrieval.errors import UserError

SCRIPT = Path("launch/slurm.sbatch")


def command(indices: Sequence[int], *, sweep: str, workdir: Path, options: str = "") -> list[str]:
    """Returns the sbatch command for runs (ascending indices) of a sweep, with further options."""
    folder = None if SCRIPT.is_file() else shipped.folder("launch")
    return [
        "sbatch",
        f"--array={','.join(map(str, indices))}",
        f"--job-name={workdir.name}",
        f"--output={workdir}/logs/%A_%a.txt",
        "--nodes=1",
        "--ntasks=1",
        "--export=ALL,COMMAND=sweep",
        *shlex.split(options),
        str(SCRIPT if folder is None else folder / SCRIPT.name),
        "--",
        f"--sweep={sweep}",
        f"--workdir={workdir}",
    ]


def submit(command: Sequence[str], workdir: Path) -> int:
    """Runs the sbatch command, and returns its exit status."""
    (workdir / "logs").mkdir(parents=True, exist_ok=True)
    try:
        return subprocess.run(command).returncode
    except FileNotFoundError:
        raise UserError("This machine has no sbatch. Submit from a SLURM login node.") from None
