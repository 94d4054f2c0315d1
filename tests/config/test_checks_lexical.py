"""Checks of lexical heads, of their losses and of search modes."""

from collections.abc import Callable
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.config.checks import check
from tests.helpers import lexical_texts, tiny, user_error
from tests.train.test_vdr_training import pictures, splade, texts, weighed

HEAD = "fields__image__head__"
PROJECTION = recipe.entry(configs.Projection(), dim=4)
NO_BAG = {"losses__main__bag": False}


def turned(**changes: Any) -> Config:
    """Images as queries, which have no words, texts as documents."""
    sides = {"fields__image__side": "query", "fields__text__side": "document"}
    return pictures(**{"losses__main__mask__apply": "none", **sides, **changes})


def two(**changes: Any) -> Config:
    """Two text towers."""
    return tiny(**(lexical_texts() | changes))


def ranked_pictures(**changes: Any) -> Config:
    data = recipe.entry(configs.GradedScenes())
    return pictures(data=data, fields__text__column="query", **changes)


def evaluator(part: Any, **keys: Any) -> dict[str, Any]:
    return {"evals": {"a": recipe.entry(part, **keys)}}


def ranking(*modes: str) -> dict[str, Any]:
    return evaluator(configs.Ranking(data=configs.GradedScenes()), modes=modes)


def retrieval(*modes: str) -> dict[str, Any]:
    return evaluator(configs.Retrieval(), modes=modes)


def zero_shot(*modes: str) -> dict[str, Any]:
    return evaluator(configs.ZeroShot(), data=configs.Scenes(split="colours"), modes=modes)


Make = Callable[..., Config]
GATED_BY_BAG = {"losses__main__mask__apply": "gated", "losses__main__mask__source": "bag"}
IMPOSSIBLE: list[tuple[Make, dict[str, Any], str]] = [
    # heads and towers
    (pictures, {"fields__image__head": PROJECTION}, "config.towers.image.pool is 'none'"),
    (pictures, {"towers__image": recipe.resnet(18)}, "config.fields.image.head.type is 'lexical'"),
    (pictures, {"towers__image__pool": "mean"}, "config.towers.image.pool is 'mean'"),
    (pictures, {"towers__image__class_tokens": 1}, "config.towers.image.class_tokens 1"),
    (pictures, {"topology": "sphere"}, "config.topology to 'inner'"),
    (pictures, {HEAD + "tied": True}, "config.fields.image.head.tied"),
    (pictures, {HEAD + "top_k": 0}, "config.fields.image.head.top_k is 0"),
    (pictures, {HEAD + "pooling_top_k": 3}, "config.fields.image.head.pooling_top_k is 3"),
    (pictures, {HEAD + "bias_init": -2.0}, "config.fields.image.head.bias_init is -2.0"),
    (pictures, {HEAD + "pooling_top_k": 0, HEAD + "pooling": "mean"}, "pooling_top_k is 0"),
    (pictures, {HEAD + "terms": "wrds"}, "config.fields.image.head.terms is 'wrds'"),
    (pictures, {HEAD + "terms": "all"}, "config.fields.image.head.terms 'all'"),  # texts: words
    # losses
    (tiny, {"losses__main": recipe.entry(configs.Vdr())}, "config.losses.main.type 'vdr'"),
    (splade, {"losses__main__sparsity__query": -0.1}, "config.losses.main.sparsity.query is -0.1"),
    (tiny, {"losses__main__sparsity__document": 0.1}, "losses.main.sparsity.document is 0.1"),
    (pictures, {"losses__main__false_negatives": "positives"}, "config.losses.main.mask.apply"),
    (pictures, {"losses__main__mask__apply": "both", **NO_BAG}, "losses.main.mask.apply 'both'"),
    (turned, {}, "config.losses.main.bag to False"),
    (turned, {"losses__main__top_k": 0, **NO_BAG}, "config.losses.main.top_k above 0"),
    (turned, {**GATED_BY_BAG, **NO_BAG}, "config.losses.main.mask.source to 'gate'"),
    (pictures, {"losses__main__symmetric": True}, "config.losses.main.symmetric to False"),
    # search modes
    (tiny, retrieval("bag"), "config.evals.a.modes are for lexical models"),
    (pictures, retrieval("bags"), "config.evals.a.modes has 'bags'"),
    (pictures, retrieval("bag", "binary"), "config.evals.a.modes has 'binary'"),
    (tiny, zero_shot("bag"), "config.evals.a.modes are for lexical models"),
    (pictures, zero_shot("bag", "binary", "top_k=6"), "config.evals.a.modes has 'binary'"),
    (ranked_pictures, ranking("binary"), "config.evals.a.modes has 'binary'"),
    (texts, ranking("top_k=-3"), "config.evals.a.modes has 'top_k=-3'"),
    (texts, ranking("top_k=6", "top_k=7/5"), "config.evals.a.modes has 'top_k=7/5'"),
    (pictures, retrieval("top_k=all/6", "top_k=all/5000"), "modes has 'top_k=all/5000'"),
]


@pytest.mark.parametrize(("make", "changes", "key"), IMPOSSIBLE)
def test_check_rejects(make: Make, changes: dict[str, Any], key: str) -> None:
    with user_error(key):
        check(make(**changes))


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (texts, {}),
        (texts, {"losses__main__symmetric": True, "losses__main__mask__apply": "both"}),
        (texts, {"losses__main__top_k": 0}),
        (texts, ranking("bag", "binary", "top_k=3", "top_k=all/2")),
        (splade, {}),
        (weighed, {}),
        (pictures, retrieval("bag", "top_k=2")),
        (pictures, {HEAD + "pooling": "mean", HEAD + "pooling_top_k": 2}),
        (turned, NO_BAG),
        (turned, {"losses__main__mask__source": "bag", **NO_BAG}),  # nothing applies it
        (two, {"losses__main": recipe.entry(configs.Sigmoid())}),
    ],
)
def test_check_accepts(make: Make, changes: dict[str, Any]) -> None:
    check(make(**changes))
