"""A sweep as a SLURM array: one task for each run, which all write the same tables.

The script adds --only with the number of its task, and goes back to the queue until that run ends.
"""

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from big_retrieval.cli import shipped
from big_retrieval.errors import UserError

SCRIPT = Path("launch/slurm.sbatch")


def command(numbers: Sequence[int], *, sweep: str, workdir: Path, options: str = "") -> list[str]:
    """The sbatch command.

    Args:
      numbers: of the runs, ascending.
      sweep: the sweep file with its argument.
      workdir: the sweep's folder.
      options: more options of sbatch, as on a command line.
    """
    return [
        "sbatch",
        f"--array={','.join(map(str, numbers))}",
        f"--job-name={workdir.name}",
        f"--output={workdir}/logs/%A_%a.txt",
        "--nodes=1",
        "--ntasks=1",
        "--export=ALL,COMMAND=sweep",
        *shlex.split(options),
        str(script()),
        "--",
        f"--sweep={sweep}",
        f"--workdir={workdir}",
    ]


def submit(command: Sequence[str], workdir: Path) -> int:
    """Runs the sbatch command, and returns its exit status.

    Args:
      command: of `command`.
      workdir: the sweep's folder.

    Raises:
      UserError: this machine has no sbatch.
    """
    (workdir / "logs").mkdir(parents=True, exist_ok=True)
    try:
        return subprocess.run(command).returncode
    except FileNotFoundError:
        raise UserError("there is no sbatch on this machine: submit from a SLURM login.") from None


def script() -> Path:
    """The launch script: of the checkout that is the current folder, or that of the package."""
    folder = None if SCRIPT.is_file() else shipped.folder("launch")
    return SCRIPT if folder is None else folder / SCRIPT.name
