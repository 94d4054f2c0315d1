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
from big_retrieval.evals.bags import bags_of_texts, in_mode, words_shared
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.groups import FieldItems, check_group, encode_items, group_numbers
from big_retrieval.evals.intervals import few_queries_note
from big_retrieval.evals.modes import SIDES, check_modes, parse_mode
from big_retrieval.evals.rankings import write_values
from big_retrieval.evals.ranks import FIRST, MRR, NDCG, Ranks, ranks
from big_retrieval.evals.same import FieldKeys, contents_of, keys_of
from big_retrieval.inference.encoder import Encoder

log = logging.getLogger(__name__)
STRONGEST = 5  # terms of an image that `words@5` compares with its texts


class RetrievalResult(NamedTuple):
    """Rankings of both directions, for examples.

    Attributes:
      directions: queries, documents, and the rank of each query's best positive, [Q].
      chunk: queries scored at a time.
      weights: of the model.
    """

    directions: Sequence[tuple[FieldItems, FieldItems, np.ndarray]]
    chunk: int
    weights: Any


@register("evaluator")
@dataclass(frozen=True)
class Retrieval(Evaluator):
    """Recall, MRR, nDCG and rank, both ways, between two fields.

    If a record has several texts, an image's best-placed one counts, and each text is a query.
    MRR is 1 / the rank of the best-placed positive; for nDCG every positive has the gain 1. Among
    equal scores, negatives come first. With a group column, every record of the query's group is a
    positive, and identical texts of one group count once; images stay one each. Without one,
    records that share a text or an image are positives of each other (`evals/same.py`), and every
    text stays a query.
    """

    replaced: ClassVar[bool] = True
    type: Literal["retrieval"] = "retrieval"
    data: Source = field(default_factory=lambda: Scenes(split="test"))
    query: str = "text"
    document: str = "image"
    recall_at: tuple[int, ...] = (1, 5, 10)
    group: str = ""  # column; records with the same value are positives of each other
    # of lexical models, further ways to search: "bag" (queries as bags of words, without a
    # network), "binary" (documents), "top_k=64" or "top_k=64/128" (see evals/modes.py)
    modes: tuple[str, ...] = ()
    chunk: AtLeast1 = 1024  # queries scored at a time
    rankings: bool = False  # at the end, write each query's metrics to rankings/
    every: int | None = None  # None for `eval_every`; 0 evaluates only at the end

    def check(self, config: Config, path: str) -> Iterator[str]:
        if self.query == self.document:
            yield f"{path}.query and {path}.document are both {self.query!r}; give it two fields."
        if not self.recall_at or min(self.recall_at) < 1:
            yield f"{path}.recall_at is {self.recall_at}; it must hold ranks from 1 on."
        yield from check_modes(self, config, path)

    @property
    def search_metrics(self) -> tuple[str, ...]:
        """The recalls, of documents for queries."""
        return tuple(f"R@{k}" for k in self.recall_at)

    def reads(self) -> Mapping[str, str]:
        return {"query": self.query, "document": self.document}

    def metric_names(self, config: Config) -> Sequence[str]:
        """`image_to_text/R@1`, ..., `rsum`, `R-mean`; `words@5` of lexical models with images."""
        directions = (f"{self.query}_to_{self.document}", f"{self.document}_to_{self.query}")
        other = (MRR, NDCG, "mean_rank", "median_rank")
        metrics = (*self.search_metrics, "R-precision", *other)
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
            found.append(f"words@{STRONGEST}")
        return found

    def check_data(self, context: EvaluatorContext) -> None:
        """Reads the first record, and finds records that share texts or images.

        Raises:
          UserError: a field or the group column does not fit the data.
        """
        context.try_fields(self.document, self.query)
        if self.group:
            check_group(context.source, self.group)
        self.keys(context)

    def run(self, context: EvaluatorContext, weights: Any) -> dict[str, float]:
        """Encodes all records and ranks them in both directions.

        The values of each query go to the folder `<rankings>-<direction>`.

        Returns:
          Metrics of each direction, such as `image_to_text/R@1`; `rsum`, the sum of all recalls in
          percent; `R-mean`, the mean of all recalls. Lexical models add the metrics of modes
          (`<mode>/image_to_text/R@1`) and, if they have images, `words@5`: the share of an image's
          five strongest terms that occur in one of its texts.
        """
        names = self.document, self.query
        fields = self.encode(context, weights)
        counts = [fields[name].embeddings.shape[0] for name in names]
        log.info(
            f"embeddings: {counts[0]:,} of field {names[0]!r} against {counts[1]:,} of {names[1]!r}"
        )
        how = {"score": context.topology.score, "encoder": context.encoder, "chunk": self.chunk}
        out: dict[str, float] = {}
        directions = []
        names_of: dict[str, list[str]] = {}  # direction -> its queries
        values: dict[str, dict[str, np.ndarray]] = {}  # direction -> metric -> of each query
        for direction, (first, second), result in self._directions(fields, how):
            out |= {f"{direction}/{key}": x for key, x in summarise(result, self.recall_at).items()}
            recall = f"{direction}/R@{self.recall_at[0]}"
            if note := few_queries_note({recall: out[recall]}, len(result.best)):
                log.info(note)
            names_of[direction] = first.names()
            values[direction] = by_query(result, self.recall_at)
            directions.append((first, second, result.best))
        out |= _of_both_directions(out)
        out |= self._lexical(context, fields, how, values)
        if context.rankings is not None:
            for direction, by_metric in values.items():
                folder = context.rankings.with_name(f"{context.rankings.name}-{direction}")
                write_values(folder, names_of[direction], by_metric, context.extras)
        if context.show is not None:
            context.show(RetrievalResult(directions, self.chunk, weights))
        return out

    def _directions(
        self, fields: Mapping[str, FieldItems], how: dict[str, Any]
    ) -> Iterator[tuple[str, tuple[FieldItems, FieldItems], Ranks]]:
        """Yields the name, both sides and the ranks of each direction."""
        names = self.document, self.query
        for first, second in (names, names[::-1]):
            sides = fields[first], fields[second]
            yield f"{first}_to_{second}", sides, ranks_of(*sides, **how)

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
            side_keys, values = keys[name].of(side.items)
            fields[name] = dataclasses.replace(side, keys=side_keys, values=values)
        return fields

    @once
    def keys(self, context: EvaluatorContext) -> dict[str, FieldKeys] | None:
        """Returns the keys of both fields' items; None if no records share contents."""
        if self.group or not context.duplicates:
            return None
        source, count = context.source, len(context.source)
        documents = contents_of(source, context.readers[self.document])
        queries = contents_of(source, context.readers[self.query])
        if documents is None or queries is None:
            return None
        names, contents = (self.document, self.query), (documents, queries)
        shared = {
            name: SharedValues(count, *x.shared()) for name, x in zip(names, contents, strict=True)
        }
        if sentence := Duplicates(count, shared).sentence(source.name):
            log.info(f"{sentence}; they are right answers of each other ({OFF})")
            return dict(zip(names, keys_of(*contents), strict=True))
        return None

    def _lexical(
        self,
        context: EvaluatorContext,
        fields: dict[str, FieldItems],
        how: dict[str, Any],
        values: dict[str, dict[str, np.ndarray]],
    ) -> dict[str, float]:
        """Returns the metrics of modes, and `words@5`; adds values by query to `values`."""
        images = [x for x in fields.values() if x.reader.field.modality == "image"]
        lexical = all(scipy.sparse.issparse(x.embeddings) for x in fields.values())
        if not lexical or not (images or self.modes):
            return {}
        bow = {
            name: bags_of_items(context.encoder, side)
            for name, side in fields.items()
            if side.reader.field.modality == "text"
        }
        out: dict[str, float] = {}
        for text in self.modes:
            mode, changed = parse_mode(text, f"{context.path}.modes"), {}
            for name, side in zip((self.query, self.document), SIDES, strict=True):
                embeddings = in_mode(fields[name].embeddings, mode, side, bow.get(name))
                changed[name] = dataclasses.replace(fields[name], embeddings=embeddings)
            metrics: dict[str, float] = {}
            for direction, _, result in self._directions(changed, how):
                means = summarise(result, self.recall_at)
                metrics |= {f"{direction}/{key}": value for key, value in means.items()}
                by_metric = by_query(result, self.recall_at)
                values[direction] |= {f"{text}/{key}": value for key, value in by_metric.items()}
            metrics |= _of_both_directions(metrics)
            out |= {f"{text}/{key}": value for key, value in metrics.items()}
        if bow and images:
            ((text, bags),), image = bow.items(), images[0]
            bags = _bags_by_owner(bags, fields[text].owners, image.owners)
            out[f"words@{STRONGEST}"] = words_shared(image.embeddings, bags, STRONGEST)
        return out


