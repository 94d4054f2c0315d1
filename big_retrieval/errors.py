"""The one exception that users are meant to see."""


class UserError(Exception):
    """A mistake of the user or of their machine, told in one sentence.

    The message names the key, file or shape and the remedy. The command line prints it without a
    traceback and exits with status 2.
    """
