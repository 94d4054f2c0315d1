"""A file that is written part by part and goes on where it was when its process was killed."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from big_retrieval.io import durable
from big_retrieval.io.manifest import to_json


class AppendedFile:
    """Writes parts into `<file>.partial`, which gets its name when all are there.

    `<file>.partial.json` says what the parts were made of, how many bytes they have, and what the
    writer noted with the last one. What was written behind these bytes is not counted, and cut off.

    Args:
      path: the file; its folder is made.
      determines: everything that determines the content, for JSON; compared on resume: where it is
        the same, further parts are written behind those that are there, else the file begins anew.

    Attributes:
      path: the file.
      noted: what was noted with the last part; {}: no part is there.
    """

    def __init__(self, path: Path, determines: Mapping[str, Any]):
        self.path, self._partial = path, path.with_name(path.name + ".partial")
        self._state = path.with_name(path.name + ".partial.json")
        self._determines = json.loads(to_json(dict(determines)))
        durable.make_folder(path.parent)
        known = self._known()
        self.noted: dict[str, Any] = known.get("noted", {})
        self._file = self._partial.open("r+b" if known else "wb")
        self._file.truncate(int(known.get("bytes", 0)))
        self._file.seek(0, os.SEEK_END)

    def _known(self) -> dict[str, Any]:
        """What is known of the parts that are there; {}: there are none, or others are wanted."""
        try:
            known = json.loads(self._state.read_bytes())
            size = self._partial.stat().st_size
        except (OSError, ValueError):
            return {}
        same = known.get("determines") == self._determines and known["bytes"] <= size
        return known if same else {}

    def add(self, part: Iterable[bytes], noted: Mapping[str, Any]) -> None:
        """Writes a part, and then notes that it is there.

        Args:
          part: its bytes, piece by piece.
          noted: for JSON; what whoever goes on needs to know.
        """
        self._file.writelines(part)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.noted = dict(noted)
        state = {"determines": self._determines, "bytes": self._file.tell(), "noted": self.noted}
        durable.write_bytes(self._state, to_json(state))

    def finish(self) -> None:
        """Gives the file its name."""
        self._file.close()
        durable.publish(self._partial, self.path)
        self._state.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Leaves the parts for the next run."""
        self._file.close()
