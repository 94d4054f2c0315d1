"""One Markdown table of several folders: trained, imported and untrained models, and BM25."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.sweep.table import TableRow, chosen_metrics, means_of_rows

FILES = ("results.json", "evaluation.json")  # the first that is there counts
EVALUATORS = ("retrieval/*", "zeroshot/*", "ranking/*")  # where no metrics are asked for
SEED = re.compile(r"seed_\d+")
NAMED = 6  # metrics in a message


def table(folders: Sequence[Path], patterns: Sequence[str] = ()) -> str:
    """A row for each folder, a column for each metric.

    Args:
      folders: a run's, or one that `big-retrieval evaluate` wrote to; or that of a sweep's entry
        with a folder seed_<k> for each run, of which the row has mean and sample deviation.
      patterns: of the metrics, as in a sweep (`ranking/*/nDCG@10`); none: all of evaluators.

    Returns:
      The table, and what has to be said about it.

    Raises:
      UserError: a folder is given twice, is none, or has no numbers; or no metric is chosen.
    """
    seen: dict[Path, Path] = {}
    for folder in folders:
        if folder.resolve() in seen:
            raise UserError(f"{folder} is given twice; give each folder once.")
        seen[folder.resolve()] = folder
    rows = [row_of(folder, name) for folder, name in zip(folders, _names(list(seen)), strict=True)]
    found = [each for row in rows for each in row.results]
    chosen, unknown = chosen_metrics(patterns or EVALUATORS, found)
    if not chosen:
        known, _ = chosen_metrics(("*",), found)
        more = ", ..." if len(known) > NAMED else ""
        raise UserError(
            f"none of these folders has a metric like {', '.join(patterns or EVALUATORS)}; they "
            f"have {', '.join(known[:NAMED]) or 'no numbers at all'}{more}: change --metrics."
        )
    return means_of_rows(rows, patterns or [each for each in EVALUATORS if each not in unknown])


def row_of(folder: Path, name: str) -> TableRow:
    """The numbers of a folder, or of the seeds in it.

    Args:
      folder: as in `table`.
      name: of the row.

    Raises:
      UserError: it is no folder, a file of it is damaged, or there are no numbers.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give the folder of a run or of an evaluation.")
    own = _read(folder)
    if own is not None:
        return TableRow(name, "1", [own])
    seeds = [path for path in folder.iterdir() if path.is_dir() and SEED.fullmatch(path.name)]
    read = [_read(path) for path in sorted(seeds, key=lambda path: int(path.name[5:]))]
    found = [each for each in read if each is not None]
    if not found:
        where = f" nor in its {len(seeds)} folders of seeds" if seeds else ""
        raise UserError(
            f"{folder} has neither {' nor '.join(FILES)}{where}: let the run end, or evaluate it "
            "with big-retrieval evaluate."
        )
    missing = len(seeds) - len(found)
    return TableRow(name, f"{len(found)} of {len(seeds)}" if missing else str(len(found)), found)


def _read(folder: Path) -> dict[str, Any] | None:
    """The numbers of one run or evaluation; None: there are none yet."""
    for path in (folder / name for name in FILES):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise UserError(f"{path} is damaged: evaluate again, or leave {folder} out.")
        return found
    return None


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, with their parents' where two are the same."""
    count = Counter(path.name for path in folders)
    return [f"{p.parent.name}/{p.name}" if count[p.name] > 1 else p.name for p in folders]
