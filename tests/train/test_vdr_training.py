"""VDR and SPLADE in a run: they learn, resume bit for bit, and are equal in every form."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import Config, TermMask, recipe
from big_retrieval.config.checks import check
from big_retrieval.inference.load import load
from big_retrieval.train.loop import train
from tests.helpers import lexical_texts, losses, mesh_keys, results, rows, tiny, user_error
from tests.train.runs import ALL_AXES, ONE, assert_close_run, assert_same_run, train_in_parts
from tests.train.test_graded_training import graded, untrained

pytestmark = pytest.mark.usefixtures("one_model")

HEAD = {"terms": "words", "activation": "elu1p", "top_k": 6, "keep_input_terms": True}
SIZE = {"width": 16, "depth": 1, "heads": 2, "mlp": 32}
FAST = {"optimizer__lr": 5e-3, "optimizer__schedule__warmup_steps": 2, "checkpoint_every": 10,
        "losses__main__logit_scale__init": 1.0, "report": False}  # fmt: skip
SPARSE = configs.Sparsity(query=1e-3, document=1e-3, warmup_steps=10)
SCENES = configs.GradedScenes(size=16, count=80)
KEYS = {"data": recipe.entry(SCENES), "labels__query": "query_id",
        "labels__document": "document_id"}  # fmt: skip


def passage(side: str, column: str, head: dict[str, Any], **field: Any) -> recipe.Editable:
    """A lexical text field, both sides with one tower and one head."""
    shares = "" if side == "query" else "query"
    return recipe.entry(
        configs.TextField(), side=side, column=column, length=12, shares_head=shares,
        head=configs.Lexical(**head), **field,
    )  # fmt: skip


def texts(loss: Any = None, head: dict[str, Any] | None = None, **changes: Any) -> Config:
    """Generated queries and titles with two hard negatives, one text tower."""
    head = HEAD if head is None else head
    given = {
        "fields": {
            "query": passage("query", "query", head),
            "title": passage("document", "title", head),
        },
        "towers": {"text": recipe.entry(configs.Bert(), **SIZE, pool="none")},
        "topology": "inner",
        "negatives__count": 2,
        "total_steps": 10,
        "losses__main": recipe.entry(loss or configs.Vdr(top_k=6)),
        **KEYS,
        **FAST,
    }
    return tiny(**(given | changes))


def splade(**changes: Any) -> Config:
    """The regularizer still grows when the run stops."""
    return texts(configs.Contrastive(sparsity=SPARSE), {"terms": "words"}, **changes)


def pictures(**changes: Any) -> Config:
    """VDR's image-text model with the contrastive mask: scenes and captions."""
    mask = TermMask(apply="gated", source="gate")
    head = {"terms": "words", "activation": "elu1p", "normalise": True, "top_k": 6}
    images = configs.Lexical(**head, tied=False, layer_norm=False)
    given = {
        "fields__image__head": recipe.entry(images),
        "fields__text__head": recipe.entry(configs.Lexical(**head, keep_input_terms=True)),
        "towers__image__class_tokens": 0,
        "towers__text__class_tokens": 1,
        "towers__image__pool": "none",
        "towers__text__pool": "none",
        "topology": "inner",
        "losses__main": recipe.entry(configs.Vdr(top_k=6, bag_norm=True, mask=mask)),
        "total_steps": 10,
        **FAST,
        "losses__main__logit_scale__init": 5.0,
    }
    return tiny(**(given | changes))


def weighed(**changes: Any) -> Config:
    """Graded weights, and documents of two fields with words, one of them optional."""
    loss = configs.Vdr(top_k=6, divide_by="rows")
    fields = {
        "query": passage("query", "query", HEAD),
        "title": passage("document", "title", HEAD, weight=0.5),
        "again": passage("document", "query", HEAD, weight=0.5, optional=True),
    }
    tower = {"text": recipe.entry(configs.Bert(), **SIZE, pool="none")}
    given = {"fields": fields, "towers": tower, "topology": "inner", "total_steps": 10, **FAST}
    return graded(loss, **(given | changes))


KINDS: dict[str, Callable[..., Config]] = {
    "vdr": texts, "splade": splade, "image": pictures, "weighed": weighed,
}  # fmt: skip
SLOW = pytest.mark.slow
ROWS = mesh_keys(data=8)


def agree(found: Path, expected: Path) -> None:
    """Asserts equal losses up to rounding.

    On another mesh, the maximum of two nearly equal logits may be the other logit, which then gets
    the whole gradient: only the first five steps agree to 1e-5.
    """
    assert_close_run(found, expected, rtol=1e-3)
    first = [[losses(run)[step] for step in range(1, 6)] for run in (found, expected)]
    np.testing.assert_allclose(*first, rtol=1e-5)


@SLOW
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_lexical_run_is_bit_identical(
    kind: str, trained: Callable[..., Path], tmp_path: Path
) -> None:
    train_in_parts(KINDS[kind], tmp_path, 4)
    assert_same_run(tmp_path, trained(KINDS[kind]()))


