"""Zero-shot classification: the class whose prompts lie nearest to the image."""

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from big_retrieval import config as configs
from big_retrieval.config.topologies import Topology
from big_retrieval.data.batches import try_record
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import RecordSource, TextRecords, value_of
from big_retrieval.errors import UserError
from big_retrieval.evals import examples
from big_retrieval.evals.bags import bags_of, in_mode
from big_retrieval.evals.class_names import (
    Class,
    ListedClasses,
    filled,
    names_of,
    read_names,
    same_classes,
)
from big_retrieval.evals.confusions import Confusions
from big_retrieval.evals.encoding import encode_source
from big_retrieval.evals.intervals import few_queries_note
from big_retrieval.evals.modes import parse_mode
from big_retrieval.evals.rankings import write_values
from big_retrieval.evals.ranks import DocumentScorer, class_ranks
from big_retrieval.inference.encoder import Embeddings, Encoder
from big_retrieval.runtime.extras import Extras

log = logging.getLogger(__name__)
CHUNK = 1024  # images scored at a time


@lru_cache(maxsize=32)
def _scorer(score: Callable[..., jax.Array], classes: int) -> Callable[..., jax.Array]:
    def class_scores(images: jax.Array, ids: jax.Array, prompts: jax.Array) -> jax.Array:
        scores = score(images, prompts)  # [C, classes * prompts]
        return jnp.mean(scores.reshape(len(scores), classes, -1), axis=2)  # [C, classes]

    return class_scores


def class_scores(
    images: Embeddings,
    prompts: Embeddings,
    classes: int,
    *,
    topology: Topology,
    encoder: Encoder,
) -> np.ndarray:
    """Mean score of each image with each class's prompts.

    Args:
      images: embeddings [n, M, N], or CSR [n, V].
      prompts: embeddings [classes * P, ...], those of a class side by side; P = 1 of class means.
      classes: how many there are.
      topology: scores embeddings.
      encoder: knows the devices.

    Returns:
      [n, classes].
    """
    if scipy.sparse.issparse(prompts):  # the mean of inner products is that with the mean
        return (images @ _sparse_means(prompts, classes).T).toarray()
    scorer = DocumentScorer(prompts, score=topology.score, encoder=encoder, chunk=CHUNK)
    return scorer.map(partial(_scorer, classes=classes), images, np.arange(len(images)))


def class_means(
    prompts: Embeddings, classes: int, *, topology: Topology, normalise: bool = False
) -> Embeddings:
    """The mean of each class's prompts, brought back onto the topology as CLIP does.

    Args:
      prompts: as those of `class_scores`.
      classes: how many there are.
      topology: projects the means of dense embeddings.
      normalise: sparse ones only: to norm 1.

    Returns:
      Embeddings [classes, M, N], or CSR [classes, V].
    """
    if not scipy.sparse.issparse(prompts):
        means = np.mean(prompts.reshape(classes, -1, *prompts.shape[1:]), axis=1)
        return np.asarray(topology.project(jnp.asarray(means)), np.float32)
    means = _sparse_means(prompts, classes)
    norms = np.sqrt(means.multiply(means).sum(axis=1)) if normalise else np.ones(classes)
    return scipy.sparse.csr_array(
        scipy.sparse.diags_array(1 / np.where(norms > 0, norms, 1)) @ means
    )


def _sparse_means(prompts: Any, classes: int) -> Any:
    """The mean of each class's rows, CSR [classes, V]."""
    each = prompts.shape[0] // classes
    mean = scipy.sparse.kron(scipy.sparse.eye_array(classes), np.full((1, each), 1 / each))
    return scipy.sparse.csr_array(mean @ prompts)


