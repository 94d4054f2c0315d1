"""The model hub: first the cache, then the network, without long waits."""

from collections.abc import Callable
from typing import TypeVar

from big_retrieval.errors import UserError

SECONDS = 10.0  # to wait for the hub's first answer
T = TypeVar("T")


def fetch(name: str, load: Callable[[bool], T], *, label: str, otherwise: str) -> T:
    """Loads something by its name on the hub; raises a UserError if that fails."""
    import huggingface_hub

    try:
        try:
            return load(True)  # from the cache, without network
        except Exception:
            # Fails within seconds without network, where `load` would retry for a minute.
            huggingface_hub.HfApi().model_info(name, timeout=SECONDS)
            return load(False)
    except Exception as error:  # no network, no such name, no permission: all are the user's
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"{label} {name!r} is neither a file or folder nor to be had from the hub ({reason}); "
            f"with no network, {otherwise}."
        ) from error
