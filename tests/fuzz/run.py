"""Runs cases in child processes: python -m tests.fuzz.run --count=2000000 --seed=0

If a child dies (a crash in a C decoder, too much memory or time), its case is a failure, and a new
child continues after it. Failures are printed at once, a summary at the end; the exit status is 1
after a failure. `--case=N` runs one case in this process, with its traceback.
"""

import argparse
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from big_retrieval.runtime import activity as notes
from tests.fuzz import cases

BATCH = 100_000  # cases per child
MEMORY = 4 * 2**30  # maximum bytes of addresses of a child
SECONDS = 20.0  # maximum CPU time of a case


def child(seed: int, start: int, stop: int, board: str) -> None:
    """Runs some cases; prints a JSON object for each failure, and one at the end."""
    notes.publish(board)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    usable = 0
    for number in range(start, stop):
        kind, data = cases.case(seed, number)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process
        with notes.reading(str(number)):
            try:
                usable += cases.run(kind, data, number)
            except BaseException as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                why = f"{type(error).__name__}: {error!s:.200} ({where.name}:{where.lineno})"
                print(json.dumps({"case": number, "kind": kind, "why": why}), flush=True)
    print(json.dumps({"usable": usable}), flush=True)


def batch(seed: int, start: int, stop: int, failures: list[dict]) -> int:
    """Runs cases in children, a new one after a case that ended a child; counts usable ones."""
    usable = 0
    while start < stop:
        with tempfile.TemporaryDirectory() as folder:
            board = Path(folder) / "board"
            command = [sys.executable, "-m", "tests.fuzz.run", "--child", str(board)]
            command += [f"--seed={seed}", f"--start={start}", f"--count={stop - start}"]
            child = subprocess.run(command, capture_output=True, text=True)
            rows = [json.loads(line) for line in child.stdout.splitlines()]
            usable += sum(row["usable"] for row in rows if "usable" in row)
            new = [row for row in rows if "case" in row]
            killed = [int(n.place) for n in notes.read_notes(board) if n.place.isdigit()]
            if child.returncode:
                if not killed:
                    raise SystemExit(f"a child did not start: {child.stderr[-500:]}")
                why = f"exit {child.returncode}: {child.stderr[-500:]}"
                new.append({"case": killed[0], "why": why})
            for row in new:
                print(json.dumps(row), flush=True)
            failures += new
            if not child.returncode:
                break
            start = killed[0] + 1
    return usable


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=2_000_000)
    parser.add_argument("--case", type=int)
    parser.add_argument("--child", default="")
    flags = parser.parse_args()
    stop = flags.start + flags.count
    if flags.child:
        child(flags.seed, flags.start, stop, flags.child)
        return 0
    if flags.case is not None:
        kind, data = cases.case(flags.seed, flags.case)
        print(kind, data[:200], "usable:", cases.run(kind, data, flags.case))
        return 0
    failures: list[dict] = []
    usable, began = 0, time.monotonic()
    for start in range(flags.start, stop, BATCH):
        usable += batch(flags.seed, start, min(start + BATCH, stop), failures)
        seconds = time.monotonic() - began
        counts = f"{min(start + BATCH, stop):,} cases, {usable:,} usable, {len(failures)} failures"
        print(f"{counts}, {seconds:.0f} s", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
