"""The processes that the launcher starts: their variables, logs, signals and end."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from big_retrieval.runtime import child, screen
from big_retrieval.runtime.distributed import RETRYABLE

GRACE = 10.0  # seconds between SIGTERM and SIGKILL; jax.distributed swallows the first
POLL = 0.1  # seconds
PATIENCE = 3.0  # seconds for the cause to end behind those that ended because of it

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaunchOptions:
    """Which processes the launcher starts.

    Attributes:
      processes: how many.
      devices: virtual CPU devices of each process; None: the machine's own devices.
      gpus: GPUs of each process, in order of their numbers; None: a process takes all that it sees.
      restarts: how often all processes are started again.
      logs: folder of the logs.
      port: at which the others find the first process; None: a free port at each start.
      module: what `python -m` runs.
      command: its arguments.
      dry_run: whether commands are printed instead of started.
    """

    processes: int
    devices: int | None
    gpus: int | None
    restarts: int
    logs: Path
    port: int | None
    module: str
    command: tuple[str, ...]
    dry_run: bool


def variables(
    options: LaunchOptions, number: int, port: int, env: Mapping[str, str]
) -> dict[str, str]:
    """The variables that process `number` gets in addition to the launcher's environment `env`."""
    out = {"PYTHONUNBUFFERED": "1"}
    if options.processes > 1:
        out["JAX_COORDINATOR_ADDRESS"] = f"127.0.0.1:{port}"
        out["JAX_COORDINATOR_BIND_ADDRESS"] = f"127.0.0.1:{port}"  # not for the whole network
        out["JAX_NUM_PROCESSES"], out["JAX_PROCESS_ID"] = str(options.processes), str(number)
    if options.gpus is not None:
        mine = range(number * options.gpus, (number + 1) * options.gpus)
        out["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, mine))
    if options.devices is not None:
        other = [
            flag
            for flag in env.get("XLA_FLAGS", "").split()
            if "xla_force_host_platform_device_count" not in flag
        ]
        virtual = f"--xla_force_host_platform_device_count={options.devices}"
        out["XLA_FLAGS"] = " ".join([*other, virtual])
        out["JAX_PLATFORMS"] = "cpu"
        out["NPROC"] = env.get("NPROC", "16")  # collectives starve on few cores without it
    return out


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def arguments(options: LaunchOptions) -> list[str]:
    """The command line of every process."""
    return [sys.executable, "-m", options.module, *options.command]


def log_file(options: LaunchOptions, number: int) -> Path:
    """Where the output of process `number` goes."""
    return options.logs / f"process_{number}.log"


def describe(code: int) -> str:
    """An exit status in words."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with status {code}"


class Signals:
    """A context in which signals are counted instead of ending this process.

    Attributes:
      count: how many signals came.
      first: the number of the first signal; None: no signal came.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        """Installs nothing yet."""
        self.count = 0
        self.first: int | None = None
        self._numbers, self._before = numbers, dict[int, Any]()

    def __enter__(self) -> "Signals":
        for number in self._numbers:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a shell's background job
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or number


class ProcessGroup:
    """The processes of one start."""

    def __init__(self, options: LaunchOptions, header: str) -> None:
        """Starts all processes.

        Args:
          options: what to start.
          header: a line that is appended to each log.
        """
        port = options.port or free_port()
        self._options = options
        self.processes: list[subprocess.Popen[bytes]] = []
        self._screen = log_file(options, 0).open("ab+")
        for number in range(options.processes):
            with log_file(options, number).open("ab") as output:
                output.write(f"---- {header}\n".encode())
                output.flush()
                if number == 0:
                    self._screen.seek(0, os.SEEK_END)
                env = {**os.environ, **variables(options, number, port, os.environ)}
                self.processes.append(
                    subprocess.Popen(
                        child.command(options.module, *options.command),
                        stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env,
                        process_group=0,  # a Ctrl-C comes once, from us
                    )
                )  # fmt: skip

    def codes(self) -> list[int | None]:
        """The exit status of each process; None while it runs."""
        return [process.poll() for process in self.processes]

    def show(self) -> None:
        """Copies what the first process has written since the last call to the screen."""
        _copy(self._screen)

    def close(self) -> None:
        """Shows the rest of the first process's output."""
        self.show()
        self._screen.close()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the processes that still run."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def kill(self) -> None:
        """Kills all processes, and the data workers that they started."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def stopped(self) -> list[int]:
        """The numbers of the processes that a SIGSTOP or a debugger holds (Linux)."""
        found = []
        for number, process in enumerate(self.processes):
            try:
                state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state in "Tt":
                found.append(number)
        return found

    def last_words(self, number: int, lines: int = 12) -> str:
        """The end of a log."""
        text = log_file(self._options, number).read_text(errors="replace")[-10_000:]
        return "\n".join(f"  {number} | {line[:300]}" for line in text.splitlines()[-lines:])


def _copy(file: IO[bytes]) -> None:
    data = file.read()
    if data:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def watch(group: ProcessGroup, signals: Signals) -> tuple[int, ...]:
    """Waits until all processes have ended; when one fails, ends the others.

    Returns:
      The exit statuses of the processes that failed first; () if none failed.
    """
    passed_on, deadline, first, seen = signals.count, 0.0, (), 0.0
    while None in (codes := group.codes()):
        group.show()
        if signals.count > passed_on:
            passed_on = signals.count
            if passed_on == 1:
                log.info("a signal: waiting until everything is saved; once more ends it at once")
                group.signal(signal.SIGTERM)
            else:
                group.kill()
        if first:
            if time.monotonic() > deadline:
                group.kill()
        elif any(codes):
            seen = seen or time.monotonic()
            failed = tuple(code for code in codes if code)
            if set(failed) != {RETRYABLE} or time.monotonic() - seen > PATIENCE:
                first = failed  # what the others fail with from here on follows from that
                deadline = time.monotonic() + GRACE
                _tell(group, codes)
                group.signal(signal.SIGTERM)
        time.sleep(POLL)
    group.show()
    if not first and any(codes):
        _tell(group, codes)
    return first or tuple(code for code in codes if code)


def _tell(group: ProcessGroup, codes: Sequence[int | None]) -> None:
    """Says which processes failed, how, and what they printed last."""
    for number, code in enumerate(codes):
        if code:
            log.warning(f"process {number} {describe(code)}")
            if number:  # the first one's words are on the screen
                screen.put(group.last_words(number), sys.stderr)
    for number in group.stopped():
        log.warning(f"process {number} is stopped (SIGSTOP, or a debugger)")
    rest = sum(code is None for code in codes)
    if rest:
        log.info(f"ending the other {rest}" if rest > 1 else "ending the other one")
