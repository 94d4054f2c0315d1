"""The processes of one run: how they find each other, and how they end when one is lost."""

import contextlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NoReturn

from big_retrieval.errors import UserError
from big_retrieval.runtime import messages

log = logging.getLogger(__name__)
RETRYABLE = 75  # exit status: nothing wrong with the command, start it again (EX_TEMPFAIL)
WORD = 2048  # bytes that `broadcast` carries
LOST = re.compile(r"gloo|nccl|coordination|heartbeat|barrier|UNAVAILABLE|DEADLINE|connection", re.I)


def join(asked: bool) -> tuple[int, int]:
    """Connects the processes of a run, if there are several.

    Args:
      asked: whether the platform (TPU pod, SLURM, Open MPI) tells which processes there are. If
        not, the variables JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID do, if they
        are set.

    Returns:
      The number of this process and how many there are.

    Raises:
      UserError: the variable of the address is set, but not those of the numbers.
    """
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if address is None and not asked:
        return 0, 1
    count, number = _numbers() if address is not None else (None, None)
    import jax

    sys.excepthook = _end_at_once
    try:
        if address is None:
            jax.distributed.initialize()
        else:  # all is said, so that nothing of the platform must get mixed in
            jax.distributed.initialize(
                address, count, number, cluster_detection_method="deactivate"
            )
    except RuntimeError as problem:  # no other process came, or the port is taken
        first = str(problem).strip().partition("\n")[0]
        end(f"the processes did not find each other ({first[:300]}); start all of them again")
    messages.of_process(jax.process_index())
    return jax.process_index(), jax.process_count()


def _numbers() -> tuple[int, int]:
    try:
        count, number = int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"])
    except (KeyError, ValueError):
        raise UserError(
            "JAX_COORDINATOR_ADDRESS is set, so JAX_NUM_PROCESSES and JAX_PROCESS_ID must be, to "
            "whole numbers."
        ) from None
    if not 0 <= number < count:
        raise UserError(
            f"JAX_PROCESS_ID is {number} of JAX_NUM_PROCESSES {count}; it counts from 0."
        )
    return count, number


def barrier(place: str) -> None:
    """Waits for all processes of the run; does nothing with one process.

    Called where processes arrive at very different times, such as after a compilation. Without it,
    the next collective operation sets up the communication, which on CPUs gives up if a process
    arrives more than 30 s later.

    Args:
      place: a name, the same on all processes.
    """
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(place)


def broadcast(word: str) -> str:
    """Gives the first process's word to all processes, which all call this equally often.

    Args:
      word: of the first process; at most `WORD` bytes.
    """
    import numpy as np
    from jax.experimental import multihost_utils

    said = np.frombuffer(word.encode()[:WORD].ljust(WORD, b"\0"), np.uint8)
    heard = np.asarray(multihost_utils.broadcast_one_to_all(said), np.uint8).tobytes()
    return heard.rstrip(b"\0").decode(errors="replace")


def end(text: str) -> NoReturn:
    """Prints a sentence and ends this process with the status that asks for a new start."""
    log.error(f"{text}.")
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(RETRYABLE)


@contextlib.contextmanager
def retryable(processes: int, late: Callable[[], str]) -> Iterator[None]:
    """A context in which a failed collective operation ends the process with a sentence.

    A process that dies or stops makes the operations of the others fail, after some seconds to
    minutes and with an error of the communication library.

    Args:
      processes: of the run; with one this does nothing.
      late: says which process is the cause.
    """
    if processes == 1:
        yield
        return
    import jax

    try:
        yield
    except jax.errors.JaxRuntimeError as problem:
        first = str(problem).strip().partition("\n")[0]
        if not LOST.search(first):
            raise
        end(f"another process is lost, {late()} ({first[:300]})")


def _end_at_once(kind: type[BaseException], value: BaseException, tb: TracebackType | None) -> None:
    """Ends a failed process without jax's farewell, which waits minutes for the others."""
    with contextlib.suppress(OSError, ValueError):  # whatever the screen does, the process ends
        traceback.print_exception(kind, value, tb)
        sys.stderr.flush()
        sys.stdout.flush()
    os._exit(1)
