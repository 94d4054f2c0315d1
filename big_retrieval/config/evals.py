"""Evaluators, the parts of `config.evals`: their keys, checks and the names of their metrics."""

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.ranges import AtLeast1, NotNegative, ShareInside
from big_retrieval.config.registry import Part, default, register
from big_retrieval.config.sources import Source
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.evals.evaluators import EvaluatorContext, Runnable


class Evaluator(Part):
    """The base of all evaluators: what the rest of the code asks them.

    A subclass is a frozen dataclass with the key `type`, made known by `@register("evaluator")`.
    The attributes below may be keys of it.

    Attributes:
      data: what is evaluated on; None: no records are read.
      every: steps between evaluations; None: `config.eval_every` and `config.eval_every_epochs`;
        0: at the end only.
      rankings: whether `run` takes a folder for the rankings that it finds.
      modes: further ways to search with a lexical model.
      traffic: its weight in `ranking/traffic`.
      search_metrics: those of a search for documents, by which systems can be compared; (): it
        searches nothing.
      judged: whether it ranks judged documents, as BM25 can, too; it has the keys of `Ranking`.
    """

    kind: ClassVar[str] = "evaluator"
    data: Any = None
    every: Any = None
    rankings: Any = False
    modes: Any = ()
    traffic: Any = 0.0
    search_metrics: Any = ()
    judged: ClassVar[bool] = False

    def check(self, config: "Config", path: str) -> Iterator[str]:
        """What is wrong with its keys in this config, a sentence each.

        Args:
          config: of the run.
          path: of this evaluator, such as `config.evals.test`.
        """
        del config, path
        yield from ()

    def reads(self) -> Mapping[str, str]:
        """Key -> the field of `config.fields` that it names."""
        return {}

    def compared(self, config: "Config") -> Mapping[str, Sequence[str]]:
        """The fields of both sides that a search compares: "query" and "document" -> names."""
        return {side: config.side(side) for side in ("query", "document")}

    def metric_names(self, config: "Config") -> Sequence[str] | None:
        """The names of all that `run` may return; None: nobody knows before.

        A run ends at the first evaluation that returns another name.
        """
        del config
        return None

    def prefix(self, name: str) -> str:
        """What the names of its metrics begin with, such as `retrieval/test`."""
        return f"{self.type}/{name}"

    @abc.abstractmethod
    def build(self, context: "EvaluatorContext") -> "Runnable":
        """What checks the data before the first step, and runs.

        Args:
          context: sources, fields, topology and the encoder of the run.
        """
        raise NotImplementedError

    def runlocal(self) -> "Evaluator | None":
        """The same on generated data; None: the evaluators of `:runlocal` itself replace it."""
        if self.data is None:
            return self
        data = default("source", "scenes", split="test", count=200)()
        return dataclasses.replace(self, data=data)  # type: ignore


