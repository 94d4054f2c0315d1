"""Sources, tokenizer and field readers of a config."""

import dataclasses
import itertools
import logging
from collections.abc import Mapping
from pathlib import Path

from big_retrieval.config import Config, PairLabels, negatives_field
from big_retrieval.config.data import Loader
from big_retrieval.data.damage import Damage
from big_retrieval.data.fields.reader import FieldReader, Tools
from big_retrieval.data.negatives import NegativeSampling
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import RecordSource, make_source
from big_retrieval.data.stores.ingest import VERSION
from big_retrieval.data.text.tokenizers import (
    FixedLengthTokenizer,
    load_tokenizer,
    wordpiece_tokenizer,
)
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.data.text.words import learn_words, words_tokenizer

EVALS = "config.evals."  # prefix of the keys of evaluators
RULES = "config.data.rules"  # key for the version of the file readers
log = logging.getLogger(__name__)


def make_reading(loader: Loader, file: Path | None = None) -> Reading:
    """Returns the settings of reading; `file` lists damaged records, None only counts them."""
    damage = Damage(file, loader.max_damaged)
    return Reading(loader.threads, loader.workers, loader.prefetch, damage)


def make_tokenizer(config: Config, source: RecordSource) -> FixedLengthTokenizer:
    """Returns the tokenizer of a run: loaded, or learned from captions.

    Raises:
      UserError: a file is missing or cannot be read.
    """
    c = config.tokenizer
    if c.path:
        return load_tokenizer(c.type, c.path)
    evals = {f"evals.{name}": evaluator.data for name, evaluator in config.evals.items()}
    sources = (source if name == "data" else make_source(evals[name]) for name in c.sources)
    texts = itertools.chain.from_iterable(x.captions() for x in sources)
    if c.type == "words":
        return words_tokenizer(learn_words(texts, c.threshold))
    return wordpiece_tokenizer(learn_wordpiece(texts, c.vocab_size))


def make_readers(
    config: Config, tokenizer: FixedLengthTokenizer | None, source: RecordSource | None = None
) -> dict[str, FieldReader]:
    """Returns the reader of each field; without a training source, targets are left out."""
    fields = config.fields if source is not None else config.encoded
    tools = Tools(tokenizer, config.loader, config.fields, source)
    return {name: field.build(tools) for name, field in fields.items()}


def make_eval_sources(config: Config) -> dict[str, RecordSource]:
    """Returns evaluator name -> records, for evaluators with data."""
    return {
        name: make_source(evaluator.data)
        for name, evaluator in config.evals.items()
        if evaluator.data is not None
    }


def eval_fingerprints(sources: Mapping[str, RecordSource]) -> dict[str, str]:
    """Returns config key -> fingerprint, for the data of evaluators that have one."""
    return {f"{EVALS}{name}.data": x.fingerprint for name, x in sources.items() if x.fingerprint}


def has_other_rules(saved: Mapping[str, str]) -> bool:
    """Returns True if another version of the file readers computed a checkpoint's fingerprints."""
    return saved.get(RULES, str(VERSION)) != str(VERSION)


def warn_of_other_evals(saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Warns of evaluators whose data changed; `saved` is from the checkpoint's meta.json."""
    for key in sorted(now):
        if key.startswith(EVALS) and saved.get(key, now[key]) != now[key]:
            reason, remedy = "has changed since the checkpoint was written", "Restore its files"
            if has_other_rules(saved):
                reason = "is read by other rules than when the checkpoint was written"
                remedy = "Use the version of big_retrieval that wrote it"
            log.warning(
                f"{key} {reason}: its metrics cannot be compared with the metrics of the run. "
                f"{remedy} to compare them."
            )


def make_labels(config: Config) -> PairLabels:
    """Returns `config.labels`; an empty `<side>_field` becomes the only text field of the side."""
    labels, fields = config.labels, {}
    for side in ("query", "document"):
        texts = config.side(side, "text")
        if not getattr(labels, f"{side}_field") and len(texts) == 1:
            fields[f"{side}_field"] = texts[0]
    return dataclasses.replace(labels, **fields)


def make_negatives(config: Config) -> NegativeSampling | None:
    """Returns the sampling of hard negatives, or None."""
    c = config.negatives
    return NegativeSampling(negatives_field(config), c.column, c.count) if c.count else None
