"""Sources: where records come from; the base of `config.data` and of the data of evaluators."""

import abc
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from big_retrieval.config.ranges import LIMIT
from big_retrieval.config.registry import Part, default

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.data.sources import RecordSource
    from big_retrieval.evals.zeroshot import ZeroShot


class Source(Part):
    """The base of all sources: what the rest of the code asks them.

    A subclass is a frozen dataclass with the key `type`, made known by `@register("source")`. The
    attributes below may be properties of it. `build` opens its files and returns the records
    (`RecordSource` of `big_retrieval/data/sources.py`), with images in the column `image` and texts
    in `captions`, whatever the file calls them, and the other columns as they are.

    Attributes:
      generated: whether the records are made up, so that opening it needs no files.
      graded: whether they are judged pairs, whose documents evaluations rank for each query
        (`data.judged.qrels.JudgedSource`).
      same_ids: whether a query and a document may have the same id because they are the same text,
        so that rankings leave the document out (`Ranking.same_id`).
      has_negatives: whether records may bring hard negatives.
    """

    kind: ClassVar[str] = "source"
    generated: ClassVar[bool] = False
    graded: ClassVar[bool] = False
    same_ids: ClassVar[bool] = False
    has_negatives: ClassVar[bool] = True

    def check(self, path: str) -> Iterator[str]:
        """What is wrong with its keys, a sentence each; `path` names it, such as `config.data`."""
        del path
        yield from ()

    def check_training(self, config: "Config") -> Iterator[str]:
        """What fields and losses want of `config.data` that it does not have, a sentence each."""
        del config
        yield from ()

    def check_classes(self, evaluator: "ZeroShot", path: str) -> Iterator[str]:
        """What a zero-shot evaluator lacks to classify its records, a sentence each.

        `path` names the evaluator, such as `config.evals.colours`.
        """
        if not evaluator.prompts and not evaluator.file:
            yield f"{path}.prompts is empty; own data need some, such as 'a photo of a {{}}'."

    @abc.abstractmethod
    def build(self) -> "RecordSource":
        """Opens its files and returns the records.

        Raises:
          UserError: a file is missing; the message says how to get it.
        """
        raise NotImplementedError

    def inside(self) -> Iterator["Source"]:
        """The sources that records really come from: itself, or the parts of a mixture."""
        yield self

    def without_texts(self) -> "Source":
        """The same where images alone are wanted; it may leave texts out."""
        return self

    def runlocal(self) -> "Source":
        """What `:runlocal` reads instead: generated data, unless overridden.

        Generated data come with evaluators of their own; with others, those evaluators of the
        config stay whose data stay, too.
        """
        return default("source", "scenes", count=4000)()


def not_empty(source: Any, path: str, what: str) -> Iterator[str]:
    """The sentence for a source of files whose `path` is empty."""
    if not source.path:
        yield f"{path}.path is empty; give the {what}."


def check_terms(source: Any, path: str, *keys: str) -> Iterator[str]:
    """What is wrong with conditions such as "split=train"."""
    for key in keys:
        for term in getattr(source, key):
            if not term.partition("=")[0] or "=" not in term:
                yield f"{path}.{key} has {term!r}; write column=value, such as split=train."


def check_min_relevance(source: Any, path: str) -> Iterator[str]:
    """What is wrong with the lowest relevance of the pairs that are kept."""
    if not (math.isfinite(source.min_relevance) and source.min_relevance >= 0):
        given = source.min_relevance
        yield f"{path}.min_relevance is {given}; it must be 0 (keep all pairs) or more."


def check_drawn(source: Any, path: str, most: int, none: str = "") -> Iterator[str]:
    """What is wrong with generated images: `size`, `count` (at most `most`) and `seed`."""
    if source.size < 16:
        yield f"{path}.size is {source.size}; shapes need at least 16 pixels to differ."
    if source.count is not None and not 1 <= source.count <= most:
        yield f"{path}.count is {source.count}; it must be from 1 to {most}{none}."
    if not 0 <= source.seed < LIMIT:
        yield f"{path}.seed is {source.seed}; it must be from 0 to {LIMIT - 1}."