@register("evaluator")
@dataclass(frozen=True)
class Retrieval(Evaluator):
    """Recall, MRR, nDCG and rank, both ways, between two fields."""

    type: Literal["retrieval"] = "retrieval"
    data: Source = field(default_factory=default("source", "scenes", split="test"))
    query: str = "text"
    document: str = "image"
    recall_at: tuple[int, ...] = (1, 5, 10)
    group: str = ""  # column; records with the same value are right answers to each other
    # of lexical models, further ways to search: "bag" (queries as bags of words, without a
    # network), "binary" (documents), "top_k=64" or "top_k=64/128" (see evals/modes.py)
    modes: tuple[str, ...] = ()
    chunk: AtLeast1 = 1024  # queries scored at a time
    rankings: bool = False  # at the end, write each query's metrics to rankings/
    every: int | None = None  # None: `eval_every`; 0: at the end only

    def check(self, config: "Config", path: str) -> Iterator[str]:
        if self.query == self.document:
            yield f"{path}.query and {path}.document are both {self.query!r}; give it two fields."
        if not self.recall_at or min(self.recall_at) < 1:
            yield f"{path}.recall_at is {self.recall_at}; it must hold ranks from 1 on."
        yield from _modes(config, path, self)

    @property
    def search_metrics(self) -> tuple[str, ...]:
        """The recalls, of documents for queries."""
        return tuple(f"R@{k}" for k in self.recall_at)

    def reads(self) -> Mapping[str, str]:
        """Both fields."""
        return {"query": self.query, "document": self.document}

    def compared(self, config: "Config") -> Mapping[str, Sequence[str]]:
        """Both fields."""
        return {"query": [self.query], "document": [self.document]}

    def metric_names(self, config: "Config") -> Sequence[str]:
        """`image_to_text/R@1`, ..., `rsum`, `R-mean`; `words@5` of lexical models with images."""
        directions = (f"{self.query}_to_{self.document}", f"{self.document}_to_{self.query}")
        ranks = ("MRR@10", "nDCG@10", "mean_rank", "median_rank")
        metrics = (*self.search_metrics, "R-precision", *ranks)
        modes = ("", *(f"{mode}/" for mode in self.modes))
        found = [
            f"{mode}{direction}/{metric}"
            for mode in modes
            for direction in directions
            for metric in metrics
        ]
        found += [f"{mode}{metric}" for mode in modes for metric in ("rsum", "R-mean")]
        fields = [config.fields[x] for x in (self.query, self.document) if x in config.fields]
        lexical = all(field.head.lexical for field in fields)
        if lexical and {field.modality for field in fields} == {"image", "text"}:
            found.append("words@5")
        return found

    def build(self, context: "EvaluatorContext") -> "Runnable":
        from big_retrieval.evals.retrieval import RetrievalEvaluator

        source: Any = context.source
        rest = (context.topology, context.encoder, context.reading)
        return RetrievalEvaluator(
            self, source, dict(context.readers), *rest, duplicates=context.duplicates
        )

    def runlocal(self) -> None:
        """Replaced."""


@register("evaluator")
@dataclass(frozen=True)
class ZeroShot(Evaluator):
    """Classification of images by the prompts of each class."""

    type: Literal["zeroshot"] = "zeroshot"
    data: Source = field(default_factory=default("source", "scenes", split="colours"))
    label: str = "colour"  # column with the class, as its number (also as text) or its name
    image: str = "image"
    text: str = "text"
    classes: tuple[str, ...] = ()  # empty: the source's, or all names in the label column
    prompts: tuple[str, ...] = ()  # with {} for the class name; empty: the source's
    file: str = ""  # JSON file of both, where they are empty: "prompts.json#imagenet"
    present: bool = False  # only classes that the labels have, as ImageNet-A's 200 of 1,000
    # what is averaged over the prompts of a class: the scores of an image with them, or their
    # embeddings, brought back onto the topology (CLIP), of lexical models to the norm of the head
    ensemble: Literal["scores", "embeddings"] = "scores"
    # of lexical models, as those of Retrieval: prompts are queries, images documents
    modes: tuple[str, ...] = ()
    rankings: bool = False  # at the end, write whether each image is classified to rankings/
    every: int | None = None

    def check(self, config: "Config", path: str) -> Iterator[str]:
        for key, name in (("image", self.image), ("text", self.text)):
            if name not in config.encoded or config.encoded[name].modality != key:
                yield f"{path}.{key} is {name!r}, which is no {key} field of config.fields."
        for prompt in self.prompts:
            if "{}" not in prompt:
                yield f"{path}.prompts: {prompt!r} needs a {{}} where the class name goes."
        yield from self.data.check_classes(self, path)
        yield from _modes(config, path, self)

    def reads(self) -> Mapping[str, str]:
        """The images and the prompts."""
        return {"image": self.image, "text": self.text}

    def compared(self, config: "Config") -> Mapping[str, Sequence[str]]:
        """The prompts as queries, the images as documents."""
        return {"query": [self.text], "document": [self.image]}

    def metric_names(self, config: "Config") -> Sequence[str]:
        """Of the nearest class, and of the five nearest; `<mode>/accuracy` and so on of modes."""
        modes = ("", *(f"{mode}/" for mode in self.modes))
        return [f"{mode}{name}" for mode in modes for name in ("accuracy", "top5_accuracy")]

    def build(self, context: "EvaluatorContext") -> "Runnable":
        from big_retrieval.evals.zeroshot import ZeroShotEvaluator

        source: Any = context.source
        rest = (context.topology, context.encoder, context.reading)
        return ZeroShotEvaluator(self, source, dict(context.readers), *rest, name=context.name)

    def runlocal(self) -> None:
        """Replaced."""


