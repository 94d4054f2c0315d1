"""Messages to the user: the standard library's loggers, shown by one handler.

    log = logging.getLogger(__name__)  # in every module of the package
    log.info(f"written to {path}")
    log.warning(f"{path} is cut short")

Loggers of the package lie below "big_retrieval". Nothing is shown until `show` is called, as
commands do; another program calls `show`, too, or gives that logger a handler. Lines of the level
info are shown without a level, others begin with their level: `warning: ...`. The package's
messages do not reach the root logger, where absl shows those of jax and other libraries, so that no
line comes twice.

Of several processes of one run the first one speaks for all: the others show only warnings and
errors, and begin each line with `[process 3]`. Output may fail and ends no run (runtime/screen.py).
"""

import contextlib
import contextvars
import logging
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


class ScreenHandler(logging.Handler):
    """Shows messages on the screen.

    Attributes:
      results: whether standard output is for a command's result, so that messages go to standard
        error; otherwise only warnings and errors do.
      process: number of this process in its run.
      program: what each line begins with.
    """

    def __init__(self, *, results: bool = False, process: int = 0, program: str = "") -> None:
        """Prepares; `show` gives the handler to the package's logger."""
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
        """Shows a message; nothing that happens ends the caller."""
        ours = not self.process or record.levelno > logging.INFO or PACKAGE.level == logging.DEBUG
        if ours:
            aside = self.results or record.levelno > logging.INFO
            screen.put(self.format(record), sys.stderr if aside else sys.stdout)


def show(level: int = logging.INFO, **how: Any) -> None:
    """Shows messages of the package on the screen from now on.

    Args:
      level: the least level that is shown, such as `logging.INFO`.
      **how: attributes of `ScreenHandler`.
    """
    hide()
    PACKAGE.addHandler(ScreenHandler(**how))
    PACKAGE.setLevel(level)
    PACKAGE.propagate = False


def hide() -> None:
    """Undoes `show`."""
    for handler in handlers():
        PACKAGE.removeHandler(handler)
    PACKAGE.setLevel(logging.NOTSET)
    PACKAGE.propagate = True


def handlers() -> list[ScreenHandler]:
    """What `show` has added: one handler, or none."""
    return [each for each in PACKAGE.handlers if isinstance(each, ScreenHandler)]


def settings() -> dict[str, Any]:
    """The arguments with which `show` does the same in a process that this one starts."""
    how = [{"results": h.results, "process": h.process, "program": h.program} for h in handlers()]
    return {"level": PACKAGE.level or logging.WARNING, **(how[0] if how else {})}


def of_process(number: int) -> None:
    """Notes which process of a run this one is."""
    for handler in handlers():
        handler.process = number


@contextlib.contextmanager
def about(what: str) -> Iterator[None]:
    """A context in which messages begin with what they are about, such as an evaluator's name."""
    token = _about.set(what)
    try:
        yield
    finally:
        _about.reset(token)
