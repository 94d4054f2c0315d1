"""Checks of `config.labels`; see `big_retrieval.config.checks`."""

from collections.abc import Iterator

from big_retrieval.config import Config


def labels(c: Config) -> Iterator[str]:
    """Yields an error message for every bad key of `config.labels`."""
    yield from c.labels.check()
    for side in ("query", "document"):
        key, name = f"config.labels.{side}_field", getattr(c.labels, f"{side}_field")
        texts = [name for name, field in c.fields.items() if field.modality == "text"]
        if name and name not in texts:
            known = ", ".join(texts) or "none"
            yield f"{key} {name!r} is no text field; the text fields are: {known}."
        elif name and not getattr(c.labels, side):
            yield f"{key} is {name!r}, but config.labels.{side} names no column; name it."
