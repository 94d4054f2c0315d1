"""The evaluator that measures how embeddings lie in their space."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from big_retrieval.config.evals import Evaluator
from big_retrieval.config.ranges import Range
from big_retrieval.config.registry import default, register
from big_retrieval.config.sources import Source

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.evals.evaluators import EvaluatorContext, Runnable


@register("evaluator")
@dataclass(frozen=True)
class Geometry(Evaluator):
    """Distances, alignment, uniformity, rank and correlation of the embeddings of pairs.

    Give it twice, with pairs of the training domain and with others, to compare the domains.
    """

    type: Literal["geometry"] = "geometry"
    data: Source = field(default_factory=default("source", "scenes", split="test"))
    query: str = "text"
    document: str = "image"
    count: Annotated[int, Range(2)] = 1000  # records, the first ones; of several texts the first
    per_sphere: bool = False  # further numbers of each sub-sphere, besides their means
    every: int | None = None  # None: `eval_every`; 0: at the end only

    def check(self, config: "Config", path: str) -> Iterator[str]:
        if self.query == self.document:
            yield f"{path}.query and {path}.document are both {self.query!r}; give it two fields."
        for name in (self.query, self.document):
            if name in config.encoded and config.encoded[name].head.lexical:
                yield f"{path}: {name!r} is lexical; geometry is measured of dense embeddings."

    def reads(self) -> Mapping[str, str]:
        """Both fields."""
        return {"query": self.query, "document": self.document}

    def metric_names(self, config: "Config") -> Sequence[str] | None:
        """Of pairs, and of each field; nobody knows before how many sub-spheres there are."""
        if self.per_sphere:
            return None
        pairs = (
            "positive_distance", "negative_distance", "positive_std", "negative_std",
            "beyond_bound", "alignment",
        )  # fmt: skip
        each = ("uniformity", "effective_rank", "token_correlation")
        fields = (self.query, self.document)
        return *pairs, *(f"{metric}_{name}" for name in fields for metric in each)

    def build(self, context: "EvaluatorContext") -> "Runnable":
        from big_retrieval.evals.geometry import GeometryEvaluator

        return GeometryEvaluator(self, context)
