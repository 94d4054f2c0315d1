"""Base class of evaluators, the parts of `config.evals`; the package's are in evals/."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from big_retrieval.config.registry import Part, default

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.evals.evaluators import EvaluatorContext

T = TypeVar("T")


class Evaluator(Part):
    """Base class of evaluators; see `Part`."""

    kind: ClassVar[str] = "evaluator"
    data: Any = None  # source of the records; None if it reads none
    # steps between evaluations; None for `config.eval_every` and `config.eval_every_epochs`; 0
    # evaluates only at the end
    every: Any = None
    rankings: Any = False  # `run` also writes the values of each query, at the end
    modes: Any = ()  # further search modes of a lexical model
    traffic: Any = 0.0  # weight in `ranking/traffic`
    replaced: ClassVar[bool] = False  # `:runlocal` replaces it by evaluators of generated data
    # True if it ranks judged documents and has all keys of `Ranking`; BM25 can be evaluated by it
    judged: ClassVar[bool] = False

    def reads(self) -> Mapping[str, str]:
        """Returns key -> name of a field of `config.fields`, for keys that name a field."""
        return {}

    def compared(self, config: "Config") -> Mapping[str, Sequence[str]]:
        """Returns the fields that a search compares, by side ("query" and "document")."""
        fields = self.reads()
        return {
            side: [fields[side]] if side in fields else config.side(side)
            for side in ("query", "document")
        }

    def metric_names(self, config: "Config") -> Sequence[str] | None:
        """Returns all names that `run` may return; None if they are unknown before it runs."""
        return None

    def prefix(self, name: str) -> str:
        """Returns the prefix of the names of its metrics, such as `retrieval/test`."""
        return f"{self.type}/{name}"

    def check_data(self, context: "EvaluatorContext") -> None:
        """Checks data and model before the first step; raises a UserError if they do not fit."""

    @abc.abstractmethod
    def run(self, context: "EvaluatorContext", weights: Any) -> dict[str, float]:
        """Computes the metrics of these parameters, by name."""

    def runlocal(self) -> "Evaluator | None":
        """Returns a version on generated data; None if `:runlocal` replaces it."""
        if self.replaced:
            return None
        if self.data is None:
            return self
        data = default("source", "scenes", split="test", count=200)()
        return dataclasses.replace(self, data=data)  # type: ignore


def once(method: Callable[[Any, "EvaluatorContext"], T]) -> Callable[[Any, "EvaluatorContext"], T]:
    """Decorator that caches the value of an evaluator's `method(self, context)` in the context.

    Later calls return the value of the first call, so it must not depend on the weights.
    """

    @functools.wraps(method)
    def cached(self: Any, context: "EvaluatorContext") -> T:
        key = method.__qualname__, id(self)
        if key not in context.computed:
            context.computed[key] = self, method(self, context)  # keeps the id of `self` in use
        return context.computed[key][1]

    return cached
