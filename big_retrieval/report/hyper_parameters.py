"""A config's hyper-parameters as papers list them, for `big-retrieval configs NAME`."""

from collections.abc import Iterable
from typing import Any

from big_retrieval.config.run import Config


def hyper_parameters(c: Config) -> dict[str, str]:
    """Returns the values of a config's hyper-parameters by name.

    Values of several fields are separated by slashes, queries first; "-" if a field does not have
    the parameter.
    """
    optimizer, schedule = c.optimizer, c.optimizer.schedule
    scale = getattr(c.losses.get("main"), "logit_scale", None)
    length = {"steps": c.total_steps, "examples": c.total_examples, "epochs": c.total_epochs}
    lengths = [f"{value:g} {unit}" for unit, value in length.items() if value]
    names = [*c.side("query"), *c.side("document")]
    fields = [c.fields[name] for name in names]
    towers = [c.towers[field.tower] for field in fields]
    return {
        "fields": " / ".join(names),
        "batch": f"{c.batch_size:,}",
        "length of the run": next(iter(lengths), "-"),
        "learning rate": f"{optimizer.lr:g}",
        "warm-up steps": f"{schedule.warmup_steps:,}",
        "decay": schedule.type,
        "weight decay": f"{optimizer.weight_decay:g}",
        "clipped norm": "-" if optimizer.clip_norm is None else f"{optimizer.clip_norm:g}",
        "topology": c.topology_type,
        "norm 1": _join_values(_is_normalized(c, field) for field in fields),
        "temperature": "-" if scale is None else _temperature(scale),
        "hard negatives": str(c.negatives.count),
        "active terms": _join_values(getattr(field.head, "top_k", None) for field in fields),
        "positions": _join_values(map(_positions, fields, towers)),
        "width": _join_values(getattr(tower, "width", None) for tower in towers),
        "layers": _join_values(getattr(tower, "depth", None) for tower in towers),
    }


def _join_values(values: Iterable[Any]) -> str:
    return " / ".join("-" if x is None else f"{x:,}" if isinstance(x, int) else x for x in values)


def _is_normalized(c: Config, field: Any) -> str:
    """Returns "yes" if embeddings have norm 1, per sphere of the oblique topology."""
    return "yes" if getattr(field.head, "normalise", c.topology_type != "inner") else "no"


def _temperature(scale: Any) -> str:
    return f"{1 / scale.init:.3g}, {'learned' if scale.learnable else 'fixed'}"


def _positions(field: Any, tower: Any) -> int | None:
    """Returns the tokens of a text with its special tokens, or the patches of an image."""
    patch = getattr(tower, "patch", None)
    if field.modality == "image" and isinstance(patch, int):
        return (field.size // patch) ** 2
    return getattr(field, "length", None) or None
