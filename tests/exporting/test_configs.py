"""Targets for the encoders of the shipped configs; tests/interop/export_all.py writes them."""

import functools
import importlib
import pkgutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import traverse_util

import configs
from big_retrieval import config
from big_retrieval.config import Config
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.data.text.words import learn_words, words_tokenizer
from big_retrieval.exporting.export import holding
from big_retrieval.inference.load import TrainedModel, put_together
from big_retrieval.models.towers import make_model
from tests.helpers import drawn
from tests.interop.hard_texts import TEXTS

NAMES = sorted(found.name for found in pkgutil.iter_modules(configs.__path__) if not found.ispkg)
BOTH = ["transformers", "sentence-transformers"]
EXPORTABLE = {  # (config, field; "": all) -> the libraries that can hold it
    ("clip_b16", "image"): ["transformers"],
    ("clip_b16", "text"): ["sentence-transformers"],
    ("clip_bert_yfcc15m", "image"): ["transformers"],
    ("clip_bert_yfcc15m", "text"): ["sentence-transformers"],
    ("dpr_msmarco", "passage"): BOTH,
    ("dpr_msmarco", "query"): BOTH,
    ("emoji_gcl", "image"): ["transformers"],
    ("emoji_ltd", "image"): ["transformers"],
    ("emoji_vdr", "text"): ["sentence-transformers"],
    ("gcl_gs10m", ""): ["open_clip", "transformers"],
    ("gcl_gs10m", "image"): ["transformers"],
    ("gcl_gs10m", "query"): ["transformers"],
    ("gcl_gs10m", "title"): ["transformers"],
    ("medical", ""): ["sentence-transformers"],
    ("medical", "answer"): ["sentence-transformers"],
    ("medical", "query"): ["sentence-transformers"],
    ("scenes_vdr", "text"): ["sentence-transformers"],
    ("splade_msmarco", ""): BOTH,
    ("splade_msmarco", "passage"): BOTH,
    ("splade_msmarco", "query"): BOTH,
    ("vdr_cm_yfcc15m", "text"): ["sentence-transformers"],
    ("vdr_t2t_msmarco", "passage"): ["sentence-transformers"],
    ("vdr_t2t_msmarco", "query"): ["sentence-transformers"],
}
ALL = ["torch", "onnx"]  # hold every config and every field
CASES = [
    *((name, field, to) for (name, field), targets in EXPORTABLE.items() for to in targets),
    *((name, "", to) for name in NAMES for to in ALL),
]


@functools.cache
def pieces() -> Any:
    return wordpiece_tokenizer(learn_wordpiece(TEXTS, 200))


@functools.cache
def words() -> Any:
    return words_tokenizer(learn_words(TEXTS))


def local(name: str) -> Config:
    return config.load(importlib.import_module(f"configs.{name}").get_config("runlocal"))


@pytest.mark.parametrize("name", NAMES)
def test_holding_lists_the_targets(name: str) -> None:
    nothing: Any = None
    model = TrainedModel(Path(name), local(name), pieces(), {}, nothing)
    for field in ("", *local(name).encoded):
        found = list(holding(model, (field,) if field else ()))
        assert found == [*EXPORTABLE.get((name, field), []), *ALL], field


@functools.cache
def random_model(name: str) -> TrainedModel:
    """A config's small model, of random weights."""
    return with_random_weights(local(name), name)


def with_random_weights(small: Config, name: str) -> TrainedModel:
    """A model of a config."""
    tokenizer = words() if small.tokenizer.type == "words" else pieces()
    model = make_model(small, tokenizer.vocab_size, tokenizer)
    flat: Any = traverse_util.flatten_dict(drawn(model, model.example_inputs()))
    positive = {path: np.abs(x) + 0.5 if path[-1] == "var" else x for path, x in flat.items()}
    variables = traverse_util.unflatten_dict(jax.device_get(positive))
    weights = {**variables["params"], "batch_stats": variables.get("batch_stats", {})}
    return put_together(Path(name), small, tokenizer, weights, 16)
