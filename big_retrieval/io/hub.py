"""The model hub: the cache first, then the network, without long waits if there is none."""

from collections.abc import Callable
from typing import TypeVar

from big_retrieval.errors import UserError

SECONDS = 10.0  # to wait for the hub's first answer
T = TypeVar("T")


def fetch(name: str, load: Callable[[bool], T], *, what: str, otherwise: str) -> T:
    """Loads something by its name on the hub; raises a UserError if that fails.

    Args:
      load: loads it, from the cache only if called with True; any exception counts as a failure.
      what: noun for messages, such as "the model".
      otherwise: what to do without a network, for the message.
    """
    import huggingface_hub

    try:
        try:
            return load(True)  # needs no network where it is in the cache
        except Exception:
            # One request of few seconds: without network, `load` tries again for a minute.
            huggingface_hub.HfApi().model_info(name, timeout=SECONDS)
            return load(False)
    except Exception as error:  # no network, no such name, no permission: all are the user's
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"{what} {name!r} is neither a file or folder nor to be had from the hub ({reason}); "
            f"with no network, {otherwise}."
        ) from error
