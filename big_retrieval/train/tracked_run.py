"""What a tracker is told of a run, and which of its rows a tracker has already."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from big_retrieval.config import Config, schema
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.report.numbers import is_number


class TrackedRun:
    """What a tracker is told of a run, and what it has to remember of itself in the run folder.

    Attributes:
      entry: its name in `config.trackers`.
      folder: of the run.
      name: that of the folder.
      config: the configuration as nested dictionaries.
      first: the first step that this start of the run writes.
    """

    FILE = "trackers.json"
    _lock = threading.Lock()  # trackers of one run share the file

    def __init__(
        self, entry: str, folder: Path, config: Config, first: int, seen: Mapping[str, int]
    ) -> None:
        """Nothing is read or written yet.

        Args:
          entry: its name in `config.trackers`.
          folder: of the run.
          config: of the run.
          first: the first step that this start of the run writes.
          seen: metric -> the last step at which earlier starts of the run wrote it.
        """
        self.entry, self.folder, self.name = entry, folder, folder.resolve().name
        self.config, self.first = schema.to_plain(config), first
        self._seen = dict(seen)
        # What the file says is of this run only where this run has written rows before.
        self._mine = bool(seen)

    def known_id(self, place: str) -> str | None:
        """The id of the run in the tracker, where the tracker has it already.

        Args:
          place: server and project; elsewhere it is another run.
        """
        found = self._read().get(self.entry) if self._mine else None
        if found is not None and found["place"] == place:
            return found["id"]
        self._seen = {}
        return None

    def keep_id(self, place: str, number: str) -> None:
        """Keeps the id for the next start of the run, or the next try after a failure."""
        with self._lock:
            whole = self._read() | {self.entry: {"place": place, "id": number}}
            write_bytes(self.folder / self.FILE, to_json(whole))
        self._mine = True

    def new_numbers(self, step: int, values: Mapping[str, Any]) -> dict[str, float]:
        """The numbers among some values that the tracker did not get at this step or later.

        A run that was killed repeats the steps since its last checkpoint when it is resumed.
        """
        found = {
            name: value
            for name, value in values.items()
            if is_number(value) and step > self._seen.get(name, -1)
        }
        self._seen |= dict.fromkeys(found, step)
        return found

    def never_written(self, values: Mapping[str, Any]) -> dict[str, float]:
        """The numbers among some values whose names no row had."""
        return {k: v for k, v in values.items() if is_number(v) and k not in self._seen}

    def _read(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / self.FILE).read_text())
        except (OSError, ValueError):
            return {}
