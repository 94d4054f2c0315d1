"""Exceptions for users."""


class UserError(Exception):
    """Error of the user or of their machine; the message names the key or file and the remedy.

    The command line prints the message without a traceback and exits with status 2.
    """


class PluginNeeded(UserError):
    """A saved run has a user-defined part whose file is not imported."""


class Damaged(UserError):
    """A record that cannot be used; training counts it and replaces it by another record.

    While a record is read, `Damaged(why)` is enough: the reader adds the place.

    Attributes:
      place: location, such as a file and a line.
      why: reason.
    """

    def __init__(self, place: str, why: str | None = None):
        place, why = ("", place) if why is None else (place, why)
        super().__init__(f"{place}: {why}." if place else f"{why}.")
        self.place, self.why = place, why

    def __reduce__(self) -> tuple[type, tuple[str, str]]:  # for pickles of worker processes
        return type(self), (self.place, self.why)
