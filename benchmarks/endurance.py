"""What a long run holds on to: memory, threads, files, shared memory and processes over its steps.

    python -m benchmarks.endurance --steps=20000

A tiny model is trained on generated scenes with data workers, evaluations, checkpoints and
TensorBoard. A thread of the same process notes what the process holds every `--every` steps, and
the table comes at the end. Whatever grows with the number of steps is a leak.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Sample:
    """What a run holds at one moment.

    Attributes:
      step: finished steps.
      seconds: since the sampler started.
      rss: resident MiB of the process.
      children_rss: resident MiB of all its child processes together.
      threads: of the process.
      files: open file descriptors of the process, without shared memory: batches in flight vary.
      children: child processes.
      shm: entries of /dev/shm.
      arrays: arrays of jax that are alive.
    """

    step: int
    seconds: float
    rss: float
    children_rss: float
    threads: int
    files: int
    children: int
    shm: int
    arrays: int


def children_of(parent: int) -> list[int]:
    """All processes below a process (Linux)."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # ended in between
            continue
    found, layer = [], {parent}
    while layer:
        layer = {child for child, above in parents.items() if above in layer}
        found += layer
    return found


def resident(processes: Iterable[int]) -> float:
    """Resident MiB of some processes together; those that have ended count nothing."""
    pages = 0
    for process in processes:
        try:
            pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def open_files() -> int:
    """Number of open file descriptors of this process outside of /dev/shm."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed in between
            count += not os.readlink(link).startswith("/dev/shm/")
    return count


def sample(step: int, seconds: float) -> Sample:
    """What this process holds now."""
    import jax

    children = children_of(os.getpid())
    return Sample(
        step=step,
        seconds=round(seconds, 1),
        rss=round(resident([os.getpid()]), 1),
        children_rss=round(resident(children), 1),
        threads=len(os.listdir("/proc/self/task")),
        files=open_files(),
        children=len(children),
        shm=len(os.listdir("/dev/shm")),
        arrays=len(jax.live_arrays()),
    )


class Sampler:
    """A context that takes a sample whenever another `every` steps are finished."""

    def __init__(self, every: int) -> None:
        """Starts nothing yet."""
        self.samples: list[Sample] = []
        self._every = every
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        from big_retrieval.runtime import activity

        begin, following = time.monotonic(), self._every
        while not self._closed.wait(0.02):
            step = activity.PROGRESS.step
            if step >= following:
                self.samples.append(sample(step, time.monotonic() - begin))
                following = (step // self._every + 1) * self._every


def train(
    steps: int,
    every: int,
    workdir: Path,
    *,
    workers: int = 1,
    evaluations: int = 40,
    checkpoints: int = 80,
) -> list[Sample]:
    """Trains a tiny model with all that a run may have, and watches what the process holds.

    Args:
      steps: of the run.
      every: steps between two samples.
      workdir: the run folder.
      workers: processes that make batches.
      evaluations: of the run, at equal distances.
      checkpoints: of the run, at equal distances.
    """
    import jax

    from big_retrieval import config as configs
    from big_retrieval.config import recipe
    from big_retrieval.train.loop import train as run
    from configs import quickstart

    c = quickstart.get_config("runlocal")
    c.unlock()
    c.total_steps, c.batch_size, c.log_every = steps, 8, 5
    c.eval_every, c.checkpoint_every = steps // evaluations, steps // checkpoints
    c.data.count, c.loader.workers = 1000, workers
    c.tokenizer.vocab_size = 128
    for tower in c.towers.values():
        tower.update(width=16, depth=1, heads=2, mlp=32, class_tokens=2)
    for field in c.fields.values():
        field.head.dim = 4
    c.best_metric = ""
    c.evals = {
        "test": recipe.entry(configs.Retrieval(), data=configs.Scenes(split="test", count=40)),
        "shapes": recipe.entry(
            configs.ZeroShot(), data=configs.Scenes(split="shapes", count=40), label="shape"
        ),
    }
    with Sampler(every) as sampler:
        run(configs.load(c), workdir, jax.devices()[:1])
    return sampler.samples


def table(samples: list[Sample]) -> str:
    """The samples as Markdown."""
    names = [field.name for field in dataclasses.fields(Sample)]
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    for each in samples:
        lines.append("| " + " | ".join(f"{value:,}" for value in dataclasses.astuple(each)) + " |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=0, help="default: a twentieth of the steps")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--workdir", type=Path, help="default: a folder that is deleted")
    parser.add_argument("--json", action="store_true", help="print JSON as the last line")
    args = parser.parse_args()
    every = args.every or max(args.steps // 20, 1)
    with tempfile.TemporaryDirectory() as folder:
        workdir = args.workdir or Path(folder) / "run"
        samples = train(args.steps, every, workdir, workers=args.workers)
    print(table(samples))
    if args.json:
        print(json.dumps([dataclasses.asdict(each) for each in samples]))


if __name__ == "__main__":
    main()
