"""Optional outputs of a run: an error in the report, rankings or curves.csv must not end it."""

import contextlib
import logging
from collections.abc import Iterator

from big_retrieval.io.space import reason

log = logging.getLogger(__name__)


class Extras:
    """Contexts that turn an exception into a warning, printed once for each name."""

    def __init__(self) -> None:
        """Nothing has failed yet."""
        self._told: set[str] = set()

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """A context for one file or folder.

        Args:
          name: of the file or folder, for the message.
        """
        try:
            yield
        except Exception as problem:  # a bug in the report is no reason to lose the run
            if name not in self._told:
                self._told.add(name)
                why = reason(problem)
                log.warning(f"{name} is not written ({why}); the run goes on")
