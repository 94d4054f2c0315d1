"""What a sweep is: configs with overrides, each run with several seeds.

A sweep file holds `get_sweep(arg)`, as a config file holds `get_config(arg)`:

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
import runpy
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
TAKEN = ("results.csv", "results.md", "results.lock", "logs")  # what the sweep's folder holds too
LIMIT = 2**31  # of seeds, as in `checks`


@dataclass(frozen=True)
class Entry:
    """One configuration of a sweep.

    Attributes:
      name: of its folder and its row in the table.
      config: as behind --config: a file with an optional argument.
      overrides: dotted keys of the configuration, such as "optimizer.lr", and their values.
      evaluate: flag of `big-retrieval evaluate` for a row that is evaluated once and not trained:
        "--bm25", "--untrained" or "--init=WEIGHTS"; "" trains.
    """

    name: str
    config: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    evaluate: str = ""

    def __post_init__(self) -> None:
        """Checks the values, as a sweep file may hold anything.

        Raises:
          UserError: the name cannot be a folder's, or a key of the overrides is none.
        """
        name = self.name
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in TAKEN:
            raise UserError(
                f"the name {name!r} cannot be a folder's: use letters, digits and _ . , = + -, "
                "at most 100, and begin with a letter or digit."
            )
        if not isinstance(self.config, str) or not isinstance(self.overrides, Mapping):
            raise UserError(f"{name}: config must be text and overrides a dictionary.")
        if not isinstance(self.evaluate, str) or not EVALUATE.fullmatch(self.evaluate):
            raise UserError(
                f"{name}: evaluate is {self.evaluate!r}; use --bm25, --untrained or --init=WEIGHTS."
            )
        for key in self.overrides:
            if key == "seed":
                raise UserError(f"{name}: overrides hold 'seed'; give Sweep(seeds=...) instead.")
            if not isinstance(key, str) or key.startswith(("config.", "-")):
                near = str(key).lstrip("-").removeprefix("config.")
                raise UserError(f"{name}: overrides hold {key!r}; write {near!r}, without config.")

    def flags(self) -> list[str]:
        """This configuration on the command line of `big_retrieval.main`."""
        values = [f"--config.{key}={value}" for key, value in self.overrides.items()]
        return [f"--config={self.config}", *values]


@dataclass(frozen=True)
class Sweep:
    """Runs of every entry with every seed.

    Attributes:
      runs: the entries, in the order in which they are run.
      seeds: `config.seed` of the runs of each.
      metrics: patterns (`*`, `?`) of the names that the table shows, in this order.
      paper: the numbers of a paper, by entry and metric (`published` makes them); the table shows
        "ours / paper". Recalls and accuracies are in percent, as in the table.
      evaluations: entry -> numbers of evaluations during its runs, from 1; the table has a row
        `NAME@NUMBER` for each, after the row of the entry. `paper` may have the same names.
    """

    runs: Sequence[Entry]
    seeds: Sequence[int] = (0,)
    metrics: Sequence[str] = ("*/R@1", "*/accuracy")
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    evaluations: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
          UserError: a list is empty or holds something else, or a seed or name occurs twice.
        """
        for key, kind in (("runs", Entry), ("seeds", int), ("metrics", str)):
            values = getattr(self, key)
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise UserError(f"{key} is {values!r:.40}; give a list of at least one element.")
            for value in values:
                if not isinstance(value, kind) or isinstance(value, bool):
                    raise UserError(f"{key} holds {value!r:.40}, which is no {kind.__name__}.")
        for seed in self.seeds:
            if not 0 <= seed < LIMIT:
                raise UserError(f"the seed {seed} must be from 0 to {LIMIT - 1}.")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"the seeds {tuple(self.seeds)} hold one of them twice.")
        names = [entry.name.lower() for entry in self.runs]  # some file systems know no capitals
        for place, entry in enumerate(self.runs):
            if entry.name.lower() in names[:place]:
                raise UserError(
                    f"two runs have the name {entry.name!r}, which is a folder's: rename one."
                )
        self._check_paper()

    def _check_paper(self) -> None:
        """Raises a UserError if a number of the paper could not stand in the table."""
        names = {entry.name for entry in self.runs}
        if unknown := sorted(set(self.evaluations) - names):
            raise UserError(f"evaluations has {unknown[0]!r}, but no run has this name.")
        names |= {f"{name}@{n}" for name, found in self.evaluations.items() for n in found}
        if unknown := sorted(set(self.paper) - names):
            raise UserError(f"paper has the row {unknown[0]!r}, but no run has this name.")
        for row, numbers in self.paper.items():
            for metric in numbers:
                if not any(fnmatchcase(metric, pattern) for pattern in self.metrics):
                    raise UserError(
                        f"paper has {metric!r} in the row {row!r}, which no pattern of metrics "
                        "chooses: add a pattern."
                    )


