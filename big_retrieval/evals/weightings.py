"""Weights of the documents' fields as a config writes them; see `config.Ranking`."""

from collections.abc import Collection

from big_retrieval.errors import UserError


def parse_weighting(text: str, fields: Collection[str], path: str) -> dict[str, float]:
    """Weights of fields: "image" is image alone, "image=0.9,title=0.1" both.

    Args:
      text: as written.
      fields: the names that there are.
      path: of the key, for messages.

    Returns:
      Field name -> weight, one of them above 0.

    Raises:
      UserError: a field that there is not, a weight that is no number or negative, or all 0.
    """
    out: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if name not in fields or name in out:
            known = ", ".join(sorted(fields))
            twice = "is there twice" if name in out else "is no field of the documents' side"
            raise UserError(f"{path} has {text!r}: {name!r} {twice} (there are: {known}).")
        try:
            out[name] = float(number) if equals else 1.0
        except ValueError:
            out[name] = -1.0
        if not 0 <= out[name] < float("inf"):
            raise UserError(
                f"{path} has {text!r}: the weight {number!r} must be a number from 0 on, as in "
                "'image=0.9,title=0.1'."
            )
    if not sum(out.values()):
        raise UserError(f"{path} has {text!r}, in which all weights are 0.")
    return out
