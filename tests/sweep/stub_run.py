"""A run without jax, for big_retrieval.main or evaluate; `--config.mode=` sets its outcome."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from big_retrieval.errors import UserError
from big_retrieval.runtime.locks import Lock, in_folder

STEP = "step   1/200  loss 1.2500  100 examples/s  data wait 0.0%  eta 1:05"


def main() -> None:
    flags = dict(arg.removeprefix("--").split("=", 1) for arg in sys.argv[1:] if "=" in arg)
    evaluates = sys.argv[1] == "evaluate"
    folder = Path(flags["out" if evaluates else "workdir"])
    mode, seed = flags["config.mode"], int(flags["config.seed"])
    if (folder / "repaired").exists():
        mode = "finish"
    try:
        Lock(in_folder(folder), output=folder).acquire()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        os._exit(2)

    def save(*_: object) -> None:
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
