"""The exceptions that users are meant to see."""


class UserError(Exception):
    """A mistake of the user or of their machine, told in one sentence.

    The message names the key, file or shape and the remedy. The command line prints it without a
    traceback and exits with status 2.
    """


class PluginNeeded(UserError):
    """A saved run has a part of a user's own, whose file is not imported."""


class Damaged(UserError):
    """One record that cannot be used, among others that can: training counts and replaces it.

    `Damaged(why)` is enough while a record is read: the reader adds the place.

    Attributes:
      place: where it stands, such as a file and a line.
      why: what is wrong with it.
    """

    def __init__(self, place: str, why: str | None = None):
        place, why = ("", place) if why is None else (place, why)
        super().__init__(f"{place}: {why}." if place else f"{why}.")
        self.place, self.why = place, why

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Keeps both parts when it travels from a worker process."""
        return type(self), (self.place, self.why)
