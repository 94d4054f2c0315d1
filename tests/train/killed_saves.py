"""Saves three checkpoints and a late evaluation, and ends at one file operation of the last.

    python -m tests.train.killed_saves FOLDER OPERATION

Prints `saved` and `recorded` as these are done, and the count of operations if none was fatal.
"""

import builtins
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from big_retrieval.train.checkpoint import Checkpoints

OPERATIONS = ("open", "replace", "rename", "unlink", "rmdir", "mkdir", "fsync", "link")
FILES = {"config.json": b"{}\n", "tokenizer.json": b"{}\n"}


def save(checkpoints: Checkpoints, step: int) -> None:
    """Saves a state that holds its step, not evaluated."""
    meta = {"step": step, "evaluated": False, "metrics": {}}
    checkpoints.save(step, {"x": jax.device_put(jnp.full(8, step))}, meta)
    checkpoints.wait()


def end_at(fatal: int) -> Callable[[], int]:
    """Ends this process instead of the file operation with this index; returns a counter."""
    count = 0

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal count
            if count == fatal:
                os._exit(9)
            count += 1
            return original(*args, **more)

        return call

    for name in OPERATIONS:
        setattr(os, name, wrap(getattr(os, name)))
    io.open = builtins.open = wrap(io.open)
    return lambda: count


def main(folder: str, fatal: str) -> None:
    """Runs the program."""
    checkpoints = Checkpoints(Path(folder), files=FILES)
    save(checkpoints, 1)
    save(checkpoints, 2)
    count = end_at(int(fatal))
    save(checkpoints, 3)  # and prunes step 1
    os.write(1, b"saved\n")
    checkpoints.record_evaluation(3, {"recall": 0.5})
    os.write(1, b"recorded\n")
    os.write(1, f"{count()}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
