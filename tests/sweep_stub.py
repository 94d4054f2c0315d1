"""Stands for big_retrieval.main, or for evaluate, in the tests of sweeps: a run without jax.

`--config.mode=` says what becomes of it.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from big_retrieval.errors import UserError
from big_retrieval.runtime.locks import Lock, in_folder

STEP = "step   1/200  loss 1.2500  100 examples/s  data wait 0.0%  eta 1:05"


def main() -> None:
    """One run."""
    flags = dict(arg.removeprefix("--").split("=", 1) for arg in sys.argv[1:] if "=" in arg)
    evaluates = sys.argv[1] == "evaluate"
    folder = Path(flags["out" if evaluates else "workdir"])
    mode, seed = flags["config.mode"], int(flags["config.seed"])
    if (folder / "mended").exists():
        mode = "finish"
    try:
        Lock(in_folder(folder), of=folder).acquire()  # left to the one that comes next
    except UserError as problem:
        print(f"error: {problem}", file=sys.stderr)
        os._exit(2)

    def save(number: int, frame: FrameType | None) -> None:
        (folder / "saved").write_text("")
        print("stopped after step 1 of 200; to continue, repeat the same command", flush=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "deaf" else save)
    print(STEP, flush=True)
    (folder / "started").write_text(str(os.getpid()))
    if mode in ("wait", "deaf"):
        time.sleep(600)
    elif mode == "fail":
        raise RuntimeError("something broke")
    elif mode == "refuse":
        print("error: config.x is 3; it must be 4.", file=sys.stderr)
        os._exit(2)
    elif mode == "finish":
        results = {"retrieval/test/a/R@1": 0.5 + seed / 100, "seconds": 2.0}
        name = "evaluation.json" if evaluates else "results.json"
        (folder / name).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
