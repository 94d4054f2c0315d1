"""The gates at which the systems are measured: numbers of terms, and bags of words."""

from collections.abc import Mapping, Sequence

from big_retrieval.config import Config, Field, is_lexical
from big_retrieval.errors import UserError
from big_retrieval.evals.modes import SIDES, Mode, Side, misfit, own_top_k, parse_mode

WIDTHS = (4, 16, 64, 256)  # terms of the default gates, as far as the model's own gate is wider
KEPT: Mapping[Side, int] = {"query": 3, "document": 2}  # how many of them, the widest ones
BAGS: Mapping[Side, str] = {"query": "bag", "document": "binary"}  # bags of words, no network
FLAGS: Mapping[Side, str] = {"query": "--queries", "document": "--documents"}
WHOLE = parse_mode("top_k=all", "")  # no gate beyond the model's own
Gates = Mapping[Side, Mapping[str, Mode]]  # side -> gate -> the same as a mode of search


def lexical(config: Config, name: str) -> bool:
    """Whether all fields that an evaluator compares have lexical heads."""
    compared = config.evals[name].compared(config)
    return is_lexical(config, *compared["query"], *compared["document"])


def gates_of(config: Config, name: str, queries: Sequence[str], documents: Sequence[str]) -> Gates:
    """The gates of both sides of an evaluator.

    Args:
      config: of the model.
      name: of the evaluator.
      queries: values of the flag; (): default gates. Dense models need neither.
      documents: values of the flag.

    Raises:
      UserError: gates that the model cannot have.
    """
    if not lexical(config, name):
        return {side: {"exact": WHOLE} for side in SIDES}
    compared = config.evals[name].compared(config)
    given: Mapping[Side, Sequence[str]] = {"query": queries, "document": documents}
    return {side: side_gates(given[side], side, config.fields, compared[side]) for side in SIDES}


def side_gates(
    names: Sequence[str], side: Side, fields: Mapping[str, Field], chosen: Sequence[str]
) -> dict[str, Mode]:
    """The gates of a side: a number of terms that stay, "all", or bags of words.

    Args:
      names: values of the flag; (): the default gates that narrow this model's own gate.
      side: "query" or "document".
      fields: all fields of the model.
      chosen: names of the side's fields, which have lexical heads.

    Raises:
      UserError: a gate is unknown or repeated, asks for bags of words of images, or for more terms
        than the model's own gate leaves.
    """
    if not names:
        top_k = own_top_k(fields, chosen)
        narrower = [str(width) for width in WIDTHS if top_k is None or width < top_k]
        texts = all(fields[name].modality == "text" for name in chosen)
        names = [*([BAGS[side]] if texts else []), *narrower[-KEPT[side] :], "all"]
    gates: dict[str, Mode] = {}
    for name in names:
        if name in gates:
            raise UserError(f"{FLAGS[side]} has {name!r} twice; keep one.")
        mode = gates[name] = _gate(name, side)
        if why := misfit(mode, side, fields, chosen):
            raise UserError(f"{FLAGS[side]} has {name}, but {why}.")
    return gates


def _gate(name: str, side: Side) -> Mode:
    """A gate of one side as a mode of search that leaves the other side unchanged."""
    if name == BAGS[side]:
        return parse_mode(name, "")
    if name != "all" and not (name.isdecimal() and name.isascii()):
        raise UserError(
            f"{FLAGS[side]} has {name!r}; it takes '{BAGS[side]}' (bags of words), numbers of "
            f"terms and 'all', as in {FLAGS[side]}={BAGS[side]},16,64,all."
        )
    return parse_mode(f"top_k={name}/all" if side == "query" else f"top_k=all/{name}", "")
