"""Levels of messages: --verbosity, and messages of libraries that no user needs."""

import logging
import sys

from absl import flags
from absl import logging as absl_logging
from absl.logging import converter

from big_retrieval.runtime import messages


def apply(verbosity: str) -> None:
    """Applies --verbosity to the package's messages, and a higher level to those of libraries."""
    flags.FLAGS.mark_as_parsed()  # absl's own flags, which libraries read
    absl_logging.use_absl_handler()
    level = messages.LEVELS[verbosity]
    messages.PACKAGE.setLevel(level)
    # Libraries report every file that they write.
    library_level = level if level == logging.DEBUG else max(level, logging.WARNING)
    absl_logging.set_verbosity(converter.standard_to_absl(library_level))
    if level > logging.DEBUG:
        absl_logging.get_absl_logger().addFilter(_is_told_by_nobody_else)
        sys.unraisablehook = _unraisable


def _is_told_by_nobody_else(record: logging.LogRecord) -> bool:
    """Returns False for the tracebacks of Orbax's threads.

    Each thread of a save that fails logs its traceback, hundreds of lines; the failure itself
    reaches the main thread as an exception.
    """
    return record.exc_info is None or "orbax" not in record.pathname


def _unraisable(problem: "sys.UnraisableHookArgs") -> None:
    """Prints exceptions that no caller can catch, except for those of a save that failed.

    Orbax leaves its event loop at the first array that cannot be written. TensorStore's threads
    still report all other arrays to that loop, and print a traceback for each, as it is closed.
    """
    if str(problem.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(problem)
