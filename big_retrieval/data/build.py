"""From the configuration to sources, tokenizer and readers of fields."""

import dataclasses
import itertools
from pathlib import Path

from big_retrieval.config import Config, PairLabels, negatives_field
from big_retrieval.config.data import Loader
from big_retrieval.data.damage import Damage
from big_retrieval.data.fields.reader import FieldReader, Tools
from big_retrieval.data.negatives import NegativeSampling
from big_retrieval.data.order import Order
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import RecordSource, make_source
from big_retrieval.data.text.tokenizers import (
    FixedLengthTokenizer,
    load_tokenizer,
    wordpiece_tokenizer,
)
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.data.text.words import learn_words, words_tokenizer
from big_retrieval.errors import UserError


def make_order(source: RecordSource, seed: int) -> Order:
    """Which record each position of a run is."""
    own = getattr(source, "order", None)
    return Order(len(source), seed) if own is None else own(seed)


def make_reading(loader: Loader, file: Path | None = None) -> Reading:
    """How records are read, as the configuration says.

    Args:
      loader: threads, processes, and the share of damaged records that is borne.
      file: names the damaged records; None: they are only counted.
    """
    damage = Damage(file, loader.max_damaged)
    return Reading(loader.threads, loader.workers, loader.prefetch, damage)


def make_tokenizer(config: Config, source: RecordSource) -> FixedLengthTokenizer:
    """The tokenizer of a run: loaded, or learned from captions.

    Args:
      config: of the run.
      source: the training records.

    Raises:
      UserError: a file that is missing or cannot be read, or a CLIP tokenizer without a path.
    """
    c = config.tokenizer
    if c.path:
        return load_tokenizer(c.type, c.path)
    if not c.learned:
        raise UserError(
            f"config.tokenizer.type {c.type!r} needs config.tokenizer.path (a file, folder or hub "
            "name); only 'wordpiece' and 'words' can be learned from the captions."
        )
    evals = {f"evals.{name}": each.data for name, each in config.evals.items()}
    of = (source if x == "data" else make_source(evals[x]) for x in c.sources)
    texts = itertools.chain.from_iterable(each.captions() for each in of)
    if c.type == "words":
        return words_tokenizer(learn_words(texts, c.threshold))
    return wordpiece_tokenizer(learn_wordpiece(texts, c.vocab_size))


def make_readers(
    config: Config, tokenizer: FixedLengthTokenizer | None, source: RecordSource | None = None
) -> dict[str, FieldReader]:
    """How each field of a record is read.

    Args:
      config: of the run.
      tokenizer: of its text fields.
      source: the training records; None: nothing is trained, and targets are left out.
    """
    fields = config.fields if source is not None else config.encoded
    tools = Tools(tokenizer, config.loader, config.fields, source)
    return {name: field.build(tools) for name, field in fields.items()}


def make_eval_sources(config: Config) -> dict[str, RecordSource]:
    """Evaluator name -> its records, of those that have some."""
    parts = config.evals.items()
    return {name: make_source(part.data) for name, part in parts if part.data is not None}


def make_labels(config: Config) -> PairLabels:
    """`config.labels`, with the only text field of a side where no field of it is named."""
    labels, named = config.labels, {}
    for side in ("query", "document"):
        texts = config.side(side, "text")
        if not getattr(labels, f"{side}_field") and len(texts) == 1:
            named[f"{side}_field"] = texts[0]
    return dataclasses.replace(labels, **named)


def make_negatives(config: Config) -> NegativeSampling | None:
    """The further documents of every training pair, as the configuration says; None: none."""
    c = config.negatives
    return NegativeSampling(negatives_field(config), c.column, c.count) if c.count else None
