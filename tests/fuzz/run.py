"""Runs cases in child processes: python -m tests.fuzz.run --count=2000000 --seed=0

A child that dies (a crash in a decoder of C, too much memory, too much time) is noticed, its case
named and the next case run. Prints failures as they come and a summary at the end; the exit status
is 1 where there was a failure. `--case=N` runs one case in this process, with its traceback.
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

BATCH = 100_000  # cases of a child
MEMORY = 4 * 2**30  # bytes of addresses that a child may have
SECONDS = 20.0  # of computing that one case may take


def child(seed: int, start: int, stop: int, board: str) -> None:
    """Runs some cases; prints a JSON object for each failure, and one at the end."""
    notes.publish(board)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    usable, slowest, largest = 0, (0.0, -1), (0, -1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(start, stop):
        kind, data = cases.case(seed, number)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process
        with notes.reading(str(number)):
            try:
                usable += cases.run(kind, data, number)
            except BaseException as problem:
                where = traceback.extract_tb(problem.__traceback__)[-1]
                why = f"{type(problem).__name__}: {problem!s:.200} ({where.name}:{where.lineno})"
                print(json.dumps({"case": number, "kind": kind, "why": why}), flush=True)
        slowest = max(slowest, (round(time.process_time() - began, 3), number))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        largest, before = max(largest, (peak - before, number)), peak
    print(json.dumps({"usable": usable, "slowest": slowest, "largest": largest}), flush=True)


def batch(seed: int, start: int, stop: int, failures: list[dict]) -> list[dict]:
    """Runs cases in children, a new one behind a case that ended a child; their summaries."""
    found = []
    while start < stop:
        with tempfile.TemporaryDirectory() as folder:
            board = Path(folder) / "board"
            command = [sys.executable, "-m", "tests.fuzz.run", "--child", str(board)]
            command += [f"--seed={seed}", f"--start={start}", f"--count={stop - start}"]
            with (Path(folder) / "errors").open("w+") as errors:
                done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
                lines = done.communicate()[0].splitlines()
                errors.seek(0)
                last = errors.read()[-500:]
                printed = errors.tell()
            rows = [json.loads(line) for line in lines]
            failures += [row for row in rows if "case" in row]
            found += [row | {"stderr": printed} for row in rows if "slowest" in row]
            for row in failures[-len(rows) :] if rows else ():
                if "case" in row:
                    print(json.dumps(row), flush=True)
            if done.returncode == 0:
                return found
            killed = [int(n.place) for n in notes.published(board) if n.place.isdigit()]
            if not killed:
                raise SystemExit(f"a child did not start: {last}")
            number = killed[0]
            row = {"case": number, "why": f"exit {done.returncode}", "said": last}
            failures.append(row)
            print(json.dumps(row), flush=True)
            start = number + 1
    return found


def main() -> int:
    """Runs what the flags say."""
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
    rows, began = [], time.monotonic()
    for start in range(flags.start, stop, BATCH):
        rows += batch(flags.seed, start, min(start + BATCH, stop), failures)
        seconds = time.monotonic() - began
        print(f"{min(start + BATCH, stop):,} cases, {len(failures)} failures, {seconds:.0f} s")
        sys.stdout.flush()
    best = {key: max(tuple(row[key]) for row in rows) for key in ("slowest", "largest")}
    summary = {"cases": flags.count, "usable": sum(row["usable"] for row in rows), **best}
    print(json.dumps(summary | {"stderr_bytes": sum(row["stderr"] for row in rows)}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