@dataclass(frozen=True)
class ZeroShotEvaluator:
    """Accuracy among class names filled into prompts.

    Attributes:
      config: the evaluator's configuration.
      source: images with a label column.
      readers: field name -> how it is read.
      topology: scores embeddings.
      encoder: encodes on the devices.
      reading: by what records are read; counts damaged ones.
      name: of the evaluator in `config.evals`, for messages.
    """

    config: configs.ZeroShot
    source: RecordSource
    readers: dict[str, FieldReader]
    topology: Topology
    encoder: Encoder
    reading: Reading | None = None
    name: str = "<name>"

    def prompts(self) -> tuple[tuple[Class, ...], tuple[str, ...]]:
        """The class names and the prompts, from the config, its file, or else the source.

        Raises:
          UserError: none has them, or the file is something else.
        """
        c, label = self.config, self.config.label
        path = f"config.evals.{self.name}"
        listed = self._listed
        classes = c.classes or listed.classes or self.source.classes.get(label, ()) or self._names()
        prompts = c.prompts or listed.prompts or self.source.prompts.get(label, ())
        if not classes or not prompts:
            raise UserError(
                f"zero-shot label {label!r}: source {self.source.name} has no classes and prompts "
                f"for it; set {path}.classes and .prompts."
            )
        return tuple(classes), tuple(prompts)

    @cached_property
    def _listed(self) -> ListedClasses:
        """What the file lists; nothing where there is none."""
        file, path = self.config.file, f"config.evals.{self.name}.file"
        return read_names(file, path) if file else ListedClasses()

    def _names(self) -> tuple[str, ...]:
        """All names in a label column that has names, sorted; numbers name nothing."""
        label, count = self.config.label, len(self.source)
        found = (value_of(self.source, index, label) for index in range(count))
        names = {name for name in found if isinstance(name, str)}
        return () if all(name.strip().isdecimal() for name in names) else tuple(sorted(names))

    def check(self) -> None:
        """Reads the first image and all labels.

        Raises:
          UserError: the image field does not fit the record, or a label is of no class.
        """
        try_record(self.source, {self.config.image: self.readers[self.config.image]})
        self.labels(self.prompts()[0])

    def labels(self, classes: tuple[Class, ...]) -> np.ndarray:
        """The class number of every record, int64 [n].

        Args:
          classes: their names; a label is a number (also written as text), one of all names, or
            an id of the file.

        Raises:
          UserError: a label is neither.
        """
        numbers: dict[str, int] = {}
        for i, each in enumerate(classes):
            for name in names_of(each):  # of equal classes the first, as scores have it
                known = numbers.setdefault(name, i)
                if known != i and (known < 0 or names_of(classes[known]) != names_of(each)):
                    numbers[name] = -1
        if not self.config.classes:  # else the file's ids are those of other classes
            numbers |= {name: i for i, name in enumerate(self._listed.ids)}
        column, found = self.config.label, np.empty(len(self.source), np.int64)  # [n]
        for index in range(len(found)):
            value: Any = value_of(self.source, index, column)
            label: Any = value
            if isinstance(value, str):
                text = value.strip()
                label = numbers.get(value, numbers.get(text, text))
                label = int(text) if label == text and re.fullmatch("[0-9]+", text) else label
            whole = isinstance(label, int | np.integer) and not isinstance(label, bool)
            if not whole or not 0 <= label < len(classes):
                raise UserError(
                    f"{self.source.name}, record {index}: label column {column!r} is {value!r}; it "
                    f"must be the name of one class or a number from 0 to {len(classes) - 1} "
                    f"({len(classes)} classes)."
                )
            found[index] = label
        return found

    def run(
        self,
        weights: Any,
        show: examples.Show | None = None,
        rankings: Path | None = None,
        extras: Extras | None = None,
    ) -> dict[str, float]:
        """Encodes images and prompts and counts.

        Args:
          weights: the parameters.
          show: takes confusions and wrong examples, where they are wanted.
          rankings: the folder for each image's values; None: they are not written.
          extras: says that the values cannot be written; None: that is an error.

        Returns:
          `accuracy` and, with more than five classes, `top5_accuracy`; `<mode>/accuracy` and so on
          of modes. Ties count against the model; of classes with the same names the first one is
          taken.
        """
        c = self.config
        classes, prompts = self.prompts()
        labels = self.labels(classes)
        if c.present:
            chosen, labels = np.unique(labels, return_inverse=True)
            classes = tuple(classes[number] for number in chosen)
        reader = self.readers[c.text]
        texts = TextRecords(filled(classes, prompts), column=reader.field.column)
        of_texts, _ = encode_source(self.encoder, weights, texts, c.text, reader)
        images, records = encode_source(
            self.encoder, weights, self.source, c.image, self.readers[c.image], self.reading
        )
        log.info(f"{images.shape[0]:,} images, {len(classes)} classes, {len(prompts)} prompts each")
        same = same_classes(classes)
        scores = self._scores(images, of_texts, len(classes))
        place = class_ranks(scores, labels[records], same)
        values = _values(place, len(classes), "")
        for mode, own, other in self._in_modes(images, of_texts, texts):
            found = class_ranks(self._scores(own, other, len(classes)), labels[records], same)
            values |= _values(found, len(classes), f"{mode}/")
        if rankings is not None:
            write_values(rankings, [str(record) for record in records], values, extras)
        if show is not None:
            names = tuple(names_of(each)[0] for each in classes)
            found = Confusions(
                self.source, self.readers[c.image], names, records, labels[records], scores, place
            )
            show(lambda: {"type": c.type, **found.describe()})
        means = {name: float(np.mean(each)) for name, each in values.items()}
        if note := few_queries_note({"accuracy": means["accuracy"]}, len(records), "images"):
            log.info(note)
        return means

    def _scores(self, images: Embeddings, texts: Embeddings, classes: int) -> np.ndarray:
        """The score of each image with each class, [n, classes]."""
        if self.config.ensemble == "embeddings":
            normalise = scipy.sparse.issparse(texts) and self.encoder.normalises(self.config.text)
            texts = class_means(texts, classes, topology=self.topology, normalise=normalise)
        how: Any = {"topology": self.topology, "encoder": self.encoder}
        return class_scores(images, texts, classes, **how)

    def _in_modes(
        self, images: Embeddings, of_texts: Embeddings, texts: TextRecords
    ) -> Iterator[tuple[str, Embeddings, Embeddings]]:
        """Yields each mode's name, images and prompts, of a lexical model."""
        c = self.config
        modes = [parse_mode(text, f"config.evals.{self.name}.modes") for text in c.modes]
        if not modes:
            return
        terms, items = self.encoder.terms(c.text), np.arange(len(texts))
        assert terms is not None  # checks.evals saw to it
        bow = bags_of(
            terms, texts, self.readers[c.text], np.stack([items, 0 * items], axis=1),
            self.encoder.normalises(c.text),
        )  # fmt: skip
        for mode in modes:
            changed = in_mode(of_texts, mode, "query", bow)
            yield mode.name, in_mode(images, mode, "document", None), changed


def _values(place: np.ndarray, classes: int, prefix: str) -> dict[str, np.ndarray]:
    """Whether each image is classified, [n]: by the nearest class, and the five nearest."""
    values = {f"{prefix}accuracy": place <= 1}
    if classes > 5:
        values[f"{prefix}top5_accuracy"] = place <= 5
    return {name: each.astype(float) for name, each in values.items()}
