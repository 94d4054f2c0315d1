"""What a run has left after a power loss, tried on copies of the disk that the run writes to.

    python -m tests.train.power_loss --instants=30 --resume=30 --folder=/tmp/power_loss

A run writes to an ext4 file system in an image file and saves twice a second. At random instants
the image is copied: the copy holds what the file system has given to its disk, and nothing that is
only in memory. Each copy is mounted, which replays its journal as a start after a power loss does,
and searched for an intact checkpoint. Copied run folders are resumed to their end and compared with
a run that nothing happened to. Needs the right to mount. Prints one line of JSON in the end.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.io import manifest
from tests.helpers import ROOT, environment, results, rows, tiny

MEGABYTES = 64
EVERY, PACE = 10, 0.05  # steps between two saves, seconds that a step takes at least
SELDOM = 100_000  # steps between two saves of runs that nothing happens to
STEPS_OF_AN_INSTANT = 15  # that the run has time for while a copy is made and looked at
CHANGING = ("examples_per_second", "data_wait", "mfu")  # measured times differ between runs


def may_mount(folder: Path) -> bool:
    """Whether this process may make and mount an image file."""
    tools = all(shutil.which(name) for name in ("mkfs.ext4", "mount", "umount"))
    if not tools or not hasattr(os, "geteuid") or os.geteuid():
        return False
    try:
        with mounted(new_image(folder / "try.img"), folder / "try"):
            return True
    except subprocess.CalledProcessError:
        return False


def new_image(path: Path) -> Path:
    """An empty ext4 file system in a file."""
    with path.open("wb") as file:
        file.truncate(MEGABYTES * 2**20)
    subprocess.run(["mkfs.ext4", "-q", "-F", path], check=True, capture_output=True)
    return path


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    """An image as a folder; unmounting detaches the loop device, too."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def copy_of(image: Path, writer: int) -> bytes:
    """The disk at one instant, while process `writer` uses it.

    The process is stopped while its disk is read, since a copy whose beginning is older than its
    end is a state that no disk ever had. Stopping writes nothing back: a stopped process has only
    no more system calls. The kernel may go on writing what is old enough, as it may in the moment
    before a power loss, so the image is read until two copies agree.
    """
    os.kill(writer, signal.SIGSTOP)
    try:
        found = image.read_bytes()
        while found != (again := image.read_bytes()):
            found = again
        return found
    finally:
        os.kill(writer, signal.SIGCONT)


def finished_saves(workdir: Path) -> list[int]:
    """Steps whose save has returned: one save begins after the one before has ended."""
    root = workdir / "checkpoints"
    known = [int(path.name) for path in root.iterdir()] if root.is_dir() else []
    return [step for step in manifest.complete_steps(root) if step < max(known)]


def train(workdirs: Sequence[Path], steps: int, pace: float) -> None:
    """Trains or resumes runs in this process.

    Args:
      workdirs: of the runs, one after the other.
      steps: of a run.
      pace: seconds that a step takes at least, with frequent saves; 0: as fast as it goes.
    """
    from big_retrieval.train import loop, run

    original = run.TrainingRun.to_mesh

    def slowly(*args: Any) -> Any:
        time.sleep(pace)
        return original(*args)

    run.TrainingRun.to_mesh = slowly
    every = EVERY if pace else SELDOM
    for workdir in workdirs:
        loop.train(tiny(total_steps=steps, checkpoint_every=every, report=False), workdir)


def started(workdirs: Sequence[Path], steps: int, pace: float) -> subprocess.Popen[bytes]:
    """`train` in a process of its own."""
    flags = [f"--steps={steps}", f"--pace={pace}", "--train", *map(str, workdirs)]
    command = [sys.executable, "-m", "tests.train.power_loss", *flags]
    log = workdirs[0].parent.with_suffix(".log").open("ab")
    with log:
        return subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=log, stderr=log)


def look(image: Path, folder: Path, kept: Path | None) -> int | None:
    """The newest intact step after a power loss; copies the run folder to `kept` if it is given."""
    with mounted(image, folder) as disk:
        try:
            found = int(manifest.newest_intact(disk / "run" / "checkpoints").name)
        except UserError:
            return None
        if kept is not None:
            shutil.copytree(disk / "run", kept)
        return found


def trajectory(workdir: Path) -> tuple[Any, str]:
    """The logged rows without measured times, and the fingerprint of the parameters."""
    logged = [{k: v for k, v in row.items() if k not in CHANGING} for row in rows(workdir)]
    return logged, results(workdir)["params_sha256"]


def attack(folder: Path, instants: int, resume: int, rng: random.Random) -> dict[str, Any]:
    """Runs, copies, looks, resumes, compares.

    Returns:
      Counts: instants; those with an intact checkpoint; those where it is not older than the last
      finished save; resumed runs; those that are identical with the whole run. And the steps.
    """
    folder.mkdir(parents=True, exist_ok=True)
    image, steps = new_image(folder / "disk.img"), STEPS_OF_AN_INSTANT * instants + 50
    copies = sorted(rng.sample(range(instants), resume))
    found, kept = [], []
    with mounted(image, folder / "disk") as disk:
        process = started([disk / "run"], steps, PACE)
        try:
            while not finished_saves(disk / "run"):
                if process.poll() is not None:
                    raise RuntimeError(f"the run has ended; see {folder}/disk.log.")
                time.sleep(0.02)
            for instant in range(instants):
                time.sleep(rng.uniform(0.1, 0.6))
                saved = finished_saves(disk / "run")[-1]
                if process.poll() is not None:
                    raise RuntimeError("the run has ended too early: give it more steps.")
                (folder / "copy.img").write_bytes(copy_of(image, process.pid))
                if instant in copies:
                    kept.append(folder / f"resumed{instant}")
                target = kept[-1] if instant in copies else None
                step = look(folder / "copy.img", folder / "copy", target)
                print(f"instant {instant + 1}: saved {saved}, found {step}", file=sys.stderr)
                found.append((saved, step))
        finally:
            process.kill()
            process.wait()
    there = [path for path in kept if path.exists()]
    if there and started([folder / "whole", *there], steps, 0).wait():
        raise RuntimeError(f"a resumed run failed; see {folder.with_suffix('.log')}.")
    same = [trajectory(path) == trajectory(folder / "whole") for path in there]
    return {
        "instants": len(found),
        "intact": sum(step is not None for _, step in found),
        "not_older": sum(step is not None and step >= saved for saved, step in found),
        "resumed": len(there),
        "identical": sum(same),
        "found": found,
    }


def main() -> None:
    """Reads the flags, attacks, and prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instants", type=int, default=30)
    parser.add_argument("--resume", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--train", type=Path, nargs="+", help="no attack: train these run folders")
    given = parser.parse_args()
    if given.train:
        train(given.train, given.steps, given.pace)
        return
    rng = random.Random(given.seed)
    print(json.dumps(attack(given.folder, given.instants, given.resume, rng)), flush=True)


if __name__ == "__main__":
    main()
