"""Messages to the user: the standard library's loggers, shown by one handler.

    log = logging.getLogger(__name__)  # in every module of the package
    log.info(f"written to {path}")
    log.warning(f"{path} is cut short")

Nothing is shown until `show` is called, as commands do. Other programs call `show`, too, or add a
handler to the logger "big_retrieval". Lines above the level info begin with their level:
`warning: ...`. Messages do not reach the root logger, where absl shows messages of libraries, so
no line is shown twice.

Of several processes of one run, only the first shows all messages. The others show only warnings
and errors, after `[process 3]`. Output that fails does not end a run (runtime/screen.py).
"""

import contextlib
import contextvars
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

from big_retrieval.runtime import screen

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
PACKAGE = logging.getLogger("big_retrieval")
_about: contextvars.ContextVar[str] = contextvars.ContextVar("about", default="")


def count_of(count: int, noun: str) -> str:
    """Formats a count of things: "1 word", "2 words", "2 queries"."""
    if count == 1:
        return f"1 {noun}"
    plural = re.sub(r"(?<=[^aeou])y$", "ie", noun) + "s"
    return f"{count:,} {plural}"


class ScreenHandler(logging.Handler):
    """Shows messages on the screen.

    Attributes:
      results: True if standard output is for a command's result; all messages then go to standard
        error, else only warnings and errors.
      process: index of this process in its run.
      program: first word of each line.
    """

    def __init__(self, *, results: bool = False, process: int = 0, program: str = "") -> None:
        super().__init__()
        self.results, self.process, self.program = results, process, program

    def format(self, record: logging.LogRecord) -> str:
        """The line, or lines, of a message."""
        parts = [f"[process {self.process}]"] if self.process else []
        parts += [f"{self.program}:"] if self.program else []
        parts += [f"{record.levelname.lower()}:"] if record.levelno != logging.INFO else []
        about = _about.get()
        parts += [f"{about}:"] if about else []
        return " ".join([*parts, screen.visible(record.getMessage())])

    def emit(self, record: logging.LogRecord) -> None:
        """Shows a message; an error never ends the caller."""
        is_important = record.levelno > logging.INFO
        if not self.process or is_important or PACKAGE.level == logging.DEBUG:
            is_error = self.results or is_important
            screen.put(self.format(record), sys.stderr if is_error else sys.stdout)


def show(level: int = logging.INFO, **attributes: Any) -> None:
    """Shows messages of the package from this level on; attributes are of `ScreenHandler`."""
    hide()
    PACKAGE.addHandler(ScreenHandler(**attributes))
    PACKAGE.setLevel(level)
    PACKAGE.propagate = False


def hide() -> None:
    """Undoes `show`."""
    for handler in handlers():
        PACKAGE.removeHandler(handler)
    PACKAGE.setLevel(logging.NOTSET)
    PACKAGE.propagate = True


def handlers() -> list[ScreenHandler]:
    """Returns the handler of `show`, if any."""
    return [handler for handler in PACKAGE.handlers if isinstance(handler, ScreenHandler)]


def settings() -> dict[str, Any]:
    """Returns the arguments of `show` for a process that this one starts."""
    names = ("results", "process", "program")
    shown = {name: getattr(handler, name) for handler in handlers() for name in names}
    return {"level": PACKAGE.level or logging.WARNING, **shown}


def of_process(index: int) -> None:
    """Sets the index of this process in its run."""
    for handler in handlers():
        handler.process = index


@contextlib.contextmanager
def about(subject: str) -> Iterator[None]:
    """A context in which messages begin with their subject, such as an evaluator's name."""
    token = _about.set(subject)
    try:
        yield
    finally:
        _about.reset(token)
