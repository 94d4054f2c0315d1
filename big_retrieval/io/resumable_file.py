"""A file that is written part by part; a killed process continues it when it is repeated."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from big_retrieval.io import durable
from big_retrieval.io.manifest import to_json


class AppendedFile:
    """Writes parts into `<file>.partial`, which is renamed when it is complete.

    `<file>.partial.json` has `determines`, the bytes of the parts, and the notes of the last part
    (`noted`, {} without a part). On resume, bytes after the last complete part are cut off.

    Args:
      determines: all inputs that determine the content, for JSON. On resume with the same values,
        more parts are appended; else the file is written from scratch.
    """

    def __init__(self, path: Path, determines: Mapping[str, Any]):
        self._path, self._partial = path, path.with_name(path.name + ".partial")
        self._state = path.with_name(path.name + ".partial.json")
        self._determines = json.loads(to_json(dict(determines)))
        durable.make_folder(path.parent)
        saved = self._saved_state()
        self.noted: dict[str, Any] = saved.get("noted", {})
        self._file = self._partial.open("r+b" if saved else "wb")
        self._file.truncate(int(saved.get("bytes", 0)))
        self._file.seek(0, os.SEEK_END)

    def _saved_state(self) -> dict[str, Any]:
        """Returns the state of the parts; {} without parts, or with other inputs."""
        try:
            state = json.loads(self._state.read_bytes())
            size = self._partial.stat().st_size
        except (OSError, ValueError):
            return {}
        is_same = state.get("determines") == self._determines and state["bytes"] <= size
        return state if is_same else {}

    def add(self, chunks: Iterable[bytes], noted: Mapping[str, Any]) -> None:
        """Writes a part, and then its notes: JSON that the continued process needs."""
        self._file.writelines(chunks)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.noted = dict(noted)
        state = {"determines": self._determines, "bytes": self._file.tell(), "noted": self.noted}
        durable.write_bytes(self._state, to_json(state))

    def finish(self) -> None:
        """Renames the complete file."""
        self._file.close()
        durable.publish(self._partial, self._path)
        self._state.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
