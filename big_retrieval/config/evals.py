"""Configuration of evaluators; see `big_retrieval.config`."""

from dataclasses import dataclass, field
from typing import Literal

from big_retrieval.config.data import Scenes, Source


@dataclass(frozen=True)
class Retrieval:
    """Recall and rank, both ways, between two fields."""

    type: Literal["retrieval"] = "retrieval"
    data: Source = field(default_factory=lambda: Scenes(split="test"))
    query: str = "text"
    document: str = "image"
    recall_at: tuple[int, ...] = (1, 5, 10)
    group: str = ""  # column; records with the same value are right answers to each other
    # of lexical models, further ways to search: "bag" (queries as bags of words, without a
    # network), "binary" (documents), "top=64" or "top=64/128" (so many columns; see evals/modes.py)
    modes: tuple[str, ...] = ()
    chunk: int = 1024  # queries scored at a time
    every: int | None = None  # None: `eval_every`; 0: at the end only


@dataclass(frozen=True)
class ZeroShot:
    """Classification by the nearest class prompts; distances are averaged over the prompts."""

    type: Literal["zeroshot"] = "zeroshot"
    data: Source = field(default_factory=lambda: Scenes(split="colours"))
    label: str = "colour"  # column with the class, as its number or its name
    image: str = "image"
    text: str = "text"
    classes: tuple[str, ...] = ()  # empty: the source's, or all names in the label column
    prompts: tuple[str, ...] = ()  # with {} for the class name; empty: the source's
    file: str = ""  # JSON file of both, where they are empty: "prompts.json#imagenet"
    every: int | None = None


@dataclass(frozen=True)
class Ranking:
    """Graded ranking metrics of judged queries against all documents of a source."""

    type: Literal["ranking"] = "ranking"
    data: Source = field(default_factory=Scenes)  # a graded one
    queries: Literal["all", "dev", "test"] = "all"
    dev_share: float = 0.2  # of the queries, drawn by `dev_seed`; the others are for test
    dev_seed: int = 0
    # further weights of the documents' fields, such as "image" or "image=0.9,title=0.1", besides
    # those of `config.fields`; nothing is encoded twice
    documents: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()  # of lexical models, as those of Retrieval
    metrics: tuple[str, ...] = ("nDCG@10", "ERR", "RBP@0.9", "MRR", "R@10")
    err_gain: Literal["exponential", "linear"] = "exponential"  # linear: the GCL paper's text
    depth: int = 1000  # documents of a query that are ranked
    # whether a query finds the document that has its id; "auto": not in Beir data, whose own
    # evaluator leaves it out
    same_id: Literal["auto", "drop", "keep"] = "auto"
    rankings: bool = False  # at the end, write them and each query's metrics to rankings/
    traffic: float = 0.0  # weight in `ranking/traffic`, the average over evaluators with one
    chunk: int = 256
    every: int | None = None


Evaluation = Retrieval | ZeroShot | Ranking
