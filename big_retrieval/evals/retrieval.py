"""Retrieval in both directions between two fields of the same records."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy.sparse

from big_retrieval.config import AtLeast1, Config, Scenes, Source, register
from big_retrieval.config.evals import Evaluator, once
from big_retrieval.data.duplicates import OFF, Duplicates, SharedValues
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.groups import (
    FieldItems,
    check_group,
    encode_items,
    group_numbers,
    positives_of,
)
from big_retrieval.evals.intervals import few_queries_note
from big_retrieval.evals.modes import (
    SIDES,
    bags_of_texts,
    check_modes,
    in_mode,
    mode_prefixes,
    parse_mode,
    words_shared,
)
from big_retrieval.evals.positives import FieldKeys, contents_of, keys_of
from big_retrieval.evals.rankings import write_values
from big_retrieval.evals.ranks import FIRST, MRR, NDCG, Ranks, ranks
from big_retrieval.inference.encoder import Encoder

log = logging.getLogger(__name__)
STRONGEST = 5  # terms of an image that `words@5` compares with its texts


class RetrievalResult(NamedTuple):
    """Rankings of both directions, for examples."""

    # queries, documents, and the rank of each query's best positive, [Q]
    directions: Sequence[tuple[FieldItems, FieldItems, np.ndarray]]
    chunk: int
    weights: Any


@register("evaluator")
@dataclass(frozen=True)
class Retrieval(Evaluator):
    """Recall, MRR, nDCG and rank, both ways, between two fields.

    If a record has several texts, the best-ranked text counts for the image, and each text is a
    query. MRR is 1 / the rank of the best positive; for nDCG every positive has the gain 1.
    Among equal scores, negatives come first. With a group column, every record of the query's group
    is a positive, and identical texts of one group count once. Without a group column, records that
    share a text or an image are positives of each other (`positives.py`).
    """

    replaced: ClassVar[bool] = True
    type: Literal["retrieval"] = "retrieval"
    data: Source = field(default_factory=lambda: Scenes(split="test"))
    query: str = "text"
    document: str = "image"
    recall_at: tuple[int, ...] = (1, 5, 10)
    group: str = ""  # column; records with the same value are positives of each other
    # additional search modes of lexical models: "bag" (queries as bags of words, without a
    # network), "binary" (documents), "top_k=64" or "top_k=64/128" (see evals/modes.py)
    modes: tuple[str, ...] = ()
    chunk: AtLeast1 = 1024  # maximum number of queries scored at a time
    rankings: bool = False  # at the end, write each query's metrics to rankings/
    every: int | None = None  # None for `eval_every`; 0 evaluates only at the end

    def check(self, config: Config, path: str) -> Iterator[str]:
        if self.query == self.document:
            yield f"{path}.query and {path}.document are both {self.query!r}; give it two fields."
        if not self.recall_at or min(self.recall_at) < 1:
            yield f"{path}.recall_at is {self.recall_at}; give it ranks, at least 1."
        yield from check_modes(self, config, path)

    def reads(self) -> Mapping[str, str]:
        return {"query": self.query, "document": self.document}

    def metric_names(self, config: Config) -> Sequence[str]:
        directions = (f"{self.query}_to_{self.document}", f"{self.document}_to_{self.query}")
        other = (MRR, NDCG, "mean_rank", "median_rank")
        metrics = (*(f"R@{k}" for k in self.recall_at), "R-precision", *other)
        plain = [f"{direction}/{metric}" for direction in directions for metric in metrics]
        plain += ["rsum", "R-mean"]
        names = [f"{mode}{name}" for mode in mode_prefixes(self.modes) for name in plain]
        fields = [config.fields[x] for x in (self.query, self.document) if x in config.fields]
        lexical = all(field.head.lexical for field in fields)
        if lexical and {field.modality for field in fields} == {"image", "text"}:
            names.append(f"words@{STRONGEST}")
        return names

    def check_data(self, context: EvaluatorContext) -> None:
        context.try_fields(self.document, self.query)
        if self.group:
            check_group(context.source, self.group)
        self.keys(context)  # logs records that share contents

    def run(self, context: EvaluatorContext, weights: Any) -> dict[str, float]:
        """Encodes all records and ranks them in both directions.

        Writes the values of each query to the folder `<rankings>-<direction>`.

        Returns:
          Metrics of each direction, such as `image_to_text/R@1`; `rsum`, the sum of all recalls in
          percent; `R-mean`, the mean of all recalls. Lexical models add the metrics of modes
          (`<mode>/image_to_text/R@1`) and, if they have images, `words@5`: the share of an image's
          five strongest terms that occur in at least one of its texts.
        """
        names = self.document, self.query
        fields = self.encode(context, weights)
        counts = [fields[name].embeddings.shape[0] for name in names]
        log.info(
            f"embeddings: {counts[0]:,} of field {names[0]!r} against {counts[1]:,} of {names[1]!r}"
        )
        bow = self._bags(context, fields)
        out: dict[str, float] = {}
        shown: list[tuple[FieldItems, FieldItems, np.ndarray]] = []
        values: dict[str, dict[str, np.ndarray]] = {}  # direction -> metric -> value of each query
        for prefix, sides in self._by_mode(context, fields, bow):
            metrics: dict[str, float] = {}
            for first, second in (names, names[::-1]):
                direction = f"{first}_to_{second}"
                result = self._ranks(context, sides[first], sides[second])
                means = summarise(result, self.recall_at)
                metrics |= {f"{direction}/{key}": value for key, value in means.items()}
                by_metric = by_query(result, self.recall_at)
                of_direction = values.setdefault(direction, {})
                of_direction |= {f"{prefix}{key}": value for key, value in by_metric.items()}
                if not prefix:
                    shown.append((sides[first], sides[second], result.best))
                    recall = f"R@{self.recall_at[0]}"
                    interval = {f"{direction}/{recall}": means[recall]}
                    if note := few_queries_note(interval, len(result.best)):
                        log.info(note)
            recalls = [value for name, value in metrics.items() if "/R@" in name]
            metrics |= {"rsum": 100 * sum(recalls), "R-mean": sum(recalls) / len(recalls)}
            out |= {f"{prefix}{key}": value for key, value in metrics.items()}
        out |= _words_of_images(fields, bow)
        if context.rankings is not None:
            for (first, *_), (direction, by_metric) in zip(shown, values.items(), strict=True):
                folder = context.rankings.with_name(f"{context.rankings.name}-{direction}")
                write_values(folder, first.names(), by_metric, context.extras)
        if context.show is not None:
            context.show(RetrievalResult(shown, self.chunk, weights))
        return out

    def _ranks(self, context: EvaluatorContext, first: FieldItems, second: FieldItems) -> Ranks:
        """Ranks all items of the second field for each item of the first."""
        options: Any = {"score": context.topology.score, "encoder": context.encoder}
        positives = positives_of(first, second)
        return ranks(first.embeddings, second.embeddings, positives, chunk=self.chunk, **options)

    def _bags(self, context: EvaluatorContext, fields: Mapping[str, FieldItems]) -> dict[str, Any]:
        """Returns the bags of words of lexical texts, [n, V] by field; empty if not needed."""
        sides = fields.values()
        lexical = all(scipy.sparse.issparse(side.embeddings) for side in sides)
        texts = [side for side in sides if side.reader.field.modality == "text"]
        has_images = any(side.reader.field.modality == "image" for side in sides)
        if not lexical or not (has_images or self.modes):
            return {}
        return {side.field: bags_of_items(context.encoder, side) for side in texts}

    def _by_mode(
        self, context: EvaluatorContext, fields: Mapping[str, FieldItems], bow: Mapping[str, Any]
    ) -> Iterator[tuple[str, Mapping[str, FieldItems]]]:
        """Yields the prefix of the metrics and the fields: as encoded, and in each mode."""
        yield "", fields
        for text in self.modes:
            mode, changed = parse_mode(text, f"{context.path}.modes"), {}
            for name, side in zip((self.query, self.document), SIDES, strict=True):
                embeddings = in_mode(fields[name].embeddings, mode, side, bow.get(name))
                changed[name] = dataclasses.replace(fields[name], embeddings=embeddings)
            yield f"{text}/", changed

    def encode(self, context: EvaluatorContext, weights: Any) -> dict[str, FieldItems]:
        """Encodes both fields of all records, by field name."""
        source, keys = context.source, self.keys(context)
        groups = group_numbers(source, self.group) if self.group else None  # [records]
        encoder = context.source_encoder(weights)
        fields = {
            name: encode_items(encoder, source, name, context.readers[name], groups)
            for name in (self.document, self.query)
        }
        if keys is None:
            return fields
        for name, side in fields.items():
            side_keys, values = keys[name].lookup(side.items)
            fields[name] = dataclasses.replace(side, keys=side_keys, values=values)
        return fields

    @once
    def keys(self, context: EvaluatorContext) -> dict[str, FieldKeys] | None:
        """Returns the keys of both fields; None if no records share contents."""
        if self.group or not context.duplicates:
            return None
        source, count = context.source, len(context.source)
        names = self.document, self.query
        documents, queries = (contents_of(source, context.readers[name]) for name in names)
        if documents is None or queries is None:
            return None
        contents = zip(names, (documents, queries), strict=True)
        shared = {name: SharedValues(count, *x.shared()) for name, x in contents}
        if sentence := Duplicates(count, shared).sentence(source.name):
            log.info(f"{sentence}; they are positives of each other ({OFF})")
            return dict(zip(names, keys_of(documents, queries), strict=True))
        return None


def bags_of_items(encoder: Encoder, side: FieldItems) -> scipy.sparse.csr_array:
    """Returns the bags of words of a lexical side's texts, [n, V]."""
    return bags_of_texts(encoder, side.field, side.source, side.reader, side.items)


