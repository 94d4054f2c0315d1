"""Levels of messages: --verbosity, and messages of libraries that no user needs."""

import logging
import sys

from absl import flags
from absl import logging as absl_logging
from absl.logging import converter

from big_retrieval.runtime import messages


def apply(verbosity: str) -> None:
    """Applies --verbosity to the package's messages, and a higher level to libraries."""
    flags.FLAGS.mark_as_parsed()  # absl's own flags, which libraries read
    absl_logging.use_absl_handler()
    level = messages.LEVELS[verbosity]
    messages.PACKAGE.setLevel(level)
    # Libraries report every file that they write.
    library_level = level if level == logging.DEBUG else max(level, logging.WARNING)
    absl_logging.set_verbosity(converter.standard_to_absl(library_level))
    if level > logging.DEBUG:
        absl_logging.get_absl_logger().addFilter(_is_not_orbax_traceback)
        sys.unraisablehook = _unraisable


def _is_not_orbax_traceback(record: logging.LogRecord) -> bool:
    """Returns False for tracebacks of Orbax's threads; the main thread raises the error."""
    return record.exc_info is None or "orbax" not in record.pathname


def _unraisable(args: "sys.UnraisableHookArgs") -> None:
    """Prints exceptions that no caller can catch, except after a failed save.

    Orbax leaves its event loop at the first array that cannot be written. TensorStore's threads
    then print a traceback for every other array, because the loop is closed.
    """
    if str(args.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(args)
