"""Runs one command in several processes of this machine, and starts them again when one dies.

    launch/local.sh [--processes=2] [--devices=4] [--restarts=3] -- --config=... --workdir=DIR

The processes find each other by the variables that `big_retrieval.main` reads. Each has a log of
its own; the first one's lines are on the screen too. When one dies, the others wait for it in a
collective operation and cannot go on: they are ended, and all start again from the newest
checkpoint. Status 2 is a user's mistake and ends everything. SIGINT and SIGTERM are passed on, and
what the processes save is waited for; a second one ends them at once. No process outlives this one,
however it ends. `--verbosity` of the command holds for the launcher's own messages, too.

On a host of a cluster, `--processes=1 -- --distributed ...` keeps that host's one process going.
"""

import argparse
import contextlib
import logging
import os
import shlex
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
    arguments,
    free_port,
    log_file,
    variables,
    watch,
)

log = logging.getLogger("big_retrieval.launch")  # __name__ is __main__ here
MISTAKE = 2  # exit status of a user's mistake, see `big_retrieval.cli`


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; launch/local.sh --help lists the flags.")


def parse(argv: Sequence[str]) -> LaunchOptions:
    """Reads the launcher's flags in front of `--` and leaves the command behind it alone.

    Raises:
      UserError: an unknown flag, a value that is no number, no command, or nowhere to put the logs.
    """
    place = argv.index("--") if "--" in argv else len(argv)
    own, command = argv[:place], tuple(argv[place + 1 :])
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
    add("--dry-run", "--dry_run", action="store_true", help="print what would be started")
    given = vars(parser.parse_args(own))
    for name, least in (("processes", 1), ("devices", 1), ("gpus", 1), ("restarts", 0)):
        if given[name] is not None and given[name] < least:
            raise UserError(f"--{name} is {given[name]}; it must be at least {least}.")
    if not command:
        raise UserError("there is no command: give its flags behind --, e.g. -- --config=FILE.")
    workdir = _value(command, "workdir")
    if given["logs"] is None and workdir is None:
        raise UserError("--workdir=DIR is missing behind --: all processes share it (or --logs).")
    given["logs"] = given["logs"] or Path(str(workdir), "logs")
    return LaunchOptions(**given, command=command)


def _value(command: Sequence[str], flag: str) -> str | None:
    """The value of a flag in a command line."""
    found = None
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in (f"--{flag}", f"-{flag}"):
            found = value if equals else (*command, None)[place + 1]
    return found


def dry_run(options: LaunchOptions) -> str:
    """What would be started, as commands for a shell."""
    lines = [f"# restarted up to {options.restarts} times"]
    port = options.port or free_port()
    for number in range(options.processes):
        more = variables(options, number, port, os.environ)
        words = [f"{name}={shlex.quote(value)}" for name, value in more.items()]
        lines.append(f"# process {number} of {options.processes}")
        target = shlex.quote(str(log_file(options, number)))
        lines.append(f"{' '.join(words)} {shlex.join(arguments(options))} >> {target} 2>&1")
    return "\n".join(lines)


def check_free(command: Sequence[str]) -> None:
    """Refuses a run folder that a process of this machine owns, before anything goes into its logs.

    The run itself takes the lock, and decides about owners on other machines.

    Args:
      command: of the run.

    Raises:
      UserError: the folder is in use, and the command does not say --wait.
    """
    workdir = _value(command, "workdir")
    if workdir is None or {"--wait", "--wait=true"} & set(command):
        return
    observer = Observer(locks.in_folder(Path(workdir)))
    with contextlib.suppress(OSError):  # the run says what is wrong with the folder
        if observer.look() == "alive" and observer.owner is not None:
            raise UserError(locks.in_use(workdir, observer.owner, "--workdir"))


def supervise(options: LaunchOptions) -> int:
    """Starts the processes until they end well, or `restarts` are used up.

    Returns:
      0; or the status to exit with: 2 for a user's mistake, 128 + n for signal n.

    Raises:
      UserError: the folder of the logs cannot be made.
    """
    try:
        options.logs.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"--logs {options.logs}: {problem.strerror}; choose another.") from None
    restarts = 0
    with Signals(signal.SIGINT, signal.SIGTERM) as signals:
        while True:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            group = ProcessGroup(options, f"start {restarts + 1}, {stamp}")
            try:
                failed = watch(group, signals)
            finally:
                group.kill()
                group.close()
            if not failed:
                return 0
            if MISTAKE in failed:
                return MISTAKE  # repeating it would not help
            # One that lost another process ends because of it, perhaps before it.
            cause = next((code for code in failed if code != RETRYABLE), RETRYABLE)
            status = cause if cause > 0 else 128 - cause
            if signals.count:
                return status
            if restarts == options.restarts:
                log.warning(
                    f"giving up after {restarts} restart(s); the logs are in {options.logs}"
                )
                return status
            restarts += 1
            log.info(f"starting all again, {restarts} of {options.restarts}")


def main(argv: Sequence[str]) -> int:
    """The command line; returns the status to exit with."""
    try:
        options = parse(argv)
        if options.dry_run:
            print(dry_run(options))
            return 0
        level = messages.LEVELS.get(_value(options.command, "verbosity") or "")
        messages.PACKAGE.setLevel(level or logging.INFO)  # that of the processes
        check_free(options.command)
        return supervise(options)
    except UserError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return MISTAKE


if __name__ == "__main__":
    screen.guard(log=True)
    messages.show(results=True, program="launch")
    sys.exit(main(sys.argv[1:]))
