"""Contents of a run folder. An unfinished run lacks some of the files."""

import json
from dataclasses import dataclass
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
    """Files of a run, each empty if it is missing."""

    folder: Path
    name: str  # name of the folder, with the parent's name if another run has the same
    config: dict[str, Any]  # config.json
    results: dict[str, Any]  # results.json; the next two are from the files of their names
    evaluation: dict[str, Any]
    environment: dict[str, Any]
    meta: dict[str, Any]  # meta.json of the newest checkpoint
    series: dict[str, Points]  # (step, value) by metric, ascending; may be NaN or infinite
    examples: dict[str, dict[str, Any]]  # examples/<evaluator>.json by evaluator
    damaged: list[dict[str, Any]]  # the first damaged records
    damaged_count: int  # number of all damaged records
    nonfinite: list[int]  # steps at which a run ended because a number was not finite

    @property
    def last_step(self) -> int:
        """Last logged step; 0 if nothing was logged."""
        return max((points[-1][0] for points in self.series.values()), default=0)

    @property
    def start(self) -> dict[str, Any]:
        """Record of the run's last start."""
        return (self.environment.get("starts") or [{}])[-1]

    @property
    def final(self) -> dict[str, Any]:
        """Last value of every metric, from results.json or else from the log."""
        last = {name: points[-1][1] for name, points in self.series.items()}
        return {**last, **{k: v for k, v in self.results.items() if is_number(v)}}

    def lookup(self, key: str) -> Any:
        """Returns a value of the last start or else of the newest checkpoint; None without it."""
        return self.start.get(key, self.meta.get(key))


def check_run(folder: Path) -> None:
    """Raises a UserError if a folder is not the folder of a run."""
    if not (folder / CONFIG).is_file():
        raise UserError(f"Not a run folder: {folder} has no {CONFIG}. Give the folder of a run.")


def read_run(folder: Path) -> RunFiles:
    """Reads a run folder; raises a UserError for another folder and for a damaged file."""
    check_run(folder)
    steps = complete_steps(folder / "checkpoints")
    examples = [read_object(path) for path in sorted((folder / "examples").glob("*.json"))]
    damaged = [row for path in sorted(folder.glob("damaged*.jsonl")) for row in _read_rows(path)]
    return RunFiles(
        folder=folder,
        name=folder.resolve().name,
        config=read_object(folder / CONFIG),
        results=read_object(folder / "results.json"),
        evaluation=read_object(folder / "evaluation.json"),
        environment=read_object(folder / "environment.json"),
        meta=read_object(folder / "checkpoints" / f"{steps[-1]}" / "meta.json") if steps else {},
        series=_read_series(folder / "metrics.jsonl"),
        examples={content["evaluator"]: content for content in examples},
        damaged=damaged[:NAMED_DAMAGED],
        damaged_count=len(damaged),
        nonfinite=sorted(int(path.stem[10:]) for path in folder.glob("nonfinite-*.json")),
    )


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object of a JSON file; {} if the file is missing."""
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
    """Returns the objects of a JSON Lines file without an incomplete last line."""
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
