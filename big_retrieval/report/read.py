"""Contents of a run folder, which may be partial, damaged or of another version."""

import contextlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.io.manifest import complete_steps
from big_retrieval.report.numbers import is_number

SIGNS = ("config.json", "metrics.jsonl", "results.json")  # a run folder has at least one
NAMED_DAMAGED = 20  # damaged records in the report

# Raised by code that reads a damaged file, or one of another version of the package.
MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)

Points = list[tuple[int, float]]


@dataclass
class RunFiles:
    """Files of a run, each empty if it is missing or cannot be read.

    Attributes:
      name: the folder's name, with its parent's name if another run has the same.
      config: config.json.
      results: results.json.
      evaluation: evaluation.json.
      plan: plan.json.
      environment: environment.json.
      meta: meta.json of the newest checkpoint.
      series: metric -> (step, value), ascending; values may be NaN or infinite.
      examples: evaluator -> examples/<evaluator>.json.
      damaged: the first damaged records.
      damaged_count: number of all damaged records.
      nonfinite: steps at which a run ended because a number was not finite.
      problems: messages about files that cannot be read.
    """

    folder: Path
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    series: dict[str, Points] = field(default_factory=dict)
    examples: dict[str, dict[str, Any]] = field(default_factory=dict)
    damaged: list[dict[str, Any]] = field(default_factory=list)
    damaged_count: int = 0
    nonfinite: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def last_step(self) -> int:
        """The last logged step; 0 if nothing was logged."""
        return max((points[-1][0] for points in self.series.values()), default=0)

    @property
    def total_steps(self) -> int | None:
        """The length of the run; None if it is unknown."""
        sources = (self.start, self.meta, self.config)
        lengths = (self.results.get("steps"), *(x.get("total_steps") for x in sources))
        return next((length for length in lengths if length is not None), None)

    @property
    def start(self) -> dict[str, Any]:
        """The record of the run's last start."""
        return (self.environment.get("starts") or [{}])[-1]

    @property
    def final(self) -> dict[str, Any]:
        """The last value of every metric: results.json, else the last logged ones."""
        last = {name: points[-1][1] for name, points in self.series.items()}
        return {**last, **{k: v for k, v in self.results.items() if is_number(v)}}

    def lookup(self, key: str) -> Any:
        """Returns a value that the run's start recorded, else its newest checkpoint; or None."""
        return self.start.get(key, self.meta.get(key))


def known_facts(
    run: RunFiles, facts: Sequence[tuple[str, Callable[[RunFiles], Any]]]
) -> dict[str, Any]:
    """Returns name -> value of facts about a run.

    Args:
      facts: (name, function of a run); a fact that the files lack (None), or have in another form,
        is skipped.
    """
    out = {}
    for name, value_of in facts:
        with suppress(*MALFORMED):
            if (value := value_of(run)) is not None:
                out[name] = value
    return out


def check_run(folder: Path) -> None:
    """Raises a UserError if a folder does not exist or is not the folder of a run."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give the folder of a run.")
    if not any((folder / name).is_file() for name in SIGNS):
        raise UserError(
            f"{folder} is no run folder (it has none of {', '.join(SIGNS)}); give the "
            "folder of a run."
        )


def read_run(folder: Path) -> RunFiles:
    """Reads a run folder.

    Raises:
      UserError: the folder does not exist or is not the folder of a run.
    """
    check_run(folder)
    run = RunFiles(folder, folder.resolve().name)
    for name in ("config", "results", "evaluation", "plan", "environment"):
        setattr(run, name, _read_object(folder / f"{name}.json", run.problems))
    run.series = _read_series(folder / "metrics.jsonl", run.problems)
    steps = complete_steps(folder / "checkpoints")
    if steps:
        path = folder / "checkpoints" / str(steps[-1]) / "meta.json"
        run.meta = _read_object(path, run.problems)
    for path in sorted((folder / "examples").glob("*.json")):
        content = _read_object(path, run.problems)
        if isinstance(content.get("evaluator"), str):
            run.examples[content["evaluator"]] = content
    texts = (path.stem.removeprefix("nonfinite-") for path in folder.glob("nonfinite-*.json"))
    run.nonfinite = sorted(int(text) for text in texts if text.isdecimal())
    for path in sorted(folder.glob("damaged*.jsonl")):
        rows = _read_rows(path, run.problems)
        run.damaged_count += len(rows)
        run.damaged += rows[: NAMED_DAMAGED - len(run.damaged)]
    return run


def _read_object(path: Path, problems: list[str]) -> dict[str, Any]:
    """Returns the object of a JSON file; {} if the file is missing or damaged."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}.")
        return {}
    except (ValueError, RecursionError):
        problems.append(f"{path.name} is not readable JSON.")
        return {}
    if not isinstance(content, dict):
        problems.append(f"{path.name} holds no object.")
        return {}
    return content


def _read_rows(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Returns the objects of a JSON Lines file; other lines are counted and skipped."""
    rows, bad = [], 0
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}.")
        return []
    for line in filter(str.strip, lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad += 1
    if bad:
        problems.append(f"{path.name} has {bad:,} line(s) that cannot be read; they are skipped.")
    return rows


def _read_series(path: Path, problems: list[str]) -> dict[str, Points]:
    table: dict[str, dict[int, float]] = {}
    for row in _read_rows(path, problems) if path.exists() else ():
        step = row.get("step")
        if not isinstance(step, int):
            continue
        for name, value in row.items():
            if name != "step" and is_number(value):
                with contextlib.suppress(OverflowError):  # a whole number beyond floats
                    table.setdefault(name, {})[step] = float(value)
    return {name: sorted(points.items()) for name, points in table.items()}
