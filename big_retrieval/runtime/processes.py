"""Processes that the launcher starts: their variables, logs, signals and end."""

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
from typing import Any

from big_retrieval.runtime import child, screen
from big_retrieval.runtime.distributed import RETRYABLE
from big_retrieval.runtime.lease import process_status

GRACE = 10.0  # seconds between SIGTERM and SIGKILL; jax.distributed swallows the first
POLL = 0.1  # seconds
PATIENCE = 3.0  # seconds to wait for the failed process, if others ended first because of it

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaunchOptions:
    """Processes to start."""

    processes: int
    devices: int | None  # virtual CPU devices of each process; None for the machine's devices
    gpus: int | None  # GPUs of each process, in their order; None to use all visible ones
    restarts: int  # maximum number of restarts of all processes
    logs: Path
    port: int | None  # port of the first process; None for a free port at each start
    module: str  # module for `python -m`
    command: tuple[str, ...]  # arguments of the module

    def log_file(self, process_index: int) -> Path:
        """Returns the file with the output of a process."""
        return self.logs / f"process_{process_index}.log"


def variables(
    options: LaunchOptions, process_index: int, port: int, env: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables of a process to add to, or replace in, the environment `env`."""
    out = {"PYTHONUNBUFFERED": "1"}
    if options.processes > 1:
        out["JAX_COORDINATOR_ADDRESS"] = f"127.0.0.1:{port}"
        out["JAX_COORDINATOR_BIND_ADDRESS"] = f"127.0.0.1:{port}"  # not for the whole network
        out["JAX_NUM_PROCESSES"], out["JAX_PROCESS_ID"] = str(options.processes), str(process_index)
    if options.gpus is not None:
        local_ids = range(process_index * options.gpus, (process_index + 1) * options.gpus)
        out["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, local_ids))
    if options.devices is not None:
        count = "xla_force_host_platform_device_count"
        flags = [flag for flag in env.get("XLA_FLAGS", "").split() if count not in flag]
        out["XLA_FLAGS"] = " ".join([*flags, f"--{count}={options.devices}"])
        out["JAX_PLATFORMS"] = "cpu"
        out["NPROC"] = env.get("NPROC", "16")  # collectives starve on few cores without it
    return out


def free_port() -> int:
    """Returns a port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def format_exit_status(code: int) -> str:
    """Returns "ended with status 1", or "was ended by SIGKILL" for a negative code."""
    if code >= 0:
        return f"ended with status {code}"
    names = {x.value: x.name for x in signal.Signals}  # without most of the real-time signals
    return f"was ended by {names.get(-code, f'signal {-code}')}"


class Signals:
    """A context that counts signals instead of ending this process."""

    def __init__(self, *signals: signal.Signals) -> None:
        self.count = 0  # signals so far
        self.first: int | None = None  # number of the first signal
        self._numbers, self._before = signals, dict[int, Any]()

    def __enter__(self) -> "Signals":
        for signal_number in self._numbers:
            # nohup, or a shell's background job, ignores signals
            if signal.getsignal(signal_number) != signal.SIG_IGN:
                self._before[signal_number] = signal.signal(signal_number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for signal_number, handler in self._before.items():
            signal.signal(signal_number, handler)

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or signal_number


class ProcessGroup:
    """The processes of one start."""

    def __init__(self, options: LaunchOptions, header: str) -> None:
        """Starts all processes, and appends the line `header` to each log."""
        port = options.port or free_port()
        self._options = options
        self.processes: list[subprocess.Popen[bytes]] = []
        self._first_log = options.log_file(0).open("ab+")
        for index in range(options.processes):
            with options.log_file(index).open("ab") as output:
                output.write(f"---- {header}\n".encode())
                output.flush()
                if index == 0:
                    self._first_log.seek(0, os.SEEK_END)
                env = {**os.environ, **variables(options, index, port, os.environ)}
                self.processes.append(
                    subprocess.Popen(
                        child.command(options.module, *options.command),
                        stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env,
                        process_group=0,  # Ctrl-C reaches it once, from the launcher
                    )
                )  # fmt: skip

    def codes(self) -> list[int | None]:
        """Returns the exit status of each process; None while it runs."""
        return [process.poll() for process in self.processes]

    def show(self) -> None:
        """Copies the new output of the first process to standard output."""
        if data := self._first_log.read():
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def terminate(self) -> None:
        """Sends SIGTERM to the processes that still run."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()

    def kill(self) -> None:
        """Kills all processes, and the data workers that they started."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """Kills all processes, and shows the remaining output of the first one."""
        self.kill()
        self.show()
        self._first_log.close()

    def last_lines(self, process_index: int, count: int = 12) -> str:
        """Returns the end of a log."""
        text = self._options.log_file(process_index).read_text(errors="replace")[-10_000:]
        return "\n".join(f"  {process_index} | {line[:300]}" for line in text.splitlines()[-count:])


def watch(group: ProcessGroup, signals: Signals) -> tuple[int, ...]:
    """Waits until all processes have ended; returns the exit statuses that failed first."""
    passed_on, deadline, first, seen = signals.count, 0.0, (), 0.0
    while None in (codes := group.codes()):
        group.show()
        if signals.count > passed_on:
            passed_on = signals.count
            if passed_on == 1:
                log.info("signal: waiting until all is saved; a second one ends the run at once")
                group.terminate()
            else:
                group.kill()
        if first:
            if time.monotonic() > deadline:
                group.kill()
        elif any(codes):
            seen = seen or time.monotonic()
            failed = tuple(code for code in codes if code)
            if set(failed) != {RETRYABLE} or time.monotonic() - seen > PATIENCE:
                first = failed  # they cause the later failures
                deadline = time.monotonic() + GRACE
                _log_failures(group, codes)
                group.terminate()
        time.sleep(POLL)
    group.show()
    if not first and any(codes):
        _log_failures(group, codes)
    return first or tuple(code for code in codes if code)


def _log_failures(group: ProcessGroup, codes: Sequence[int | None]) -> None:
    for index, code in enumerate(codes):
        if code:
            log.warning(f"process {index} {format_exit_status(code)}")
            if index:  # the output of the first process is shown already
                screen.put(group.last_lines(index), sys.stderr)
    for index, process in enumerate(group.processes):
        if process_status(process.pid)[0] in ("T", "t"):
            log.warning(f"process {index} is stopped (SIGSTOP, or a debugger)")
    if running := sum(code is None for code in codes):
        log.info(f"ending the other {running}")