def published(
    columns: Sequence[str], rows: Mapping[str, str], unit: float = 1.0
) -> dict[str, dict[str, float]]:
    """The numbers of a paper's table, for `Sweep.paper`.

    Args:
      columns: the names of our metrics, a column each.
      rows: the name of an entry, and its row as the paper prints it: numbers with spaces between
        them, and "-" where the paper has no number.
      unit: what a number of the paper is multiplied by, such as 0.01 for nDCG in percent.

    Raises:
      UserError: a row has more or fewer numbers than there are columns.
    """
    found = {}
    for name, row in rows.items():
        cells = row.split()
        if len(cells) != len(columns):
            raise UserError(f"{name} has {len(cells)} numbers for {len(columns)} columns.")
        pairs = zip(columns, cells, strict=True)
        found[name] = {metric: float(cell) * unit for metric, cell in pairs if cell != "-"}
    return found


@dataclass(frozen=True)
class SweepRun:
    """One entry with one seed.

    Attributes:
      number: place in the sweep, from 0; what --only and SLURM arrays count by.
      entry: its configuration.
      seed: its seed.
      folder: its run folder.
    """

    number: int
    entry: Entry
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """What users see, e.g. `lr=0.001/seed_2`."""
        return f"{self.entry.name}/seed_{self.seed}"

    @property
    def results(self) -> Path:
        """The file that exists when the run is finished."""
        return self.folder / ("evaluation.json" if self.entry.evaluate else "results.json")

    @property
    def lock(self) -> Path:
        """The lock of the process that writes the results."""
        return locks.beside(self.results) if self.entry.evaluate else locks.in_folder(self.folder)

    def config_flags(self) -> list[str]:
        """The arguments that make up the configuration."""
        return [*self.entry.flags(), f"--config.seed={self.seed}"]

    def flags(self) -> list[str]:
        """The arguments of `big-retrieval train`, or of `big-retrieval evaluate`."""
        config, *rest = self.config_flags()
        if self.entry.evaluate:
            return [config, f"--out={self.folder}", self.entry.evaluate, *rest]
        return [config, f"--workdir={self.folder}", *rest]


def inputs_sha256(config: Mapping[str, Any], flag: str) -> str:
    """Returns the SHA-256 of a plain config and a flag of `big-retrieval evaluate`."""
    return hashlib.sha256(json.dumps([config, flag], sort_keys=True).encode()).hexdigest()


def runs_of(sweep: Sweep, workdir: Path) -> list[SweepRun]:
    """All runs in order: the first entry with every seed, then the second, and so on.

    Entries that are evaluated only have the first seed.
    """
    pairs = [(entry, seed) for entry in sweep.runs for seed in seeds_of(sweep, entry)]
    return [
        SweepRun(number, entry, seed, workdir / entry.name / f"seed_{seed}")
        for number, (entry, seed) in enumerate(pairs)
    ]


def seeds_of(sweep: Sweep, entry: Entry) -> Sequence[int]:
    """The seeds of an entry's runs."""
    return sweep.seeds[:1] if entry.evaluate else sweep.seeds


def choose(runs: Sequence[SweepRun], only: str) -> list[SweepRun]:
    """The runs that --only names.

    Args:
      runs: all of the sweep.
      only: numbers and ranges, e.g. `3` or `0-2,5`; empty: all.

    Raises:
      UserError: something else, or a number beyond the last run.
    """
    if not only:
        return list(runs)
    wanted: set[int] = set()
    for part in only.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if not match:
            raise UserError(f"--only is {only!r}; it must be numbers and ranges, such as 0-2,5.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= len(runs):
            raise UserError(
                f"--only is {only!r}, but the sweep's runs have the numbers 0 to {len(runs) - 1}; "
                "--list shows them."
            )
        wanted.update(range(first, last + 1))
    return [run for run in runs if run.number in wanted]


def load(text: str) -> Sweep:
    """Reads a sweep file.

    Args:
      text: the file, with an argument behind a colon, as in `sweeps/X.py:runlocal`.

    Raises:
      UserError: there is no such file, it fails, or what it returns is no sweep that can be run.
    """
    from big_retrieval.cli import shipped  # cli defines flags, which a program may have, too
    from big_retrieval.cli.config_file import mistake_in

    name, _, arg = shipped.resolve(text).partition(":")
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        file = shipped.nearest_file(path, *FOLDERS)
        hint = f"did you mean {file}?" if file else "give FILE.py or FILE.py:words."
        raise UserError(f"--sweep: there is no file {name!r}; {hint}")
    try:
        sweep = _call(path, arg)
    except Exception as problem:
        raise UserError(mistake_in(str(path), problem)) from problem
    if not isinstance(sweep, Sweep):
        raise UserError(f"{path}: get_sweep returned {sweep!r:.40}; it must return a Sweep.")
    return sweep


def _call(path: Path, arg: str) -> Any:
    from big_retrieval.cli.config_file import can_import_configs

    can_import_configs(path)
    found = runpy.run_path(str(path), run_name="sweep_file")
    if "get_sweep" not in found:
        raise UserError(
            f"{path} has no function get_sweep(arg); see configs/sweeps/quickstart_seeds.py."
        )
    return found["get_sweep"](arg)
