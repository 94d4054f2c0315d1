"""Checks of lexical heads, of their losses and of ways to search: each sentence once."""

from collections.abc import Callable
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.config.checks import check
from big_retrieval.errors import UserError
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


def ranking(*modes: str) -> dict[str, Any]:
    data = recipe.entry(configs.GradedScenes())
    return {"evals": {"a": recipe.entry(configs.Ranking(), data=data, modes=modes)}}


def retrieval(*modes: str) -> dict[str, Any]:
    return {"evals": {"a": recipe.entry(configs.Retrieval(), modes=modes)}}


def zero_shot(*modes: str) -> dict[str, Any]:
    data = configs.Scenes(split="colours")
    return {"evals": {"a": recipe.entry(configs.ZeroShot(), data=data, modes=modes)}}


Make = Callable[..., Config]
IMPOSSIBLE: list[tuple[Make, dict[str, Any], list[str]]] = [
    # heads and towers
    (
        pictures,
        {"fields__image__head": PROJECTION},
        ["config.towers.image.pool is 'none'", "config.fields.image.head.type to 'lexical'"],
    ),
    (
        pictures,
        {"towers__image": recipe.resnet(18)},
        ["config.fields.image.head.type is 'lexical'", "of the type 'resnet' gives something else"],
    ),
    (
        pictures,
        {"towers__image__pool": "mean"},
        ["config.towers.image.pool is 'mean'", "set it to 'none'"],
    ),
    (
        pictures,
        {"towers__image__class_tokens": 1},
        ["config.towers.image.class_tokens 1: set it to 0."],
    ),
    (
        pictures,
        {"topology": "sphere"},
        ["config.topology to 'inner' instead of 'sphere'"],
    ),
    (pictures, {HEAD + "tied": True}, ["config.fields.image.head.tied", "no word table"]),
    (
        pictures,
        {HEAD + "top_k": 0},
        ["config.fields.image.head.top_k is 0", "set it to 1 or more."],
    ),
    (pictures, {HEAD + "pooling_top_k": 3}, ["pooling_top_k is 3", "for pooling 'mean'"]),
    (pictures, {HEAD + "bias_init": -2.0}, ["bias_init is -2.0", "set use_bias to True"]),
    (
        pictures,
        {HEAD + "pooling_top_k": 0, HEAD + "pooling": "mean"},
        ["config.fields.image.head.pooling_top_k is 0", "at least 1"],
    ),
    (
        pictures,
        {HEAD + "terms": "wrds"},
        ["config.fields.image.head.terms is 'wrds'", "'all', 'words', 'ascii'"],
    ),
    # both sides
    (
        pictures,
        {HEAD + "terms": "all"},
        ["config.fields.image.head.terms 'all'", "fields.text.head.terms 'words'", "all the s"],
    ),
    # losses
    (
        tiny,
        {"losses__main": recipe.entry(configs.Vdr())},
        ["config.losses.main.type 'vdr'", "config.fields.image.head.type to 'lexical'"],
    ),
    (
        splade,
        {"losses__main__sparsity__query": -0.1},
        ["config.losses.main.sparsity.query is -0.1"],
    ),
    (
        tiny,
        {"losses__main__sparsity__document": 0.1},
        ["config.losses.main.sparsity.document is 0.1", "no lexical heads"],
    ),
    (
        pictures,
        {"losses__main__false_negatives": "positives"},
        ["config.losses.main.mask.apply goes with false_negatives 'keep' or 'mask'"],
    ),
    (
        pictures,
        {"losses__main__mask__apply": "both", **NO_BAG},
        ["config.losses.main.mask.apply is 'both'", "config.losses.main.bag is False"],
    ),
    (
        turned,
        {},
        ["the query side, which has no text field", "set config.losses.main.bag to False."],
    ),
    (
        turned,
        {"losses__main__top_k": 0, **NO_BAG},
        ["query side", "set config.losses.main.top_k above 0."],
    ),
    (
        turned,
        {"losses__main__mask__apply": "gated", "losses__main__mask__source": "bag", **NO_BAG},
        ["query side", "set config.losses.main.mask.source to 'gate'."],
    ),
    (
        pictures,
        {"losses__main__symmetric": True},
        [
            "the document side, which has no text field",
            "set config.losses.main.symmetric to False.",
        ],
    ),
    # ways to search
    (tiny, retrieval("bag"), ["config.evals.a.modes are for lexical models"]),
    (pictures, retrieval("bags"), ["config.evals.a.modes has 'bags'; known: 'bag', 'binary'"]),
    (
        pictures,
        retrieval("bag", "binary"),
        ["config.evals.a.modes has 'binary'", "the document side has images"],
    ),
    (tiny, zero_shot("bag"), ["config.evals.a.modes are for lexical models"]),
    (
        pictures,
        zero_shot("bag", "binary", "top_k=6"),
        ["config.evals.a.modes has 'binary'", "the document side has images"],
    ),
    (texts, ranking("top_k=-3"), ["config.evals.a.modes has 'top_k=-3'"]),
    (
        texts,
        ranking("top_k=6", "top_k=7/5"),
        ["config.evals.a.modes has 'top_k=7/5'", "leaves 6 terms of the query side", "take 6 at"],
    ),
    (
        pictures,
        retrieval("top_k=all/6", "top_k=all/5000"),
        ["config.evals.a.modes has 'top_k=all/5000'", "leaves 6 terms of the document side"],
    ),
]


@pytest.mark.parametrize(("make", "changes", "words"), IMPOSSIBLE)
def test_impossible(make: Make, changes: dict[str, Any], words: list[str]) -> None:
    with user_error(*words):
        check(make(**changes))


def test_images_of_ranked_documents_have_no_words() -> None:
    """A ranking takes all fields of a side."""
    c = pictures(
        data=recipe.entry(configs.GradedScenes()), fields__text__column="query", **ranking("binary")
    )
    with pytest.raises(UserError, match=r"config.evals.a.modes has 'binary', but the document"):
        check(c)


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
def test_possible(make: Make, changes: dict[str, Any]) -> None:
    check(make(**changes))
