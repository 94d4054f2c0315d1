"""The processes of one run: how they connect, and how they end when one is lost."""

import contextlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NoReturn

from big_retrieval.errors import UserError
from big_retrieval.runtime import messages

log = logging.getLogger(__name__)
RETRYABLE = 75  # exit status: the command is correct, start it again (EX_TEMPFAIL)
WORD = 2048  # maximum bytes of `broadcast`
LOST = re.compile(r"gloo|nccl|coordination|heartbeat|barrier|UNAVAILABLE|DEADLINE|connection", re.I)


def join_processes(use_platform: bool) -> tuple[int, int]:
    """Connects the processes of a run; returns the index of this process and their number.

    Args:
      use_platform: let the platform (TPU pod, SLURM, Open MPI) name the processes if
        JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID are not set.
    """
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if address is None and not use_platform:
        return 0, 1
    options: dict[str, Any] = {}
    if address is not None:
        count, index = _count_and_index()
        options = {"num_processes": count, "process_id": index}
        options["cluster_detection_method"] = "deactivate"  # the variables are complete
    import jax

    sys.excepthook = _end_at_once
    try:
        jax.distributed.initialize(address, **options)
    except RuntimeError as error:  # no other process came, or the port is taken
        first = str(error).strip().partition("\n")[0]
        end(f"the processes did not find each other ({first[:300]}); start all of them again")
    messages.of_process(jax.process_index())
    return jax.process_index(), jax.process_count()


def _count_and_index() -> tuple[int, int]:
    try:
        count, index = int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"])
    except (KeyError, ValueError):
        raise UserError(
            "JAX_COORDINATOR_ADDRESS is set. Set JAX_NUM_PROCESSES and JAX_PROCESS_ID, too, to "
            "whole numbers."
        ) from None
    if not 0 <= index < count:
        raise UserError(f"JAX_PROCESS_ID is {index}. Use 0 to JAX_NUM_PROCESSES - 1 = {count - 1}.")
    return count, index


def barrier(name: str) -> None:
    """Waits for all processes of the run; `name` must be the same on all of them."""
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(name)


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


def _end_at_once(
    error_type: type[BaseException], value: BaseException, tb: TracebackType | None
) -> None:
    """Ends a failed process at once; jax would wait minutes for the others."""
    with contextlib.suppress(OSError, ValueError):  # the process ends even without a screen
        traceback.print_exception(error_type, value, tb)
        sys.stderr.flush()
        sys.stdout.flush()
    os._exit(1)
