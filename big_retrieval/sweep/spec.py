"""A sweep: configs with overrides, each run with several seeds.

A sweep file has a function `get_sweep(arg)`, as a config file has `get_config(arg)`:

    from big_retrieval.sweep import Entry, Sweep

    def get_sweep(arg: str = "") -> Sweep:
        rates = (1e-3, 2e-3)
        runs = [
            Entry(f"lr={rate:g}", "configs/quickstart.py:runlocal", {"optimizer.lr": rate})
            for rate in rates
        ]
        return Sweep(runs=runs, seeds=(0, 1, 2), metrics=("retrieval/test/*/R@1",))
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.runtime import locks

FOLDERS = (Path("configs/sweeps"), Path("configs/papers"))
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,=+-]{0,99}")
EVALUATE = re.compile(r"(--bm25|--untrained|--init=\S+)?")
RESERVED = ("results.csv", "results.md", "results.lock", "logs")  # other names in the folder
MAX_SEED = 2**31 - 1  # as in `checks`


@dataclass(frozen=True)
class Entry:
    """One configuration of a sweep."""

    name: str  # name of its folder and of its row in the table
    config: str  # config file with an optional argument, as for --config
    # Dotted keys of the configuration, such as "optimizer.lr", and their values
    overrides: Mapping[str, Any] = field(default_factory=dict)
    # Flag of `big-retrieval evaluate` for a row that is evaluated once and not trained: "--bm25",
    # "--untrained" or "--init=WEIGHTS"; "" trains
    evaluate: str = ""

    def __post_init__(self) -> None:
        name = self.name
        if not NAME.fullmatch(name) or name in RESERVED:
            raise UserError(
                f"Not a folder name: {name!r}. Use at most 100 letters, digits and _ . , = + -, "
                "and begin with a letter or digit."
            )
        if not EVALUATE.fullmatch(self.evaluate):
            raise UserError(
                f"{name}: evaluate is {self.evaluate!r}. Use --bm25, --untrained or --init=WEIGHTS."
            )
        for key in self.overrides:
            if key == "seed":
                raise UserError(f"{name}: overrides contain 'seed'. Use Sweep(seeds=...).")
            if key.startswith(("config.", "-")):
                near = key.lstrip("-").removeprefix("config.")
                raise UserError(f"{name}: overrides contain {key!r}. Write {near!r}.")

    def flags(self) -> list[str]:
        """Returns the configuration as flags of `big_retrieval.main`."""
        values = [f"--config.{key}={value}" for key, value in self.overrides.items()]
        return [f"--config={self.config}", *values]


@dataclass(frozen=True)
class Sweep:
    """Runs of every entry with every seed."""

    runs: Sequence[Entry]  # in the order in which they are run
    seeds: Sequence[int] = (0,)  # values of `config.seed` for each entry
    # Patterns (`*`, `?`) of the metrics in the table, in this order
    metrics: Sequence[str] = ("*/R@1", "*/accuracy")
    # A paper's numbers by entry and metric (see `published`), shown next to the measured ones.
    # Recalls and accuracies are in percent, as in the table.
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # Entry -> indices of evaluations during its runs, from 1. The table has a row `NAME@INDEX` for
    # each, after the row of the entry. `paper` may use these names.
    evaluations: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("runs", "seeds", "metrics"):
            values = getattr(self, key)
            if isinstance(values, str) or not list(values):
                raise UserError(f"{key} is {values!r:.40}. Give a list of at least one element.")
        names = [entry.name.lower() for entry in self.runs]  # some file systems ignore case
        if wrong := [seed for seed in self.seeds if not 0 <= seed <= MAX_SEED]:
            raise UserError(f"Seed {wrong[0]} is not from 0 to {MAX_SEED}.")
        for label, values in (("seed", self.seeds), ("name", names)):
            if repeated := [value for value, count in Counter(values).items() if count > 1]:
                raise UserError(f"Duplicate {label} {repeated[0]!r}. Use each {label} once.")
        self._check_paper()

    def _check_paper(self) -> None:
        names = {entry.name for entry in self.runs}
        rows = names | {
            f"{name}@{i}" for name, indices in self.evaluations.items() for i in indices
        }
        for key, available in (("evaluations", names), ("paper", rows)):
            if unknown := sorted(set(getattr(self, key)) - available):
                raise UserError(f"{key} has {unknown[0]!r}, but no run has this name.")
        for row, metrics in self.paper.items():
            for metric in metrics:
                if not any(fnmatchcase(metric, pattern) for pattern in self.metrics):
                    raise UserError(
                        f"paper has {metric!r} in the row {row!r}, but no pattern of metrics "
                        "matches it. Add a pattern."
                    )


def published(
    columns: Sequence[str], rows: Mapping[str, str], unit: float = 1.0
) -> dict[str, dict[str, float]]:
    """Returns the numbers of a paper's table, for `Sweep.paper`.

    Args:
      columns: names of metrics, one per column.
      rows: name of an entry -> its row as printed: numbers separated by spaces, "-" for no number.
      unit: factor of the printed numbers, such as 0.01 for nDCG in percent.
    """
    out = {}
    for name, row in rows.items():
        cells = row.split()
        if len(cells) != len(columns):
            raise UserError(f"{name} has {len(cells)} numbers for {len(columns)} columns.")
        pairs = zip(columns, cells, strict=True)
        out[name] = {metric: float(cell) * unit for metric, cell in pairs if cell != "-"}
    return out


@dataclass(frozen=True)
class SweepRun:
    """One entry with one seed."""

    number: int  # index in the sweep, for --only and SLURM arrays
    entry: Entry
    seed: int
    folder: Path  # run folder

    @property
    def name(self) -> str:
        """Name in messages, e.g. `lr=0.001/seed_2`."""
        return f"{self.entry.name}/seed_{self.seed}"

    @property
    def results(self) -> Path:
        """File that exists when the run is finished."""
        return self.folder / ("evaluation.json" if self.entry.evaluate else "results.json")

    @property
    def lock(self) -> Path:
        """Lock of the process that writes the results."""
        return locks.beside(self.results) if self.entry.evaluate else locks.in_folder(self.folder)

    def config_flags(self) -> list[str]:
        """Returns the flags of the configuration."""
        return [*self.entry.flags(), f"--config.seed={self.seed}"]

    def flags(self) -> list[str]:
        """Returns the arguments of `big-retrieval train`, or of `big-retrieval evaluate`."""
        config, *overrides = self.config_flags()
        if self.entry.evaluate:
            return [config, f"--out={self.folder}", self.entry.evaluate, *overrides]
        return [config, f"--workdir={self.folder}", *overrides]


def inputs_sha256(config: Mapping[str, Any], flag: str) -> str:
    """Returns the SHA-256 of a plain config and a flag of `big-retrieval evaluate`."""
    return hashlib.sha256(json.dumps([config, flag], sort_keys=True).encode()).hexdigest()


def runs_of(sweep: Sweep, workdir: Path) -> list[SweepRun]:
    """Returns all runs in order: the first entry with every seed, then the second entry."""
    pairs = [(entry, seed) for entry in sweep.runs for seed in seeds_of(sweep, entry)]
    return [
        SweepRun(number, entry, seed, workdir / entry.name / f"seed_{seed}")
        for number, (entry, seed) in enumerate(pairs)
    ]


def seeds_of(sweep: Sweep, entry: Entry) -> Sequence[int]:
    """Returns the seeds of an entry: only the first one if it is not trained."""
    return sweep.seeds[:1] if entry.evaluate else sweep.seeds


def select_runs(runs: Sequence[SweepRun], only: str) -> list[SweepRun]:
    """Returns the runs that --only names by indices and ranges, e.g. `0-2,5`; empty for all."""
    if not only:
        return list(runs)
    indices: set[int] = set()
    for term in only.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", term)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < len(runs):
            raise UserError(
                f"--only is {only!r}. Use numbers and ranges such as 0-2,5, from 0 to "
                f"{len(runs) - 1}; --list shows them."
            )
        indices.update(range(first, last + 1))
    return [run for run in runs if run.number in indices]


def load(text: str) -> Sweep:
    """Reads a sweep file with an optional argument after a colon, e.g. `sweeps/X.py:runlocal`."""
    from big_retrieval.cli import shipped  # cli defines flags, which a program may define, too
    from big_retrieval.cli.config_file import can_import_configs, mistake_in
    from big_retrieval.config import registry

    name, _, arg = shipped.resolve(text).partition(":")
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        file = shipped.nearest_file(path, *FOLDERS)
        hint = f"did you mean {file}?" if file else "use FILE.py or FILE.py:ARGUMENT."
        raise UserError(f"--sweep: no file {name!r}; {hint}")
    try:
        can_import_configs(path)
        module = registry.run_file(path, "sweep")
        sweep = module.get_sweep(arg) if hasattr(module, "get_sweep") else None
    except Exception as error:
        raise UserError(mistake_in(str(path), error)) from error
    if not hasattr(module, "get_sweep"):
        raise UserError(
            f"{path} has no function get_sweep(arg). See configs/sweeps/quickstart_seeds.py."
        )
    if not isinstance(sweep, Sweep):
        raise UserError(f"{path}: get_sweep returned {sweep!r:.40}. It must return a Sweep.")
    return sweep
