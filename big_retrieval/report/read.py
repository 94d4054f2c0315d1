"""Contents of a run folder; of an unfinished run, some files are missing."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.io.manifest import complete_steps
from big_retrieval.report.numbers import is_number

CONFIG = "config.json"  # every run has this file
NAMED_DAMAGED = 20  # damaged records in the report

Points = list[tuple[int, float]]


@dataclass
class RunFiles:
    """Files of a run, each empty if it is missing.

    Attributes:
      name: the folder's name, with its parent's name if another run has the same.
      config: config.json; `results`, `evaluation` and `environment` have their files, too.
      meta: meta.json of the newest checkpoint.
      series: metric -> (step, value), ascending; values may be NaN or infinite.
      examples: evaluator -> examples/<evaluator>.json.
      damaged: the first damaged records.
      damaged_count: number of all damaged records.
      nonfinite: steps at which a run ended because a number was not finite.
    """

    folder: Path
    name: str
    config: dict[str, Any]
    results: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    series: dict[str, Points] = field(default_factory=dict)
    examples: dict[str, dict[str, Any]] = field(default_factory=dict)
    damaged: list[dict[str, Any]] = field(default_factory=list)
    damaged_count: int = 0
    nonfinite: list[int] = field(default_factory=list)

    @property
    def last_step(self) -> int:
        """The last logged step; 0 if nothing was logged."""
        return max((points[-1][0] for points in self.series.values()), default=0)

    @property
    def total_steps(self) -> int | None:
        """The length of the run; None if no step has run."""
        return self.lookup("total_steps")

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


def check_run(folder: Path) -> None:
    """Raises a UserError if a folder is not the folder of a run."""
    if not (folder / CONFIG).is_file():
        raise UserError(f"Not a run folder: {folder} has no {CONFIG}. Give the folder of a run.")


def read_run(folder: Path) -> RunFiles:
    """Reads a run folder.

    Raises:
      UserError: the folder is not the folder of a run, or a file is damaged.
    """
    check_run(folder)
    run = RunFiles(folder, folder.resolve().name, read_object(folder / CONFIG))
    for name in ("results", "evaluation", "environment"):
        setattr(run, name, read_object(folder / f"{name}.json"))
    run.series = _read_series(folder / "metrics.jsonl")
    if steps := complete_steps(folder / "checkpoints"):
        run.meta = read_object(folder / "checkpoints" / str(steps[-1]) / "meta.json")
    for path in sorted((folder / "examples").glob("*.json")):
        content = read_object(path)
        run.examples[content["evaluator"]] = content
    run.nonfinite = sorted(int(path.stem[10:]) for path in folder.glob("nonfinite-*.json"))
    for path in sorted(folder.glob("damaged*.jsonl")):
        rows = _read_rows(path)
        run.damaged_count += len(rows)
        run.damaged += rows[: NAMED_DAMAGED - len(run.damaged)]
    return run


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object of a JSON file; {} if there is no file."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"Cannot read {path}: {error}. Remove or replace it.") from None
    if not isinstance(content, dict):
        raise UserError(f"Cannot read {path}: it is not a JSON object. Remove or replace it.")
    return content


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a JSON Lines file; a last line that was cut is left out."""
    lines = path.read_bytes().split(b"\n")
    try:
        return [json.loads(line) for line in lines[:-1] if line.strip()]
    except ValueError as error:
        raise UserError(f"Cannot read {path}: {error}. Remove the damaged lines.") from None


def _read_series(path: Path) -> dict[str, Points]:
    table: dict[str, dict[int, float]] = {}
    for row in _read_rows(path) if path.exists() else ():
        for name, value in row.items():
            if name != "step" and is_number(value):
                table.setdefault(name, {})[row["step"]] = float(value)
    return {name: sorted(points.items()) for name, points in table.items()}
