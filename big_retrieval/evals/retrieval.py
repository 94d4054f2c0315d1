"""Retrieval in both directions between two fields of the same records."""

import dataclasses
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval import config as configs
from big_retrieval.data.batches import try_record
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import RecordSource
from big_retrieval.evals import examples
from big_retrieval.evals.bags import bags_of, in_mode, words_shared
from big_retrieval.evals.groups import FieldItems, check_group, encode_items, group_numbers
from big_retrieval.evals.modes import SIDES, parse_mode
from big_retrieval.evals.ranks import ranks
from big_retrieval.inference.encoder import Encoder
from big_retrieval.similarity import Similarity

log = logging.getLogger(__name__)
STRONGEST = 5  # words of an image that are looked at


def summarise(found: np.ndarray, recall_at: tuple[int, ...]) -> dict[str, float]:
    """Recalls as fractions, mean and median rank.

    Args:
      found: rank of the best right answer of each query, from 1, [Q].
      recall_at: the k of R@k.
    """
    out = {f"R@{k}": float(np.mean(found <= k)) for k in recall_at}
    return {**out, "mean_rank": float(np.mean(found)), "median_rank": float(np.median(found))}


@dataclass(frozen=True)
class RetrievalEvaluator:
    """R@k, mean and median rank, of document to query field and back.

    Where a record has several texts, an image's best-placed one counts, and each text is a query
    of its own. With a group column, every record of the query's group is a right answer, and
    identical texts of one group count once; images stay one each.

    Attributes:
      config: the evaluator's configuration.
      source: the records.
      readers: field name -> how it is read.
      topology: scores embeddings.
      encoder: encodes on the devices.
      reading: by what records are read; counts damaged ones.
    """

    config: configs.Retrieval
    source: RecordSource
    readers: dict[str, FieldReader]
    topology: Similarity
    encoder: Encoder
    reading: Reading | None = None

    def check(self) -> None:
        """Reads the first record.

        Raises:
          UserError: a field or the group column does not fit it.
        """
        names = self.config.document, self.config.query
        try_record(self.source, {name: self.readers[name] for name in names})
        if self.config.group:
            check_group(self.source, self.config.group)

    def run(
        self,
        weights: Any,
        show: examples.Show | None = None,
    ) -> dict[str, float]:
        """Encodes all records and ranks them.

        Args:
          weights: the parameters.
          show: takes examples of each direction, where they are wanted.

        Returns:
          `<document>_to_<query>/R@1` and so on, and the other direction; of lexical models
          `<mode>/<document>_to_<query>/R@1`, and of their images `words@5`, the share of an image's
          five strongest words that one of its texts holds.
        """
        c = self.config
        names = c.document, c.query
        fields = self.encode(weights)
        log.info(
            " against ".join(f"{fields[name].embeddings.shape[0]:,} of {name}" for name in names)
        )
        how = {"score": self.topology.score, "encoder": self.encoder, "chunk": c.chunk}
        out, directions = {}, []
        for first, second in (names, names[::-1]):
            found = ranks_of(fields[first], fields[second], **how)
            for metric, value in summarise(found, c.recall_at).items():
                out[f"{first}_to_{second}/{metric}"] = value
            if show is not None:
                directions.append(examples.choose(fields[first], fields[second], found, **how))
        out |= self._lexical(fields, how)
        if show is not None:
            show(lambda: {"type": c.type, "directions": [d.describe() for d in directions]})
        return out

    def encode(self, weights: Any) -> dict[str, FieldItems]:
        """Both fields of all records by the model's parameters: field name -> side."""
        c = self.config
        groups = group_numbers(self.source, c.group) if c.group else None  # [records]
        return {
            name: encode_items(
                self.encoder, weights, self.source, name, self.readers[name], groups, self.reading
            )
            for name in (c.document, c.query)
        }

    def bow(self, side: FieldItems) -> scipy.sparse.csr_array:
        """The bags of words of the texts of a lexical side, [n, V]."""
        terms = self.encoder.terms(side.field)
        assert terms is not None  # checks.evals saw to it
        normalise = self.encoder.normalises(side.field)
        return bags_of(terms, side.source, side.reader, side.items, normalise)

    def _lexical(self, fields: dict[str, FieldItems], how: dict[str, Any]) -> dict[str, float]:
        """What only lexical models have: other modes, and whether images say what texts say."""
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
            for first, second in ((c.document, c.query), (c.query, c.document)):
                found = ranks_of(changed[first], changed[second], **how)
                for metric, value in summarise(found, c.recall_at).items():
                    out[f"{text}/{first}_to_{second}/{metric}"] = value
        if bow and images:
            ((text, bags),), image = bow.items(), images[0]
            said = _owned(bags, fields[text].owners, image.owners)
            out[f"words@{STRONGEST}"] = words_shared(image.embeddings, said, STRONGEST)
        return out


def ranks_of(first: FieldItems, second: FieldItems, **how: Any) -> np.ndarray:
    """The rank of the best right item of the second field for each of the first, [Q]."""
    return ranks(first.embeddings, first.owners, second.embeddings, second.owners, **how)


def _owned(bags: Any, owners: np.ndarray, wanted: np.ndarray) -> Any:
    """The words of all texts of each wanted owner, [n, V], from bags of words [T, V] of texts."""
    known, row = np.unique(wanted, return_inverse=True)
    place = np.minimum(np.searchsorted(known, owners), len(known) - 1)
    present = np.flatnonzero(known[place] == owners)
    where = (np.ones(len(present), np.float32), (place[present], present))
    same = scipy.sparse.csr_array(where, shape=(len(known), len(owners)))
    return scipy.sparse.csr_array(same @ bags)[row]
