"""A config's hyper-parameters as papers list them, for `big-retrieval configs NAME`."""

from collections.abc import Callable
from typing import Any

from big_retrieval.config.run import Config


def hyper_parameters(c: Config) -> dict[str, str]:
    """Returns name -> value of a config's hyper-parameters.

    Values of several fields are separated by slashes, queries first. A field without the parameter
    has "-".
    """
    optimizer, schedule = c.optimizer, c.optimizer.schedule
    scale = getattr(c.losses.get("main"), "logit_scale", None)
    length = {"steps": c.total_steps, "examples": c.total_examples, "epochs": c.total_epochs}
    known = [f"{value:g} {unit}" for unit, value in length.items() if value]
    return {
        "fields": " / ".join(_fields(c)),
        "batch": f"{c.batch_size:,}",
        "length of the run": known[0] if known else "-",
        "learning rate": f"{optimizer.lr:g}",
        "warm-up steps": f"{schedule.warmup_steps:,}",
        "decay": schedule.type,
        "weight decay": f"{optimizer.weight_decay:g}",
        "clipped norm": "-" if optimizer.clip_norm is None else f"{optimizer.clip_norm:g}",
        "topology": c.topology if isinstance(c.topology, str) else c.topology.type,
        "norm 1": _each(c, lambda field: _normalized(c, field)),
        "temperature": "-" if scale is None else _temperature(scale),
        "hard negatives": str(c.negatives.count),
        "active terms": _each(c, lambda field: getattr(field.head, "top_k", None)),
        "positions": _each(c, lambda field: _positions(c, field)),
        "width": _each(c, lambda field: getattr(c.towers[field.tower], "width", None)),
        "layers": _each(c, lambda field: getattr(c.towers[field.tower], "depth", None)),
    }


def _fields(c: Config) -> list[str]:
    """The encoded fields, queries first."""
    return [*c.side("query"), *c.side("document")]


def _each(c: Config, value: Callable[[Any], Any]) -> str:
    values = (value(c.fields[name]) for name in _fields(c))
    return " / ".join("-" if x is None else f"{x:,}" if isinstance(x, int) else x for x in values)


def _normalized(c: Config, field: Any) -> str:
    """ "yes" if embeddings have norm 1, per sphere of the oblique topology."""
    topology = c.topology if isinstance(c.topology, str) else c.topology.type
    return "yes" if getattr(field.head, "normalise", topology != "inner") else "no"


def _temperature(scale: Any) -> str:
    return f"{1 / scale.init:.3g}, {'learned' if scale.learnable else 'fixed'}"


def _positions(c: Config, field: Any) -> int | None:
    """Tokens of a text with its special tokens, or patches of an image."""
    patch = getattr(c.towers[field.tower], "patch", None)
    if field.modality == "image" and isinstance(patch, int):
        return (field.size // patch) ** 2
    return getattr(field, "length", None) or None
