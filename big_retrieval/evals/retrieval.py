"""Retrieval in both directions between two fields of the same records."""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval import config as configs
from big_retrieval.config.topologies import Topology
from big_retrieval.data.batches import try_record
from big_retrieval.data.duplicates import OFF, Duplicates, SharedValues
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import RecordSource
from big_retrieval.evals import examples
from big_retrieval.evals.attributions import of_records
from big_retrieval.evals.bags import bags_of, in_mode, words_shared
from big_retrieval.evals.groups import FieldItems, check_group, encode_items, group_numbers
from big_retrieval.evals.intervals import few_queries_note
from big_retrieval.evals.modes import SIDES, parse_mode
from big_retrieval.evals.rankings import write_values
from big_retrieval.evals.ranks import FIRST, MRR, NDCG, Ranks, ranks
from big_retrieval.evals.same import FieldKeys, contents_of, keys_of
from big_retrieval.inference.encoder import Encoder
from big_retrieval.runtime.extras import Extras

log = logging.getLogger(__name__)
STRONGEST = 5  # words of an image that are looked at


def by_query(found: Ranks, recall_at: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The metrics of each query that `summarise` averages, [Q] each.

    Args:
      found: where the right answers are.
      recall_at: the k of R@k.
    """
    recalls = {f"R@{k}": (found.answered & (found.best <= k)).astype(float) for k in recall_at}
    reciprocal = np.where(found.answered & (found.best <= FIRST), 1 / found.best, 0.0)
    return {**recalls, "R-precision": found.precision, MRR: reciprocal, NDCG: found.ndcg}


def summarise(found: Ranks, recall_at: tuple[int, ...]) -> dict[str, float]:
    """Recalls and R-precision as fractions, MRR@10, nDCG@10, mean and median rank.

    Between two ranks in the middle the median is the smaller whole one, as papers on image-text
    retrieval have it: floor(median of ranks from 0) + 1.

    Args:
      found: where the right answers are.
      recall_at: the k of R@k.
    """
    out = {name: float(np.mean(values)) for name, values in by_query(found, recall_at).items()}
    out["mean_rank"] = float(np.mean(found.best))
    return {**out, "median_rank": float(np.floor(np.median(found.best)))}


@dataclass(frozen=True)
class RetrievalEvaluator:
    """R@k, R-precision, MRR@10, nDCG@10, mean and median rank, of document to query and back.

    Where a record has several texts, an image's best-placed one counts, and each text is a query
    of its own. MRR is 1 / the rank of the best-placed right answer; for nDCG every right answer has
    the gain 1. Of equal scores wrong answers come first. With a group column, every record of the
    query's group is a right answer, and identical texts of one group count once; images stay one
    each. Without one, records that share a text or an image are right answers of each other
    (`evals/same.py`), and every text stays a query of its own.

    Attributes:
      config: the evaluator's configuration.
      source: the records.
      readers: field name -> how it is read.
      topology: scores embeddings.
      encoder: encodes on the devices.
      reading: by what records are read; counts damaged ones.
      duplicates: whether records that share contents are right answers of each other.
    """

    config: configs.Retrieval
    source: RecordSource
    readers: dict[str, FieldReader]
    topology: Topology
    encoder: Encoder
    reading: Reading | None = None
    duplicates: bool = False

    def check(self) -> None:
        """Reads the first record, and looks for records that share texts or images.

        Raises:
          UserError: a field or the group column does not fit it.
        """
        names = self.config.document, self.config.query
        try_record(self.source, {name: self.readers[name] for name in names})
        if self.config.group:
            check_group(self.source, self.config.group)
        _ = self.keys

    def run(
        self,
        weights: Any,
        show: examples.Show | None = None,
        rankings: Path | None = None,
        extras: Extras | None = None,
    ) -> dict[str, float]:
        """Encodes all records and ranks them.

        Args:
          weights: the parameters.
          show: takes examples of each direction, where they are wanted.
          rankings: each query's values go to the folder `<rankings>-<document>_to_<query>`, and
            those of the other direction beside it; None: they are not written.
          extras: says that the values cannot be written; None: that is an error.

        Returns:
          `<document>_to_<query>/R@1` and so on, and the other direction; `rsum`, the sum of all
          recalls in percent, and `R-mean`, their mean as a fraction; of lexical models
          `<mode>/<document>_to_<query>/R@1`, and of their images `words@5`, the share of an
          image's five strongest words that one of its texts holds.
        """
        c = self.config
        names = c.document, c.query
        fields = self.encode(weights)
        counts = [fields[name].embeddings.shape[0] for name in names]
        log.info(
            f"embeddings: {counts[0]:,} of field {names[0]!r} against {counts[1]:,} of {names[1]!r}"
        )
        how = {"score": self.topology.score, "encoder": self.encoder, "chunk": c.chunk}
        out, directions = {}, []
        names_of: dict[str, list[str]] = {}  # direction -> its queries
        values: dict[str, dict[str, np.ndarray]] = {}  # direction -> metric -> of each query
        for direction, (first, second), found in self._directions(fields, how):
            out |= {f"{direction}/{key}": x for key, x in summarise(found, c.recall_at).items()}
            recall = f"{direction}/R@{c.recall_at[0]}"
            if note := few_queries_note({recall: out[recall]}, len(found.best)):
                log.info(note)
            names_of[direction] = first.names()
            values[direction] = by_query(found, c.recall_at)
            if show is not None:
                directions.append(examples.choose(first, second, found.best, show=show, **how))
        out |= _of_both_directions(out)
        out |= self._lexical(fields, how, values)
        if rankings is not None:
            for direction, each in values.items():
                folder = rankings.with_name(f"{rankings.name}-{direction}")
                write_values(folder, names_of[direction], each, extras)
        if show is not None:
            show(lambda: self._examples(weights, directions))
        return out

    def _examples(self, weights: Any, directions: Sequence[examples.Direction]) -> dict[str, Any]:
        """What the file of examples holds; on the first process."""
        names = self.config.document, self.config.query
        seen = of_records(self.encoder, weights, self.source, self.readers, names)
        return {
            "type": self.config.type,
            "directions": [direction.describe() for direction in directions],
            **({"attributions": seen} if seen else {}),
        }

    def _directions(
        self, fields: Mapping[str, FieldItems], how: dict[str, Any]
    ) -> Iterator[tuple[str, tuple[FieldItems, FieldItems], Ranks]]:
        """Each direction's name, both sides, and where queries find their right answers."""
        names = self.config.document, self.config.query
        for first, second in (names, names[::-1]):
            sides = fields[first], fields[second]
            yield f"{first}_to_{second}", sides, ranks_of(*sides, **how)

    def encode(self, weights: Any) -> dict[str, FieldItems]:
        """Both fields of all records by the model's parameters: field name -> side."""
        c = self.config
        groups = group_numbers(self.source, c.group) if c.group else None  # [records]
        found = {
            name: encode_items(
                self.encoder, weights, self.source, name, self.readers[name], groups, self.reading
            )
            for name in (c.document, c.query)
        }
        if self.keys is None:
            return found
        known = {name: self.keys[name].of(side.items) for name, side in found.items()}
        return {
            name: dataclasses.replace(side, keys=known[name][0], values=known[name][1])
            for name, side in found.items()
        }

    @functools.cached_property
    def keys(self) -> dict[str, FieldKeys] | None:
        """By what items answer each other, where records share contents; says how many do."""
        c, names = self.config, (self.config.document, self.config.query)
        if c.group or not self.duplicates:
            return None
        contents = [contents_of(self.source, self.readers[name]) for name in names]
        known = [each for each in contents if each is not None]
        if len(known) < len(names):
            return None
        count = len(self.source)
        shared = {
            name: SharedValues(count, *x.shared()) for name, x in zip(names, known, strict=True)
        }
        if sentence := Duplicates(count, shared).sentence(self.source.name):
            log.info(f"{sentence}; they are right answers of each other ({OFF})")
            return dict(zip(names, keys_of(*known), strict=True))
        return None

    def bow(self, side: FieldItems) -> scipy.sparse.csr_array:
        """The bags of words of the texts of a lexical side, [n, V]."""
        terms = self.encoder.terms(side.field)
        assert terms is not None  # checks.evals saw to it
        normalise = self.encoder.normalises(side.field)
        return bags_of(terms, side.source, side.reader, side.items, normalise)

    def _lexical(
        self,
        fields: dict[str, FieldItems],
        how: dict[str, Any],
        values: dict[str, dict[str, np.ndarray]],
    ) -> dict[str, float]:
        """What only lexical models have: other modes, and whether images say what texts say.

        `values`, direction -> metric -> value of each query, is given those of the modes, too.
        """
        c = self.config
        images = [x for x in fields.values() if x.reader.field.modality == "image"]
        lexical = all(scipy.sparse.issparse(x.embeddings) for x in fields.values())
        if not lexical or not (images or c.modes):
            return {}
        bow = {n: self.bow(x) for n, x in fields.items() if x.reader.field.modality == "text"}
        out: dict[str, float] = {}
        for text in c.modes:
            mode, changed = parse_mode(text, "config.evals.<name>.modes"), {}
            for name, side in zip((c.query, c.document), SIDES, strict=True):
                embeddings = in_mode(fields[name].embeddings, mode, side, bow.get(name))
                changed[name] = dataclasses.replace(fields[name], embeddings=embeddings)
            of_mode: dict[str, float] = {}
            for direction, _, found in self._directions(changed, how):
                numbers = summarise(found, c.recall_at)
                of_mode |= {f"{direction}/{key}": value for key, value in numbers.items()}
                each = by_query(found, c.recall_at)
                values[direction] |= {f"{text}/{key}": value for key, value in each.items()}
            of_mode |= _of_both_directions(of_mode)
            out |= {f"{text}/{key}": value for key, value in of_mode.items()}
        if bow and images:
            ((text, bags),), image = bow.items(), images[0]
            said = _owned(bags, fields[text].owners, image.owners)
            out[f"words@{STRONGEST}"] = words_shared(image.embeddings, said, STRONGEST)
        return out


def ranks_of(first: FieldItems, second: FieldItems, **how: Any) -> Ranks:
    """Where each item of the first field finds the right ones of the second."""
    sides = first.embeddings, first.ids, second.embeddings, second.ids
    return ranks(*sides, further=first.further, **how)


def _of_both_directions(numbers: Mapping[str, float]) -> dict[str, float]:
    """`rsum`, the sum of all recalls in percent as papers have it, and `R-mean`, their mean."""
    recalls = [value for name, value in numbers.items() if "/R@" in name]
    return {"rsum": 100 * sum(recalls), "R-mean": sum(recalls) / len(recalls)}


def _owned(bags: Any, owners: np.ndarray, wanted: np.ndarray) -> Any:
    """The words of all texts of each wanted owner, [n, V], from bags of words [T, V] of texts."""
    known, row = np.unique(wanted, return_inverse=True)
    place = np.minimum(np.searchsorted(known, owners), len(known) - 1)
    present = np.flatnonzero(known[place] == owners)
    where = (np.ones(len(present), np.float32), (place[present], present))
    same = scipy.sparse.csr_array(where, shape=(len(known), len(owners)))
    return scipy.sparse.csr_array(same @ bags)[row]
