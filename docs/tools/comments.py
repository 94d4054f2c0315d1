"""An extension of griffe: the comments of a dataclass's keys are their documentation.

    lr: float = 1e-3  # peak of the schedule

Comments are read as --help reads them. Methods without a docstring in a class that has a base are
left out: the base class has the words.
"""

from pathlib import Path
from typing import Any

import griffe

from big_retrieval.cli.options import comment_meanings


class Comments(griffe.Extension):
    """Gives attributes of classes a docstring out of their comments."""

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Leaves methods out, and gives keys their comments."""
        lines = cls.lines_collection[Path(str(cls.filepath))]
        comments = comment_meanings(lines[(cls.lineno or 1) - 1 : cls.endlineno])
        for name, member in list(cls.members.items()):
            if member.is_function and not member.docstring and cls.bases:
                del cls.members[name]
            elif member.is_attribute and not member.docstring and name in comments:
                text = comments[name]
                member.docstring = griffe.Docstring(text, lineno=member.lineno, parent=member)
