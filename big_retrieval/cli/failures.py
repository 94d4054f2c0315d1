"""End of a command after an error: a message and status 2, or a traceback if it is a bug."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.io.space import lacks_space, no_space
from big_retrieval.runtime import locks
from big_retrieval.runtime.sigterm import unwinding_on_sigterm

log = logging.getLogger(__name__)

REMEDIES = {  # part of a message of jax -> remedy
    "Unable to initialize backend": "unset the variable JAX_PLATFORMS, or set it to cpu.",
    "coordinator_address should be": "--distributed finds no cluster here; leave it out.",
}


def guarded(main: Callable[[], Any]) -> None:
    """Calls `main`; an error of the user or the machine ends the process with its message."""
    try:
        main()
        sys.stdout.flush()  # raises here if the disk is full
    except UserError as problem:
        fail(problem)
    except KeyboardInterrupt:
        fail(UserError("interrupted."))
    except Exception as problem:
        if lacks_space(problem):
            fail(no_space(problem))
        if isinstance(problem, OSError) and problem.filename is not None:
            fail(UserError(f"{problem.filename}: {problem.strerror}."))
        first = str(problem).strip().partition("\n")[0]
        remedy = next((text for sign, text in REMEDIES.items() if sign in first), None)
        if remedy:
            fail(UserError(f"{first.rstrip('.')}: {remedy}"))
        if "RESOURCE_EXHAUSTED" not in str(problem):
            raise
        fail(
            UserError(
                f"out of device memory ({first}): encode fewer rows at a time with "
                "config.microbatch, set config.towers.<tower>.remat=block, or shard parameters "
                "with config.mesh.fsdp; --plan says what fits."
            )
        )


def fail(problem: Exception) -> None:
    """Logs the message and exits with status 2, without waiting for other threads."""
    log.error(str(problem))
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(2)


@contextlib.contextmanager
def owning(lock: Path, of: Path, flag: str = "--out", *, wait: bool = False) -> Iterator[None]:
    """Returns a context in which no other command writes to an output.

    On SIGTERM, the context removes half-written files and releases the lock.

    Args:
      lock: result of `locks.in_folder` or `locks.beside`.
      of: the output file or folder, as the user named it.
      flag: flag that names the output.
      wait: True waits for another process, as --wait does.

    Raises:
      UserError: another process writes to the output, it is not writable, or its disk is full.
    """
    with (
        unwinding_on_sigterm(),
        locks.Lock(lock, of=of, flag=flag, wait=wait, lost=fail),
    ):
        try:
            yield
        except Exception as problem:
            if isinstance(problem, UserError) or not lacks_space(problem):
                raise
            raise no_space(problem, of) from None
