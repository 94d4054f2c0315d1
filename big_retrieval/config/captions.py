"""Evaluators of images with several captions each: Crisscrossed Captions, and nDCG by relevance."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from big_retrieval.config.evals import Evaluator, Retrieval
from big_retrieval.config.ranges import AtLeast1
from big_retrieval.config.registry import default, register
from big_retrieval.config.sources import Source

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.evals.evaluators import EvaluatorContext, Runnable

ROUGE = "rougeL"  # the relevance that is computed here


@register("evaluator")
@dataclass(frozen=True)
class CrisscrossedCaptions(Retrieval):
    """`Retrieval` with more right answers: pairs of captions and images that people found alike.

    Parekh et al., "Crisscrossed Captions" (2021). A caption's own image stays right. R@k is whether
    any right answer is among the first k, R-precision the share of right ones among the first P.
    """

    type: Literal["crisscrossed"] = "crisscrossed"  # type: ignore[assignment]
    # sits_test.csv and so on, of the columns caption, image and agg_score; patterns, too
    files: tuple[str, ...] = ()
    min_score: float = 3.0  # of the pairs that are right, from 0 to 5
    # columns of the records: the file of the image, and a list of the ids of the captions
    image_column: str = "filename"
    caption_column: str = "sentids"

    def check(self, config: "Config", path: str) -> Iterator[str]:
        yield from super().check(config, path)
        if not self.files:
            yield f"{path}.files is empty; name the files of pairs, such as sits_test.csv."
        yield from _one_text(config, path, self.query, self.document)

    def build(self, context: "EvaluatorContext") -> "Runnable":
        from big_retrieval.evals.crisscrossed import CrisscrossedEvaluator

        source: Any = context.source
        rest = (context.topology, context.encoder, context.reading)
        return CrisscrossedEvaluator(self, source, dict(context.readers), *rest)


@register("evaluator")
@dataclass(frozen=True)
class CaptionNdcg(Evaluator):
    """nDCG of the images found for each caption, by how well their captions agree with it."""

    type: Literal["caption_ndcg"] = "caption_ndcg"
    data: Source = field(default_factory=default("source", "scenes", split="test"))
    query: str = "text"
    document: str = "image"
    # how relevant images are: "rougeL" is computed from the captions; "NAME=FILE.npy" is a file of
    # float32 [captions, images], such as TERN's spice=coco-test-spice.npy
    relevance: tuple[str, ...] = (ROUGE,)
    depth: AtLeast1 = 25  # ranks that count
    chunk: AtLeast1 = 1024  # captions scored at a time
    rankings: bool = False  # at the end, write each caption's metrics to rankings/
    every: int | None = 0  # None: `eval_every`; 0: at the end only

    def check(self, config: "Config", path: str) -> Iterator[str]:
        yield from _one_text(config, path, self.query, self.document)
        text = config.fields.get(self.query)
        if text is not None and text.modality != "text":
            yield f"{path}.query is {self.query!r}; it must be the field of the captions."
        names = list(self.files())
        if not names or len(set(names)) < len(names) or len(names) < len(self.relevance):
            yield f"{path}.relevance is {self.relevance}; name at least one, and each once."
        for name, file in self.files().items():
            if not name or (not file and name != ROUGE):
                yield f"{path}.relevance has {name!r}; write {ROUGE!r}, or 'spice=FILE.npy'."

    def files(self) -> dict[str, str]:
        """Name of the relevance -> its file; "": it is computed."""
        return {name: file for name, _, file in (x.partition("=") for x in self.relevance)}

    @property
    def search_metrics(self) -> tuple[str, ...]:
        """`rougeL/nDCG@25` and so on."""
        return tuple(f"{name}/nDCG@{self.depth}" for name in self.files())

    def reads(self) -> Mapping[str, str]:
        """Both fields."""
        return {"query": self.query, "document": self.document}

    def compared(self, config: "Config") -> Mapping[str, Sequence[str]]:
        """Both fields."""
        return {"query": [self.query], "document": [self.document]}

    def metric_names(self, config: "Config") -> Sequence[str]:
        """`rougeL/nDCG@25` and so on."""
        return self.search_metrics

    def build(self, context: "EvaluatorContext") -> "Runnable":
        from big_retrieval.evals.caption_ndcg import CaptionNdcgEvaluator

        source: Any = context.source
        rest = (context.topology, context.encoder, context.reading)
        return CaptionNdcgEvaluator(self, source, dict(context.readers), *rest)

    def runlocal(self) -> None:
        """Replaced."""


def _one_text(config: "Config", path: str, query: str, document: str) -> Iterator[str]:
    """What is wrong with the two fields: one must read texts, the other what they describe."""
    known = [config.fields[name].modality for name in (query, document) if name in config.fields]
    if len(known) == 2 and known.count("text") != 1:
        yield (
            f"{path}.query and {path}.document are {query!r} and {document!r}; one of them must "
            "read texts, the other images or their regions."
        )
