"""Search for changes to a config with which it fits into memory or is faster.

A compilation takes minutes, so the search is short. For each of a few settings of remat, mesh and
exchange, it finds the largest micro-batch that fits by interpolating the memory.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from big_retrieval.compiled.figures import total_cycles
from big_retrieval.config import Config
from big_retrieval.runtime.chips import gib

Say = Callable[[str], None]
MOST_TRIALS = 3  # compilations for one setting


@dataclass(frozen=True)
class Trial:
    """A config that was compiled."""

    config: Config
    flags: list[str]  # the changes, for the command line; empty for the config as it is
    program: dict[str, Any]  # figures of `compiling.compile_plan`
    operations: dict[str, int]  # of `cost.flops`
    times: dict[str, float | None]  # of `step_figures.step_times`
    fits: bool | None  # False if the step needs more memory than usable; None if that is unknown

    @property
    def rank(self) -> tuple[float, ...]:
        """Sort key, best first: fits, shorter estimated step, fewer operations."""
        step = self.times["step"]
        # Among equals, larger slices fill the chip better.
        rows = self.config.microbatch or self.config.batch_size
        return (not self.fits, step or 0.0, sum(self.operations.values()), -rows, len(self.flags))

    def summary(self, batch_size: int) -> dict[str, Any]:
        """Returns the entry of plan.json."""
        step = self.times["step"]
        return {
            "flags": self.flags,
            "fits": self.fits,
            "total_bytes": self.program["total_bytes"],
            "cycles": self.program["cycles"],
            "flops_per_step": sum(self.operations.values()),
            "step_seconds": step,
            "mfu": self.times["mfu"],
            "pairs_per_second": None if step is None else batch_size / step,
            "compile_seconds": self.program["seconds"],
        }


Try = Callable[[Config, list[str]], Trial]


def suggestions(
    current: Trial, compile_trial: Try, rows: int, limit: float, say: Say
) -> list[Trial]:
    """Returns the compiled settings that fit, best first, including the current one.

    Args:
      rows: number of devices that rows are sharded over.
      limit: usable bytes of a device.
      say: called with a line about each trial.
    """
    search = _Search(compile_trial, rows, limit, say, [])
    _tell(current, say)
    unchanged, switched = (current.config, []), _remat(current.config)
    if not current.fits or current.config.microbatch:
        search.largest(*unchanged, done=current)
    is_block = switched is not None and switched[1][0].endswith("=block")
    if switched is not None and not (current.fits and is_block):
        size = current.config.microbatch or current.config.batch_size
        search.largest(*switched, start=size if is_block else size // 8)
    for change in (_fsdp, _ring):  # they cost traffic: only if nothing else fits
        if not current.fits and not any(trial.fits for trial in search.trials):
            less = _remat(current.config, "block") or unchanged
            changed = change(*less, rows)
            if changed is not None:
                search.largest(*changed)
    if not search.trials:
        say("tried no other setting: none is expected to fit and to be faster")
    fitting = [trial for trial in (current, *search.trials) if trial.fits]
    return sorted(fitting, key=lambda trial: trial.rank)


@dataclass(frozen=True)
class _Search:
    compile_trial: Try
    rows: int
    limit: float
    say: Say
    trials: list[Trial]

    def largest(
        self, config: Config, flags: list[str], done: Trial | None = None, start: int | None = None
    ) -> None:
        """Compiles at most `MOST_TRIALS` micro-batches to find the largest that fits."""
        sizes = list(micro_batches(config, self.rows))
        points: dict[int, Trial] = {}
        if done is not None:
            points[config.microbatch or config.batch_size] = done
        size = min(sizes, key=lambda x: abs(x - (start or sizes[0])))
        for _ in range(MOST_TRIALS):
            if points:
                size = _next(points, sizes, self.limit)
            if size is None or size in points:
                return
            changed = dataclasses.replace(
                config, microbatch=None if size == config.batch_size else size
            )
            flag = f"--config.microbatch={changed.microbatch}"
            extra = [flag] if changed.microbatch != config.microbatch else []
            self.say(f"trying {' '.join([*flags, *extra]) or 'the config as it is'} ...")
            points[size] = self.compile_trial(changed, [*flags, *extra])
            self.trials.append(points[size])
            _tell(points[size], self.say)


def _next(points: dict[int, Trial], sizes: list[int], limit: float) -> int | None:
    """Returns the largest untried size that is predicted to fit; None ends the search.

    The memory is predicted to be linear in the size: a line through two trials, or through one
    trial and, at size 0, the bytes of the arguments.
    """
    fitting = [size for size, trial in points.items() if trial.fits]
    failing = [size for size, trial in points.items() if not trial.fits]
    low, high = max(fitting, default=0), min(failing, default=1 << 62)
    between = [size for size in sizes if size not in points and low < size < high]
    if not between:
        return None
    totals = {size: trial.program["total_bytes"] for size, trial in points.items()}
    small, large = min(totals), max(totals)
    state = points[large].program["argument_bytes"] or 0
    slope = (totals[large] - state) / large
    if small != large:
        slope = max(0.0, (totals[large] - totals[small]) / (large - small))
    predicted = {size: totals[small] + slope * (size - small) for size in between}
    good = [size for size in between if predicted[size] <= limit]
    # A prediction that nothing fits is tested once, on the smallest size.
    return max(good) if good else (None if fitting else min(between))


def micro_batches(config: Config, rows: int) -> Iterator[int]:
    """Yields sizes of micro-batches that do not change the training, the whole batch first."""
    yield config.batch_size
    normed = [
        module_config
        for module_config in config.towers_and_heads().values()
        if module_config.normed
    ]
    if any(module_config.whole_batch or module_config.by_slice for module_config in normed):
        return
    size = 1 << (config.batch_size.bit_length() - 1)
    while size >= rows:
        if config.batch_size % size == 0 and size % rows == 0 and size != config.batch_size:
            yield size
        size //= 2


def _tell(trial: Trial, say: Say) -> None:
    program, times = trial.program, trial.times
    speed = f"{sum(trial.operations.values()) / 1e12:,.4g} TFLOP"
    if times["step"] is not None and times["mfu"] is not None:
        speed = f"{total_cycles(program):.3g} cycles, {times['step']:.3g} s, MFU {times['mfu']:.0%}"
    fits = "" if trial.fits is None else ", fits" if trial.fits else ", does not fit"
    say(f"  {gib(program['total_bytes'])}{fits}; {speed} (compiled in {program['seconds']:.0f} s)")


def _remat(config: Config, value: str | None = None) -> tuple[Config, list[str]] | None:
    """Returns the config with another remat in all towers; None switches "none" and "block"."""
    towers: dict[str, Any] = {n: t for n, t in config.towers.items() if hasattr(t, "remat")}
    if value is None:
        value = "block" if all(t.remat == "none" for t in towers.values()) else "none"
    changes = {
        n: dataclasses.replace(t, remat=value) for n, t in towers.items() if t.remat != value
    }
    if not changes:
        return None
    flags = [f"--config.towers.{name}.remat={value}" for name in changes]
    return dataclasses.replace(config, towers={**config.towers, **changes}), flags


def _fsdp(config: Config, flags: list[str], rows: int) -> tuple[Config, list[str]] | None:
    if config.mesh.fsdp == rows:
        return None
    mesh = dataclasses.replace(config.mesh, data=1, fsdp=rows)
    more = ["--config.mesh.data=1", f"--config.mesh.fsdp={rows}"]
    return dataclasses.replace(config, mesh=mesh), [*flags, *more]


def _ring(config: Config, flags: list[str], rows: int) -> tuple[Config, list[str]] | None:
    losses: dict[str, Any] = {
        n: x for n, x in config.losses.items() if getattr(x, "exchange", "ring") != "ring"
    }
    if rows == 1 or not losses:
        return None
    more = [f"--config.losses.{name}.exchange=ring" for name in losses]
    changed = {name: dataclasses.replace(loss, exchange="ring") for name, loss in losses.items()}
    return dataclasses.replace(config, losses={**config.losses, **changed}), [*flags, *more]
