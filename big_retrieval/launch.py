"""Runs one command in several processes of this machine, and restarts all when one dies.

    launch/local.sh [--processes=2] [--devices=4] [--restarts=3] -- --config=... --workdir=DIR

Each process writes its own log; the first one also writes to the screen. When one dies, the others
are ended, and all resume from the newest checkpoint. Status 2, an error of the user, ends all.
SIGINT and SIGTERM are passed on, and the processes save; a second signal kills them. No process
outlives the launcher. `--verbosity` of the command applies to the launcher, too.

On a host of a cluster, `--processes=1 -- --distributed ...` restarts that host's one process.
"""

import argparse
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from big_retrieval.errors import UserError
from big_retrieval.runtime import locks, messages, screen
from big_retrieval.runtime.distributed import RETRYABLE
from big_retrieval.runtime.lease import Observer
from big_retrieval.runtime.processes import (
    LaunchOptions,
    ProcessGroup,
    Signals,
    watch,
)

log = logging.getLogger("big_retrieval.launch")  # __name__ is __main__ here
MISTAKE = 2  # exit status of a user's mistake, see `big_retrieval.cli`


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; launch/local.sh --help lists the flags.")


def parse(argv: Sequence[str]) -> LaunchOptions:
    """Reads the launcher's flags before `--`, and the command after it; raises a UserError."""
    split = argv.index("--") if "--" in argv else len(argv)
    command = tuple(argv[split + 1 :])
    parser = _Parser(
        prog="launch/local.sh",
        usage="%(prog)s [flags] -- --config=FILE --workdir=DIR [--config.key=value]",
        description="Starts a run in several processes of this machine.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--processes", type=int, default=2, metavar="N", help="default: 2")
    add("--devices", type=int, metavar="N", help="virtual CPU devices of each process")
    add("--gpus", type=int, metavar="N", help="GPUs of each process; default: all that it sees")
    add("--restarts", type=int, default=3, metavar="N", help="after a death; default: 3")
    add("--logs", type=Path, metavar="DIR", help="default: logs in the run folder")
    add("--port", type=int, metavar="N", help="of the first process; default: a free one")
    add("--module", default="big_retrieval.main", help="default: big_retrieval.main")
    flags = vars(parser.parse_args(argv[:split]))
    for name, minimum in (("processes", 1), ("devices", 1), ("gpus", 1), ("restarts", 0)):
        if flags[name] is not None and flags[name] < minimum:
            raise UserError(f"--{name} is {flags[name]}; it must be at least {minimum}.")
    if not command:
        raise UserError("No command. Add its flags after --, such as -- --config=FILE.")
    workdir = _value(command, "workdir")
    if flags["logs"] is None and workdir is None:
        raise UserError("Add --workdir=DIR after --, which all processes share, or --logs=DIR.")
    flags["logs"] = flags["logs"] or Path(str(workdir), "logs")
    return LaunchOptions(**flags, command=command)


def _value(command: Sequence[str], flag: str) -> str | None:
    """Returns the last value of a flag in a command line, or None."""
    last = None
    for index, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in (f"--{flag}", f"-{flag}"):
            last = value if equals else (*command, None)[index + 1]
    return last


def check_free(command: Sequence[str]) -> None:
    """Raises a UserError if a local process uses the run folder, before logs are written."""
    workdir = _value(command, "workdir")
    if workdir is None or {"--wait", "--wait=true"} & set(command):
        return
    observer = Observer(locks.in_folder(Path(workdir)))
    with contextlib.suppress(OSError):  # the run reports errors of the folder
        if observer.look() == "alive" and observer.owner is not None:
            raise UserError(locks.in_use(workdir, observer.owner, "--workdir"))


def supervise(options: LaunchOptions) -> int:
    """Starts the processes, again if one dies; returns the exit status, 128 + n for signal n."""
    try:
        options.logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot create --logs {options.logs}: {error.strerror}.") from None
    restarts = 0
    with Signals(signal.SIGINT, signal.SIGTERM) as signals:
        while True:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            group = ProcessGroup(options, f"start {restarts + 1}, {stamp}")
            try:
                failed = watch(group, signals)
            finally:
                group.close()
            if not failed:
                return 0
            if MISTAKE in failed:
                return MISTAKE  # repeating it would not help
            # If one process fails, the others end as RETRYABLE, perhaps before the failed one.
            cause = next((code for code in failed if code != RETRYABLE), RETRYABLE)
            status = cause if cause > 0 else 128 - cause
            if signals.count:
                return status
            if restarts == options.restarts:
                log.warning(f"giving up after {restarts} restarts; the logs are in {options.logs}")
                return status
            restarts += 1
            log.info(f"starting all again, {restarts} of {options.restarts}")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    try:
        options = parse(argv)
        level = messages.LEVELS.get(_value(options.command, "verbosity") or "")
        messages.PACKAGE.setLevel(level or logging.INFO)  # as the processes
        check_free(options.command)
        return supervise(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISTAKE


if __name__ == "__main__":
    screen.guard(log=True)
    messages.show(results=True, program="launch")
    sys.exit(main(sys.argv[1:]))
