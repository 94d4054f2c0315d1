"""Trains a configuration, or on data as they lie there.

    big-retrieval train --data=FOLDER_OR_FILE
    big-retrieval train --data=FILE --image=file --text=title [--config.total_steps=500 ...]
    big-retrieval train --config=quickstart
    big-retrieval train --config=FILE.py[:arg] [--workdir=DIR] [--config.a.b=value ...]

--data looks at the data (pictures with text files beside them, CSV, JSON lines, Parquet, tars;
images with captions, questions with answers, or clicks), says what it takes for what, splits off a
validation part, chooses a config that fits this machine, and writes it into the run folder as
config.py. --image, --text, --query, --document, --score and --document_id say what it would guess.

--config is a file, or the name of a config that comes with the package (`big-retrieval configs`
lists them). Everything that the run writes goes into the run folder, --workdir; the same command
started again goes on from the newest checkpoint. With --plan nothing is trained, as by
`big-retrieval plan`.

Several processes (hosts) start the same command (launch/ does it for them). Where
JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID are set, the processes find each other
by these; on a TPU pod or under SLURM, with --distributed, by what the platform says. The exit
status is 2 for a user's mistake and 75 where the same command started again may well succeed. Only
one run writes into a run folder: another one ends with a sentence, or waits with --wait.

`python -m big_retrieval.main` is the same command, without --data.
"""

import logging
import os
import re
import sys
from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval import main as training
from big_retrieval.cli import roles
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks

log = logging.getLogger(__name__)
LOG = True
INSTEAD = "data"  # the flag that a config is made of
DATA = flags.DEFINE_string("data", None, "File, folder or pattern of files to train on")
INIT = flags.DEFINE_string(
    "init", "", "With --data: folder of published weights to start from; none: random weights"
)
OWN = (INSTEAD, *roles.ROLES, "init", "answer")


def main() -> None:
    """Reads the configuration, or makes one for --data, and trains."""
    if DATA.value is None:
        given = [f"--{name}" for name in OWN if name in flags.FLAGS and flags.FLAGS[name].present]
        if given:
            raise UserError(f"{given[0]} needs --data. Add --data=FILE, or remove {given[0]}.")
        training.main()
        return
    workdir = _prepared()
    training.main()
    if (workdir / "results.json").is_file():
        from big_retrieval.own_data.prepare import next_commands

        log.info("next:\n" + "\n".join(f"  {line}" for line in next_commands(workdir)))


def _prepared() -> Path:
    """Makes the config of --data and reads it as if --config named it; returns the run folder."""
    from big_retrieval.own_data.columns import DataFlags
    from big_retrieval.own_data.prepare import TrainingRequest, prepare

    if cli.CONFIG.value is not None:
        raise UserError(
            "--data makes a config of its own: leave --config out, or give the data to this config "
            "by --config.data.path=FILE."
        )
    if int(os.environ.get("JAX_NUM_PROCESSES", "1")) > 1 or training.DISTRIBUTED.value:
        raise UserError(
            "--data is for one process: start it alone with --plan, and give the config.py that it "
            "writes to all processes by --config."
        )
    data = str(DATA.value)
    if not data:
        raise UserError("--data is empty: give a file or a folder.")
    name = re.sub(r"[^\w.=-]+", "-", Path(data).absolute().resolve().stem).strip("-") or "data"
    workdir = Path(cli.WORKDIR.value or Path("runs") / name)
    flags_of_data = DataFlags(**roles.data_flags())
    with cli.owning(locks.in_folder(workdir), workdir, "--workdir"):
        changed = [arg for arg in sys.argv[1:] if re.match(r"--?config\.", arg)]
        file = prepare(TrainingRequest(data, flags_of_data, INIT.value), workdir, changed)
    rest = _without(sys.argv[1:], (*OWN, "workdir"))
    sys.argv[1:] = [f"--config={file}", f"--workdir={workdir}", *rest]
    flags.FLAGS.unparse_flags()
    cli.parse(sys.argv)
    return workdir


def _without(argv: list[str], names: tuple[str, ...]) -> list[str]:
    """A command line without some flags, written --name=value or --name value."""
    out, skip = [], False
    for arg in argv:
        name = re.match(r"--?([\w.-]+)(=?)", arg)
        mine = name is not None and name[1] in names
        if not skip and not mine:
            out.append(arg)
        skip = mine and name is not None and not name[2]
    return out
