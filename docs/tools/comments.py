"""An extension of griffe: the comment beside a key of a dataclass is the key's documentation.

    lr: float = 1e-3  # peak of the schedule

A comment on the lines before a key counts where the key has none beside it. Methods of parts whose
documentation is "See `Base`" are left out: the base class has the words.
"""

import io
import tokenize
from pathlib import Path
from typing import Any

import griffe


class Comments(griffe.Extension):
    """Gives attributes of classes a docstring out of their comments."""

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Leaves out methods that only refer to the base class."""
        for name, member in list(cls.members.items()):
            words = member.docstring.value if member.is_function and member.docstring else ""
            if words.startswith("See `"):
                del cls.members[name]

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Looks beside the attribute, then above it."""
        if attr.docstring or not attr.is_attribute or attr.parent is None:
            return
        if not attr.parent.is_class or attr.lineno is None or attr.endlineno is None:
            return
        lines = attr.lines_collection[Path(str(attr.filepath))]
        beside = _comment("\n".join(lines[attr.lineno - 1 : attr.endlineno]))
        above: list[str] = []
        number = attr.lineno - 2
        while not beside and number >= 0 and lines[number].strip().startswith("#"):
            above.insert(0, lines[number].strip().lstrip("# "))
            number -= 1
        text = beside or " ".join(above)
        if text:
            attr.docstring = griffe.Docstring(text, lineno=attr.lineno, parent=attr)


def _comment(code: str) -> str:
    """The comments of some lines of code."""
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(code.strip()).readline):
            if token.type == tokenize.COMMENT:
                found.append(token.string.lstrip("# "))
    except (tokenize.TokenError, IndentationError):
        pass
    return " ".join(found)
