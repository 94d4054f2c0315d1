"""What is wrong with `config.losses`; one of the parts of `checks`."""

from collections.abc import Iterator

from big_retrieval.config import Config
from big_retrieval.config.loss import check_loss


def losses(c: Config) -> Iterator[str]:
    """What is wrong with `config.losses`, a sentence each."""
    if not c.losses:
        yield (
            "config.losses is empty: give it a loss, such as "
            "c.losses.main = recipe.entry(config.Contrastive())."
        )
    for name, loss in c.losses.items():
        if not name.isidentifier():
            yield f"config.losses has the name {name!r}; use letters, digits and underscores."
        yield from check_loss(loss, c, f"config.losses.{name}")
    if all(loss.constraint.bound is not None for loss in c.losses.values()):
        yield (
            "config.losses are all constraints (constraint.bound): one of them must be minimised, "
            "with its bound None."
        )
