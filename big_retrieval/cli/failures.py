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

REMEDIES = {  # part of jax's message -> remedy
    "Unable to initialize backend": "unset the variable JAX_PLATFORMS, or set it to cpu.",
    "coordinator_address should be": "--distributed finds no cluster here; leave it out.",
}


def guarded(main: Callable[[], Any]) -> None:
    """Calls `main`; an error of the user or the machine ends the process with its message."""
    try:
        main()
        sys.stdout.flush()  # raises here if the disk is full
    except UserError as error:
        fail(error)
    except KeyboardInterrupt:
        fail(UserError("interrupted."))
    except Exception as error:
        if lacks_space(error):
            fail(no_space(error))
        if isinstance(error, OSError) and error.filename is not None:
            fail(UserError(f"{error.filename}: {error.strerror}."))
        first = str(error).strip().partition("\n")[0]
        remedy = next((text for sign, text in REMEDIES.items() if sign in first), None)
        if remedy:
            fail(UserError(f"{first.rstrip('.')}: {remedy}"))
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        fail(
            UserError(
                f"out of device memory ({first}): encode fewer rows at a time with "
                "config.microbatch, set config.towers.<tower>.remat=block, or shard parameters "
                "with config.mesh.fsdp. --plan prints the memory of a config."
            )
        )


def fail(error: Exception) -> None:
    """Logs the message and exits with status 2, without waiting for other threads."""
    log.error(str(error))
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(2)


@contextlib.contextmanager
def owning(lock: Path, output: Path, flag: str = "--out", *, wait: bool = False) -> Iterator[None]:
    """A context that holds the lock of an output; on SIGTERM, it cleans up and releases it."""
    with (
        unwinding_on_sigterm(),
        locks.Lock(lock, output=output, flag=flag, wait=wait, lost=fail),
    ):
        try:
            yield
        except Exception as error:
            if isinstance(error, UserError) or not lacks_space(error):
                raise
            raise no_space(error, output) from None
