"""`big_retrieval.main` with one process that fails; `launch/local.sh --module=` starts it.

The variable LATE has the process, the first step and the failure: `1:4:sleep`.
"""

import itertools
import os
import sys
import time
from typing import Any

from big_retrieval import commands
from big_retrieval.train import run

NUMBER, STEP, HOW = os.environ["LATE"].split(":")


def to_mesh(*args: Any) -> Any:
    if os.environ["JAX_PROCESS_ID"] == NUMBER and next(count) == int(STEP):
        if HOW == "sleep":
            time.sleep(10_000)
        if HOW == "raise":
            raise RuntimeError("a mistake in the code")
    return original(*args)


count = itertools.count(1)
original = run.TrainingRun.to_mesh
run.TrainingRun.to_mesh = to_mesh  # type: ignore

if __name__ == "__main__":
    commands.run("train", sys.argv[1:])
