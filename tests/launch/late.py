"""`big_retrieval.main` with one process that goes wrong; `launch/local.sh --module=` starts it.

The variable LATE says which process, from which step on, and how: `1:4:sleep`.
"""

import os
import time
from typing import Any

from big_retrieval import cli, main
from big_retrieval.train import run

NUMBER, STEP, HOW = os.environ["LATE"].split(":")


def next_batch(self: run.Batches) -> Any:
    """Counts the batches, and does what LATE says before one of them."""
    self.count = getattr(self, "count", 0) + 1  # type: ignore[attr-defined]
    if os.environ["JAX_PROCESS_ID"] == NUMBER and self.count == int(STEP):  # type: ignore
        if HOW == "sleep":
            time.sleep(10_000)
        if HOW == "raise":
            raise RuntimeError("a mistake in the code")
    return original(self)


original = run.Batches.__next__
run.Batches.__next__ = next_batch

if __name__ == "__main__":
    cli.run(main.main)
