"""Zero-shot classification: the class whose prompts are nearest to the image."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy.sparse

from big_retrieval.config import Config, Scenes, Source, register
from big_retrieval.config.evals import Evaluator, once
from big_retrieval.data.sources import TextRecords, value_of
from big_retrieval.errors import UserError
from big_retrieval.evals.class_names import (
    Class,
    ListedClasses,
    fill_prompts,
    names_of,
    read_names,
    same_classes,
)
from big_retrieval.evals.class_scores import best_others, class_means, class_scores
from big_retrieval.evals.encoding import SourceEncoder
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.intervals import few_queries_note
from big_retrieval.evals.modes import (
    bags_of_texts,
    check_modes,
    in_mode,
    mode_prefixes,
    parse_mode,
)
from big_retrieval.evals.rankings import write_values
from big_retrieval.evals.ranks import class_ranks
from big_retrieval.inference.encoder import Embeddings

log = logging.getLogger(__name__)
BEST = 5  # classes of an image that examples show


class ZeroShotResult(NamedTuple):
    """Result of a zero-shot classification of n images, for examples."""

    image: str  # field of the images
    classes: tuple[str, ...]  # class names
    records: np.ndarray  # record of each image, [n]
    labels: np.ndarray  # class index of each image, [n]
    ranks: np.ndarray  # rank of the label, from 1, [n]
    scores: np.ndarray  # score of the label, [n]
    others: np.ndarray  # best other classes, best first, [n, min(BEST, classes - 1)]
    other_scores: np.ndarray  # scores of the best other classes, of the same shape


@register("evaluator")
@dataclass(frozen=True)
class ZeroShot(Evaluator):
    """Classification of images by the prompts of each class."""

    replaced: ClassVar[bool] = True
    type: Literal["zeroshot"] = "zeroshot"
    data: Source = field(default_factory=lambda: Scenes(split="colours"))
    label: str = "colour"  # column with the class: its index (also as text) or its name
    image: str = "image"
    text: str = "text"
    # class names; empty for the source's classes, or all names in the label column
    classes: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()  # with {} for the class name; empty for the source's prompts
    file: str = ""  # JSON file of classes and prompts that are empty: "prompts.json#imagenet"
    present: bool = False  # only classes that occur in the labels, as ImageNet-A's 200 of 1,000
    # average over the prompts of a class: the scores of an image, or the embeddings, projected
    # onto the topology as in CLIP (for lexical models, scaled to the norm of the head)
    ensemble: Literal["scores", "embeddings"] = "scores"
    # search modes of lexical models, as in Retrieval: prompts are queries, images documents
    modes: tuple[str, ...] = ()
    rankings: bool = False  # at the end, write the result of each image to rankings/
    every: int | None = None

    def check(self, config: Config, path: str) -> Iterator[str]:
        for key, name in (("image", self.image), ("text", self.text)):
            if name not in config.encoded or config.encoded[name].modality != key:
                yield f"{path}.{key} is {name!r}; it must be one of the {key} fields."
        for prompt in self.prompts:
            if "{}" not in prompt:
                yield f"{path}.prompts: {prompt!r} needs a {{}} for the class name."
        yield from self.data.check_classes(self, path)
        yield from check_modes(self, config, path)

    def reads(self) -> Mapping[str, str]:
        return {"image": self.image, "text": self.text}

    def compared(self, config: Config) -> Mapping[str, Sequence[str]]:
        return {"query": [self.text], "document": [self.image]}

    def metric_names(self, config: Config) -> Sequence[str]:
        metrics = "accuracy", "top5_accuracy"
        return [f"{mode}{name}" for mode in mode_prefixes(self.modes) for name in metrics]

    def check_data(self, context: EvaluatorContext) -> None:
        context.try_fields(self.image)
        self.labels(context, self.names_and_prompts(context)[0])

    def names_and_prompts(
        self, context: EvaluatorContext
    ) -> tuple[tuple[Class, ...], tuple[str, ...]]:
        """Returns the class names and prompts, from the config, its file, or the source."""
        label, source, path = self.label, context.source, context.path
        listed = self._listed(context)
        classes = self.classes or listed.classes or source.classes.get(label, ())
        classes = classes or self._names(source)
        prompts = self.prompts or listed.prompts or source.prompts.get(label, ())
        if not classes or not prompts:
            raise UserError(
                f"zero-shot label {label!r}: source {source.name} has no classes and prompts "
                f"for it. Set {path}.classes and .prompts."
            )
        return tuple(classes), tuple(prompts)

    @once
    def _listed(self, context: EvaluatorContext) -> ListedClasses:
        """Reads classes and prompts of the file; empty without a file."""
        return read_names(self.file, f"{context.path}.file") if self.file else ListedClasses()

    def _names(self, source: Any) -> tuple[str, ...]:
        """Returns all names in the label column, sorted; empty if it has only numbers."""
        values = (value_of(source, index, self.label) for index in range(len(source)))
        names = {name for name in values if isinstance(name, str)}
        return () if all(name.strip().isdecimal() for name in names) else tuple(sorted(names))

    def labels(self, context: EvaluatorContext, classes: tuple[Class, ...]) -> np.ndarray:
        """Returns the class index of every record, int64 [n].

        A label is an index (integer or text), a name of a class, or an id of the file.
        """
        index_of: dict[str, int] = {}
        for i, names in enumerate(map(names_of, classes)):
            for name in names:  # the first of equal classes, as in the scores
                first = index_of.setdefault(name, i)
                if first != i and (first < 0 or names_of(classes[first]) != names):
                    index_of[name] = -1
        if not self.classes:  # with `classes`, the file's ids would name other classes
            index_of |= {name: i for i, name in enumerate(self._listed(context).ids)}
        source = context.source
        labels = np.empty(len(source), np.int64)  # [n]
        for index in range(len(labels)):
            value: Any = value_of(source, index, self.label)
            label: Any = value
            if isinstance(value, str):
                text = value.strip()
                label = index_of.get(value, index_of.get(text, text))
                label = int(text) if label == text and re.fullmatch("[0-9]+", text) else label
            is_integer = isinstance(label, int | np.integer) and not isinstance(label, bool)
            if not is_integer or not 0 <= label < len(classes):
                raise UserError(
                    f"{source.name}, record {index}: label column {self.label!r} is {value!r}; it "
                    f"must be the name of one class or a number from 0 to {len(classes) - 1} "
                    f"({len(classes)} classes)."
                )
            labels[index] = label
        return labels

    def run(self, context: EvaluatorContext, weights: Any) -> dict[str, float]:
        """Encodes images and prompts, and classifies the images.

        Returns:
          `accuracy`, and `top5_accuracy` with more than five classes; `<mode>/accuracy`, ... for
          each mode. Ties count against the model. The first of several classes with the same names
          wins.
        """
        classes, prompts = self.names_and_prompts(context)
        labels = self.labels(context, classes)
        if self.present:
            indices, labels = np.unique(labels, return_inverse=True)
            classes = tuple(classes[index] for index in indices)
        reader = context.readers[self.text]
        texts = TextRecords(fill_prompts(classes, prompts), column=reader.field.column)
        # No `reading`: a prompt that cannot be encoded raises an error, and is not just counted.
        of_texts, _ = SourceEncoder(context.encoder, weights).encode(texts, self.text, reader)
        images, records = context.encode(weights, self.image)
        log.info(f"{images.shape[0]:,} images, {len(classes)} classes, {len(prompts)} prompts each")
        same = same_classes(classes)
        names = tuple(names_of(label)[0] for label in classes)
        values, result, labels = {}, None, labels[records]
        for prefix, *sides in self._by_mode(context, images, of_texts, texts):
            best = BEST if context.show is not None and result is None else 0
            blocks = []
            for rows, scores in self._scores(context, sides[0], sides[1], len(classes)):
                label_scores = scores[np.arange(len(scores)), labels[rows]]
                ranks = class_ranks(scores, labels[rows], same)
                blocks.append((ranks, label_scores, *best_others(scores, labels[rows], best)))
            arrays = [np.concatenate(parts) for parts in zip(*blocks, strict=True)]
            values |= _values(arrays[0], len(classes), prefix)
            if result is None:
                result = ZeroShotResult(self.image, names, records, labels, *arrays)
        if context.rankings is not None:
            ids = [str(record) for record in records]
            write_values(context.rankings, ids, values, context.extras)
        if context.show is not None:
            context.show(result)
        means = {name: float(np.mean(is_hit)) for name, is_hit in values.items()}
        if note := few_queries_note({"accuracy": means["accuracy"]}, len(records), "images"):
            log.info(note)
        return means

    def _scores(
        self, context: EvaluatorContext, images: Embeddings, texts: Embeddings, classes: int
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Yields some images and their scores [c, classes]."""
        topology, encoder = context.topology, context.encoder
        if self.ensemble == "embeddings":
            normalise = scipy.sparse.issparse(texts) and encoder.normalises(self.text)
            texts = class_means(texts, classes, topology=topology, normalise=normalise)
        return class_scores(images, texts, classes, topology=topology, encoder=encoder)

    def _by_mode(
        self,
        context: EvaluatorContext,
        images: Embeddings,
        of_texts: Embeddings,
        texts: TextRecords,
    ) -> Iterator[tuple[str, Embeddings, Embeddings]]:
        """Yields prefix of the metrics, images and prompts: as encoded, and in each mode."""
        yield "", images, of_texts
        if not self.modes:
            return
        reader, items = context.readers[self.text], np.zeros((len(texts), 2), np.int64)
        items[:, 0] = np.arange(len(texts))
        bow = bags_of_texts(context.encoder, self.text, texts, reader, items)
        for text in self.modes:
            mode = parse_mode(text, f"{context.path}.modes")
            changed = in_mode(of_texts, mode, "query", bow)
            yield f"{text}/", in_mode(images, mode, "document", None), changed


def _values(ranks: np.ndarray, classes: int, prefix: str) -> dict[str, np.ndarray]:
    """Returns 1.0 if the label is the nearest class (or among the five nearest), [n]."""
    values = {f"{prefix}accuracy": ranks <= 1}
    if classes > 5:
        values[f"{prefix}top5_accuracy"] = ranks <= 5
    return {name: is_hit.astype(float) for name, is_hit in values.items()}
