"""Sweeps of stub runs, which start in milliseconds, and finished runs without a process."""

import csv
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.errors import UserError
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.runtime.lease import Observer
from big_retrieval.runtime.locks import in_folder
from big_retrieval.sweep import Entry, Sweep, runner, spec, table
from big_retrieval.sweep.check import check_all

STUB = "tests.sweep.stub_run"
QUICK = "configs/quickstart.py:runlocal"
START = """
import sys
from pathlib import Path
from big_retrieval.sweep import runner
from tests.sweep.stubs import STUB, Stubs
runner.MODULE = STUB
sys.exit(Stubs(Path(sys.argv[1]), *sys.argv[2:]).run())
"""


class Stubs:
    """A sweep with one stub run per mode and seed."""

    def __init__(self, folder: Path, *modes: str, seeds: int = 1) -> None:
        entries = [Entry(f"{i}-{mode}", "x.py", {"mode": mode}) for i, mode in enumerate(modes)]
        self.folder = folder
        self.sweep = Sweep(runs=entries, seeds=range(seeds), metrics=("*/R@1",))
        self.runs = spec.runs_of(self.sweep, folder)

    def run(self) -> int:
        return runner.run_all(self.runs, self.tables)

    def tables(self) -> str:
        return table.write_tables(self.sweep, self.runs, self.folder, "stubs")

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the sweep as a process of its own session, and waits until run 0 has started."""
        modes = [run.entry.overrides["mode"] for run in self.runs]
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(self.folder), *modes], stdout=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        self.wait_for_start()
        return process

    def wait_for_start(self) -> None:
        wait_for(self.runs[0].folder / "started")


def wait_for(path: Path) -> None:
    """Waits until another process has written a file."""
    end = time.monotonic() + 60
    while not path.exists() or not path.read_text():
        assert time.monotonic() < end, path
        time.sleep(0.01)


def in_use(folder: Path) -> bool:
    """Returns True if a process that lives holds the lock of a run folder."""
    return Observer(in_folder(folder)).look() == "alive"


def becomes_free(folder: Path) -> bool:
    """Returns True if the process of a run ends within 20 seconds."""
    end = time.monotonic() + 20
    while in_use(folder) and time.monotonic() < end:
        time.sleep(0.02)
    return not in_use(folder)


def refusal(sweep: Sweep, workdir: Path) -> str:
    """Returns the error of `check_all`."""
    with pytest.raises(UserError) as error:
        check_all(sweep, spec.runs_of(sweep, workdir))
    return str(error.value)


def fill(run: spec.SweepRun, **results: Any) -> None:
    """Writes the results of a run at once, as a run does."""
    run.folder.mkdir(parents=True, exist_ok=True)
    write_bytes(run.folder / "results.json", to_json(results))


def csv_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))
