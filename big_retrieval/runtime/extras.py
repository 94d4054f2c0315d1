"""Optional outputs of a run, such as the report, whose errors must not end the run."""

import contextlib
import logging
from collections.abc import Iterator

from big_retrieval.io.space import reason

log = logging.getLogger(__name__)


class Extras:
    """Contexts that turn an exception into a warning, printed once per name."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a bug in the report is no reason to lose the run
            if name not in self._failed:
                self._failed.add(name)
                log.warning(f"{name} is not written ({reason(error)}); the run continues")
