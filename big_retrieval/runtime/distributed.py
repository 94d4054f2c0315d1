"""The processes of one run: how they connect, and how they end when one is lost."""

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
RETRYABLE = 75  # exit status: the command is correct, start it again (EX_TEMPFAIL)
WORD = 2048  # maximum bytes of `broadcast`
LOST = re.compile(r"gloo|nccl|coordination|heartbeat|barrier|UNAVAILABLE|DEADLINE|connection", re.I)


def join(asked: bool) -> tuple[int, int]:
    """Connects the processes of a run, if there are several.

    Args:
      asked: let the platform (TPU pod, SLURM, Open MPI) name the processes. Otherwise the variables
        JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID do, if they are set.

    Returns:
      The index of this process and the number of processes.

    Raises:
      UserError: the variable of the address is set without the other two.
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
        else:  # the variables are complete, so that no platform may be detected
            jax.distributed.initialize(
                address, count, number, cluster_detection_method="deactivate"
            )
    except RuntimeError as error:  # no other process came, or the port is taken
        first = str(error).strip().partition("\n")[0]
        end(f"the processes did not find each other ({first[:300]}); start all of them again")
    messages.of_process(jax.process_index())
    return jax.process_index(), jax.process_count()


def _numbers() -> tuple[int, int]:
    try:
        count, number = int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"])
    except (KeyError, ValueError):
        raise UserError(
            "JAX_COORDINATOR_ADDRESS is set. Set JAX_NUM_PROCESSES and JAX_PROCESS_ID, too, to "
            "whole numbers."
        ) from None
    if not 0 <= number < count:
        raise UserError(
            f"JAX_PROCESS_ID is {number}. Use 0 to JAX_NUM_PROCESSES - 1 = {count - 1}."
        )
    return count, number


def barrier(place: str) -> None:
    """Waits for all processes of the run; `place` is a name, the same on all processes."""
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(place)


def broadcast(word: str) -> str:
    """Returns the first process's word, of at most `WORD` bytes; all processes must call this."""
    import numpy as np
    from jax.experimental import multihost_utils

    sent = np.frombuffer(word.encode()[:WORD].ljust(WORD, b"\0"), np.uint8)
    received = np.asarray(multihost_utils.broadcast_one_to_all(sent), np.uint8).tobytes()
    return received.rstrip(b"\0").decode(errors="replace")


def end(text: str) -> NoReturn:
    """Logs an error and ends this process with the status `RETRYABLE`."""
    log.error(f"{text}.")
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(RETRYABLE)


@contextlib.contextmanager
def retryable(processes: int, late: Callable[[], str]) -> Iterator[None]:
    """A context in which a failed collective operation ends the process with a message.

    When a process dies or stops, the operations of the others fail after some seconds to minutes
    with an error of the communication library. With one process, this does nothing.
    """
    if processes == 1:
        yield
        return
    import jax

    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        first = str(error).strip().partition("\n")[0]
        if not LOST.search(first):
            raise
        end(f"another process is lost, {late()} ({first[:300]})")


def _end_at_once(kind: type[BaseException], value: BaseException, tb: TracebackType | None) -> None:
    """Ends a failed process at once; jax would wait minutes for the others."""
    with contextlib.suppress(OSError, ValueError):  # the process ends even without a screen
        traceback.print_exception(kind, value, tb)
        sys.stderr.flush()
        sys.stdout.flush()
    os._exit(1)
