"""Base class of sources of records, for `config.data` and the data of evaluators."""

import abc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from big_retrieval.config.registry import Part, default

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.data.sources import RecordSource
    from big_retrieval.evals.zeroshot import ZeroShot


class Source(Part):
    """Base class of sources; see `Part`."""

    kind: ClassVar[str] = "source"
    generated: ClassVar[bool] = False  # its records are generated, so it opens no files
    # its records are judged pairs (`data.judged.graded.GradedPairs`): evaluations rank their
    # documents for each query
    graded: ClassVar[bool] = False
    # a query and a document with the same id are the same text: rankings then leave out the
    # document (`Ranking.same_id`)
    same_ids: ClassVar[bool] = False
    has_negatives: ClassVar[bool] = True  # records may contain hard negatives

    def check(self, path: str) -> Iterator[str]:  # type: ignore
        """Yields an error message for every bad key; `path` is such as `config.data`."""
        yield from ()

    def check_training(self, config: "Config") -> Iterator[str]:
        """Yields an error message for everything that fields and losses miss in `config.data`."""
        yield from ()

    def check_classes(self, evaluator: "ZeroShot", path: str) -> Iterator[str]:
        """Yields an error message if a zero-shot evaluator cannot classify its records."""
        if not evaluator.prompts and not evaluator.file:
            yield f"{path}.prompts is empty; own data need some, such as 'a photo of a {{}}'."

    @abc.abstractmethod
    def build(self) -> "RecordSource":
        """Opens the files and returns the records.

        Images are in the column `image` and texts in `captions`, whatever the file calls them;
        other columns keep their names.

        Raises:
          UserError: a file is missing; the message explains how to get it.
        """

    def inside(self) -> Iterator["Source"]:
        """Yields the sources of the records: itself, or the parts of a mixture."""
        yield self

    def without_texts(self) -> "Source":
        """Returns a version for images alone, which may leave texts out."""
        return self

    def runlocal(self) -> "Source":
        """Returns the source for `:runlocal`; if it is generated, evaluators are replaced, too."""
        return default("source", "scenes", count=4000)()


def not_empty(source: Any, path: str, label: str) -> Iterator[str]:
    """Yields an error message if the `path` of a source, `label`, is empty."""
    if not source.path:
        yield f"{path}.path is empty; give the {label}."


def check_terms(source: Any, path: str, *keys: str) -> Iterator[str]:
    """Yields an error message for every condition that is not like "split=train"."""
    for key in keys:
        for term in getattr(source, key):
            if not term.partition("=")[0] or "=" not in term:
                yield f"{path}.{key} has {term!r}; write column=value, such as split=train."
