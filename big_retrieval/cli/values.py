"""Values of flags and config keys from the text of the command line."""

import csv
import math
from pathlib import Path
from typing import Any

from absl import flags

from big_retrieval.errors import UserError

EXPECTED = {int: "a whole number", float: "a number", bool: "True or False"}
_PARSERS = {int: flags.IntegerParser(), float: flags.FloatParser(), bool: flags.BooleanParser()}


def parse_value(name: str, text: str, kind: Any) -> Any:
    """Returns a value of the type `kind`: str, Path, int, float or bool.

    Args:
      name: flag or key, for the error message.
    """
    if kind in (str, Path):
        return kind(text)
    try:
        value = _PARSERS[kind].parse(text)
    except ValueError:
        raise UserError(f"{name} is {text!r}; it must be {EXPECTED[kind]}.") from None
    if kind is float and not math.isfinite(value):
        raise UserError(f"{name} is {text}; it must be a finite number.")
    return value


def split_list(name: str, text: str) -> tuple[str, ...]:
    """Returns the values in a list such as `a,b`; quotes protect commas."""
    try:
        return tuple(value.strip() for row in csv.reader([text], strict=True) for value in row)
    except csv.Error as error:
        raise UserError(f"{name} is {text!r}; it must be A,B,... ({error}).") from None