@SLOW
@pytest.mark.parametrize("kind", KINDS)
def test_slices_equal_the_whole_batch(
    kind: str, trained: Callable[..., Path], tmp_path: Path
) -> None:
    train(KINDS[kind](microbatch=4), tmp_path, ONE)
    agree(tmp_path, trained(KINDS[kind]()))


@SLOW
@pytest.mark.parametrize(
    ("kind", "changes"),
    [*((kind, ALL_AXES) for kind in KINDS), ("splade", ROWS), ("weighed", ROWS)],
)
def test_eight_devices_equal_one(
    kind: str, changes: dict[str, int], trained: Callable[..., Path], tmp_path: Path
) -> None:
    """The other kinds with rows over eight devices: test_combinations."""
    exchange = {"losses__main__exchange": "ring", "microbatch": 8} if changes == ALL_AXES else {}
    train(KINDS[kind](**changes, **exchange), tmp_path)
    agree(tmp_path, trained(KINDS[kind]()))


@SLOW
def test_terms_and_activity_are_logged(trained: Callable[..., Path]) -> None:
    folder = trained(texts())
    row, model = rows(folder)[-1], load(folder)
    assert row["loss"] == pytest.approx(row["loss_gated"] + row["loss_bag"], rel=1e-5)
    for field, side in (("query", "query"), ("title", "document")):
        assert 6 <= row[f"nonzero_{side}"] <= 6 + 12
        assert 0 < row[f"expansion_{side}"] < 1
        assert row[f"coverage_{side}"] + row[f"neglected_{side}"] == len(model.terms(field))


def ranking(*modes: str) -> dict[str, Any]:
    """Queries and documents of the training data."""
    return {"seen": recipe.entry(configs.Ranking(), data=SCENES, metrics=("nDCG@10",), modes=modes)}


@SLOW
def test_text_to_text_learns(tmp_path: Path) -> None:
    evals = ranking("bag", "top_k=2", "binary")
    changes = {"log_every": 20, "checkpoint_every": 200, "batch_size": 32, "evals": evals}
    train(texts(total_steps=1, **changes), tmp_path / "before", ONE)
    train(texts(total_steps=200, **changes), tmp_path / "run", ONE)
    first, last = results(tmp_path / "before"), results(tmp_path / "run")
    assert last["loss"] < 0.85 * first["loss"]
    for way, gain in (("", 0.1), ("top_k=2/", 0.03), ("binary/", 0.05)):
        name = f"ranking/seen/{way}nDCG@10"
        assert last[name] > first[name] + gain, name
    assert last["ranking/seen/bag/nDCG@10"] > first["ranking/seen/nDCG@10"] + 0.1


@SLOW
def test_text_to_image_learns(tmp_path: Path) -> None:
    test = configs.Scenes(split="test", count=40)
    evals = {"test": recipe.entry(configs.Retrieval(), data=test, modes=("bag",))}
    changes = {"data__count": 400, "batch_size": 32, "evals": evals, "log_every": 20,
               "checkpoint_every": 300, "towers__image__depth": 2}  # fmt: skip
    config = pictures(total_steps=300, **changes)
    first = untrained(config, tmp_path / "run")
    train(config, tmp_path / "run", ONE)
    last = results(tmp_path / "run")
    assert last["loss"] < 0.9 * rows(tmp_path / "run")[0]["loss"]
    for way in ("text_to_image", "bag/text_to_image"):
        name = f"retrieval/test/{way}/mean_rank"
        assert last[name] < 0.8 * first[name], name
    assert last["retrieval/test/words@5"] > first["retrieval/test/words@5"] + 0.1


@SLOW
def test_untied_mean_pooled_heads_share_one_tower(tmp_path: Path) -> None:
    head = {"tied": False, "pooling": "mean", "activation": "elu1p", "transform": "none"}
    config = tiny(**lexical_texts(**head), optimizer__lr=1e-2, optimizer__schedule__warmup_steps=2)
    shared = dataclasses.replace(config.fields["document"], tower="text")
    config = dataclasses.replace(
        config,
        fields=dict(config.fields) | {"document": shared},
        towers={"text": config.towers["text"]},
    )
    train(config, tmp_path, ONE)
    found = losses(tmp_path)
    assert found[8] < found[1]
    weights = load(tmp_path).weights
    assert set(weights["query_head"]) == {"kernel", "ln", "bias"}
    assert set(weights) == {"text", "query_head", "document_head", "scalars"}


def test_check_rejects_lexical_texts_with_oblique_images() -> None:
    head = recipe.entry(configs.Projection(), dim=4)
    changes = {
        "fields__image__head": head,
        "towers__image__pool": "first",
        "towers__image__class_tokens": 2,
        "losses__main": recipe.entry(configs.Contrastive()),
    }
    words = "config.fields.image.head.type 'projection', which cannot be compared"
    with user_error("config.fields.text.head.type is 'lexical'", words):
        check(pictures(**changes))