def by_query(result: Ranks, recall_at: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Returns the metrics of each query that `summarise` averages, [Q] each."""
    best, answered = result.best, result.answered
    recalls = {f"R@{k}": (answered & (best <= k)).astype(float) for k in recall_at}
    reciprocal = np.where(answered & (best <= FIRST), 1 / best, 0.0)
    return {**recalls, "R-precision": result.precision, MRR: reciprocal, NDCG: result.ndcg}


def summarise(result: Ranks, recall_at: tuple[int, ...]) -> dict[str, float]:
    """Returns recalls and R-precision as fractions, MRR@10, nDCG@10, mean and median rank.

    Papers on image-text retrieval round the median down: floor(median of ranks from 0) + 1.
    """
    out = {name: float(np.mean(values)) for name, values in by_query(result, recall_at).items()}
    out["mean_rank"] = float(np.mean(result.best))
    return {**out, "median_rank": float(np.floor(np.median(result.best)))}


def _words_of_images(
    fields: Mapping[str, FieldItems], bow: Mapping[str, scipy.sparse.csr_array]
) -> dict[str, float]:
    """Returns `words@5` of a lexical model of texts and images; empty for other models."""
    images = [side for side in fields.values() if side.reader.field.modality == "image"]
    if not (images and bow):
        return {}
    ((text, bags),) = bow.items()
    bags = _bags_by_owner(bags, fields[text].owners, images[0].owners)
    return {f"words@{STRONGEST}": words_shared(images[0].embeddings, bags, STRONGEST)}


def _bags_by_owner(bags: Any, text_owners: np.ndarray, owners: np.ndarray) -> Any:
    """Adds up the bags of words [T, V] of the texts of each owner, [n, V]."""
    unique, row = np.unique(owners, return_inverse=True)
    index = np.minimum(np.searchsorted(unique, text_owners), len(unique) - 1)
    present = np.flatnonzero(unique[index] == text_owners)
    entries = (np.ones(len(present), np.float32), (index[present], present))
    matrix = scipy.sparse.csr_array(entries, shape=(len(unique), len(text_owners)))
    return scipy.sparse.csr_array(matrix @ bags)[row]
