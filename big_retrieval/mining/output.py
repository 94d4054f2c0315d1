"""The file that mining writes, so that a run that was stopped goes on where it was."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.io import durable
from big_retrieval.io.manifest import to_json
from big_retrieval.mining.task import Task
from big_retrieval.runtime import locks

LOOKED_AT = 1000  # documents by which `data_sha256` tells data apart


class Output:
    """Writes rows, those of some queries at a time.

    `<file>.partial` has the rows until all are there, and `<file>.partial.json` how far they go and
    what they were made of.

    Args:
      path: the file.
      made_of: all that the rows follow from, for JSON; where the rows that are there were made of
        the same, those of further queries are written behind them, else the file begins anew.

    Attributes:
      done: queries whose rows are there.
      counts: number of negatives -> queries that have so many.
      dropped: what was left out, by reason.
    """

    def __init__(self, path: Path, made_of: Mapping[str, Any]):
        self._path, self._partial = path, path.with_name(path.name + ".partial")
        self._state, self._made_of = path.with_name(path.name + ".partial.json"), dict(made_of)
        durable.make_folder(path.parent)
        known = self._known()
        self.done = int(known.get("queries", 0))
        self.counts = Counter({int(n): count for n, count in known.get("counts", {}).items()})
        self.dropped = Counter(known.get("dropped", {}))
        self._file = self._partial.open("r+b" if known else "wb")
        self._file.truncate(int(known.get("bytes", 0)))  # what came after it has no count
        self._file.seek(0, os.SEEK_END)

    def _known(self) -> dict[str, Any]:
        """What is known of rows that are there and were made of the same; {}: there are none."""
        try:
            known = json.loads(self._state.read_bytes())
            size = self._partial.stat().st_size
        except (OSError, ValueError):
            return {}
        same = known["made_of"] == json.loads(to_json(self._made_of)) and known["bytes"] <= size
        return known if same else {}

    def add(self, rows: Iterable[Mapping[str, Any]], queries: int) -> None:
        """Writes rows, and then notes that they are there.

        Args:
          rows: in DPR's form.
          queries: from which they come; there may be fewer rows.
        """
        locks.check()
        for row in rows:
            self.counts[len(row["hard_negative_ctxs"])] += 1
            self._file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done += queries
        state = {"made_of": self._made_of, "queries": self.done, "bytes": self._file.tell()}
        durable.write_bytes(
            self._state, to_json({**state, "counts": self.counts, "dropped": self.dropped})
        )

    def finish(self) -> None:
        """Gives the file its name."""
        self.close()
        locks.check()
        durable.publish(self._partial, self._path)
        self._state.unlink(missing_ok=True)

    def close(self) -> None:
        """Leaves the rows for the next run."""
        self._file.close()


def data_sha256(task: Task, asked: np.ndarray) -> str:
    """A fingerprint of queries, their right documents and, where there are many, some documents.

    Args:
      task: has them.
      asked: numbers of the queries, [q].
    """
    digest, count = hashlib.sha256(), len(task.documents)
    for number in asked.tolist():
        said = [task.question(number), *task.answers(number), list(task.right[number])]
        digest.update(json.dumps(said).encode())
    for place in np.unique(np.linspace(0, count - 1, min(count, LOOKED_AT)).astype(int)).tolist():
        digest.update(json.dumps([count, place, *task.text(place)]).encode())
    return digest.hexdigest()
