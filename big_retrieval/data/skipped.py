"""Records that cannot be used: counted, the first ones named."""

import logging

from big_retrieval.errors import Damaged, UserError

log = logging.getLogger(__name__)
NAMED = 3  # of them


class LeftOut:
    """Counts records that cannot be used, and names the first ones in warnings.

    Attributes:
      count: of them.
      last: what is wrong with the last one.
    """

    def __init__(self, what: str):
        self._what, self.count = what, 0
        self.last: Damaged | None = None

    def add(self, problem: Damaged) -> None:
        """Counts one."""
        self.count, self.last = self.count + 1, problem
        if self.count <= NAMED:
            log.warning(f"left out: {problem}")

    def close(self) -> None:
        """Says how many there were."""
        if self.count:
            log.warning(f"left out: {self.count:,} of the {self._what}")

    def check(self, total: int) -> None:
        """Raises a UserError where all were left out, so that there is nothing to write."""
        if self.count == total:
            raise UserError(
                f"none of the {self._what} can be used: mend them, or name other files; the last "
                f"one: {self.last}"
            )