def bags_of_items(encoder: Encoder, side: FieldItems) -> scipy.sparse.csr_array:
    """Returns the bags of words of a lexical side's texts, [n, V]."""
    return bags_of_texts(encoder, side.field, side.source, side.reader, side.items)


def by_query(found: Ranks, recall_at: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Returns the metrics of each query that `summarise` averages, [Q] each."""
    recalls = {f"R@{k}": (found.answered & (found.best <= k)).astype(float) for k in recall_at}
    reciprocal = np.where(found.answered & (found.best <= FIRST), 1 / found.best, 0.0)
    return {**recalls, "R-precision": found.precision, MRR: reciprocal, NDCG: found.ndcg}


def summarise(found: Ranks, recall_at: tuple[int, ...]) -> dict[str, float]:
    """Returns recalls and R-precision as fractions, MRR@10, nDCG@10, mean and median rank.

    Papers on image-text retrieval round the median down: floor(median of ranks from 0) + 1.
    """
    out = {name: float(np.mean(values)) for name, values in by_query(found, recall_at).items()}
    out["mean_rank"] = float(np.mean(found.best))
    return {**out, "median_rank": float(np.floor(np.median(found.best)))}


def ranks_of(first: FieldItems, second: FieldItems, **how: Any) -> Ranks:
    """Ranks all items of the second field for each item of the first."""
    sides = first.embeddings, first.ids, second.embeddings, second.ids
    return ranks(*sides, further=first.further, **how)


def _of_both_directions(numbers: Mapping[str, float]) -> dict[str, float]:
    """Returns `rsum`, the sum of all recalls in percent, and `R-mean`, their mean."""
    recalls = [value for name, value in numbers.items() if "/R@" in name]
    return {"rsum": 100 * sum(recalls), "R-mean": sum(recalls) / len(recalls)}


def _bags_by_owner(bags: Any, text_owners: np.ndarray, owners: np.ndarray) -> Any:
    """Adds up the bags of words [T, V] of all texts of each owner, [n, V]."""
    unique, row = np.unique(owners, return_inverse=True)
    index = np.minimum(np.searchsorted(unique, text_owners), len(unique) - 1)
    present = np.flatnonzero(unique[index] == text_owners)
    entries = (np.ones(len(present), np.float32), (index[present], present))
    matrix = scipy.sparse.csr_array(entries, shape=(len(unique), len(text_owners)))
    return scipy.sparse.csr_array(matrix @ bags)[row]