@register("evaluator")
@dataclass(frozen=True)
class Ranking(Evaluator):
    """Graded ranking metrics of judged queries against all documents of a source."""

    judged: ClassVar[bool] = True
    type: Literal["ranking"] = "ranking"
    data: Source = field(default_factory=default("source", "scenes"))  # a graded one
    queries: Literal["all", "dev", "test"] = "all"
    # JSON file whose keys are the only queries that are asked, such as the judged ones of GCL's
    # authors: {query: {document: score}}; their relevance stays that of the data
    query_file: str = ""
    dev_share: ShareInside = 0.2  # of the queries, drawn by `dev_seed`; the others are for test
    dev_seed: int = 0
    # further weights of the documents' fields, such as "image" or "image=0.9,title=0.1", besides
    # those of `config.fields`; nothing is encoded twice
    documents: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()  # of lexical models, as those of Retrieval
    metrics: tuple[str, ...] = ("nDCG@10", "ERR", "RBP@0.9", "MRR", "R@10")
    err_gain: Literal["exponential", "linear"] = "exponential"  # linear: the GCL paper's text
    depth: AtLeast1 = 1000  # documents of a query that are ranked
    # whether a query finds the document that has its id; "auto": not in Beir data, whose own
    # evaluator leaves it out
    same_id: Literal["auto", "drop", "keep"] = "auto"
    rankings: bool = False  # at the end, write them and each query's metrics to rankings/
    traffic: NotNegative = 0.0  # weight in `ranking/traffic`, the average over evaluators with one
    # documents of a query that reports show and whose relevance they add up; None: 5 and 10
    shown: AtLeast1 | None = None
    chunk: AtLeast1 = 256
    every: int | None = None

    def check(self, config: "Config", path: str) -> Iterator[str]:
        from big_retrieval.evals.graded import parse_metric
        from big_retrieval.evals.modes import parse_weighting

        if not self.data.graded:
            yield (
                f"{path}.data is of the type {self.data.type!r}, which has no judged pairs; give "
                "it a source of the type 'graded' or 'beir'."
            )
        if not self.metrics:
            yield f"{path}.metrics is empty; name some, such as ('nDCG@10', 'ERR')."
        try:
            for metric in self.metrics:
                parse_metric(metric)
            for text in self.documents:
                parse_weighting(text, self.compared(config)["document"], f"{path}.documents")
        except UserError as problem:
            text = str(problem)
            yield text if path in text else f"{path}.metrics: {text}"
        yield from _modes(config, path, self)

    @property
    def search_metrics(self) -> tuple[str, ...]:
        """All of its metrics."""
        return self.metrics

    def metric_names(self, config: "Config") -> Sequence[str]:
        """`nDCG@10`, ...; `<weights>/nDCG@10` and `<mode>/nDCG@10` of what else is tried."""
        prefixes = ("", *(f"{text}/" for text in (*self.documents, *self.modes)))
        return [f"{prefix}{metric}" for prefix in prefixes for metric in self.metrics]

    def build(self, context: "EvaluatorContext") -> "Runnable":
        from big_retrieval.evals.ranking import RankingEvaluator

        judged: Any = context.source  # `check` saw that it is
        rest = (context.readers, context.topology, context.encoder, context.reading)
        return RankingEvaluator(self, judged, context.fields, *rest)

    def runlocal(self) -> None:
        """Replaced."""


def _modes(config: "Config", path: str, part: Evaluator) -> Iterator[str]:
    """What is wrong with the modes of a lexical model."""
    from big_retrieval.config.run import is_lexical
    from big_retrieval.evals.modes import SIDES, misfit, parse_mode

    compared = part.compared(config)
    sides = {side: [x for x in compared[side] if x in config.encoded] for side in SIDES}
    if part.modes and not is_lexical(config, *sides["query"], *sides["document"]):
        yield f"{path}.modes are for lexical models, which this is not; leave them out."
        return
    for text in part.modes:
        try:
            mode = parse_mode(text, f"{path}.modes")
        except UserError as problem:
            yield str(problem)
            continue
        wrong = (misfit(mode, side, config.fields, sides[side]) for side in SIDES)
        yield from (f"{path}.modes has {mode.name!r}, but {why}." for why in wrong if why)
