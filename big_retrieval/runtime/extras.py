"""Optional outputs of a run: an error in the report, rankings or curves.csv must not end it."""

import contextlib
from collections.abc import Callable, Iterator

from big_retrieval.io.space import reason


class Extras:
    """Contexts that turn an exception into a warning, printed once for each name."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Nothing has failed yet.

        Args:
          tell: prints a line to the user.
        """
        self._tell = tell
        self._told: set[str] = set()

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """A context for one file or folder.

        Args:
          name: of what is written, for the message.
        """
        try:
            yield
        except Exception as problem:  # a bug in the report is no reason to lose the run
            if name not in self._told:
                self._told.add(name)
                why = reason(problem)
                self._tell(f"warning: {name} is not written ({why}); the run goes on")
