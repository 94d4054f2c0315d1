"""Which messages are shown: the flag --verbosity, and what libraries say that nobody needs."""

import logging
import sys
from typing import Any

from absl import flags
from absl import logging as absl_logging
from absl.logging import converter

from big_retrieval.runtime import messages


def define() -> None:
    """Makes absl's flag --verbosity, in numbers, one of names; other libraries read it, too."""
    flags.FLAGS["verbosity"].parser = _LevelNames(list(messages.LEVELS))
    flags.FLAGS["verbosity"].help = "The least level of messages that are shown (default: info)"


def apply() -> None:
    """Applies --verbosity to our messages, and to those of libraries, of which less is shown."""
    flag = flags.FLAGS["verbosity"]
    level = logging.INFO if flag.using_default_value else converter.absl_to_standard(flag.value)
    messages.PACKAGE.setLevel(level)
    if level > logging.DEBUG:
        # Libraries report every file that they write.
        absl_logging.set_verbosity(converter.standard_to_absl(max(level, logging.WARNING)))
        absl_logging.get_absl_logger().addFilter(_is_told_by_nobody_else)
        sys.unraisablehook = _unraisable


class _LevelNames(flags.EnumParser):
    """Reads names of levels into the numbers that absl's own flag --verbosity holds."""

    def parse(self, argument: Any) -> Any:
        if isinstance(argument, int):
            return argument
        return converter.standard_to_absl(messages.LEVELS[super().parse(argument)])


def _is_told_by_nobody_else(record: logging.LogRecord) -> bool:
    """Whether a line of a library's log is shown: not the tracebacks of Orbax's threads.

    Each thread of a save that fails logs its own traceback, hundreds of lines; the failure itself
    reaches the main thread as an exception.
    """
    return record.exc_info is None or "orbax" not in record.pathname


def _unraisable(problem: "sys.UnraisableHookArgs") -> None:
    """Prints what no caller can catch, except for what is left over from a save that failed.

    Orbax leaves its event loop at the first array that cannot be written. TensorStore's threads
    still tell that loop of all the others, and print a traceback for each, as it is closed.
    """
    if str(problem.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(problem)
