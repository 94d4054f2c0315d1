"""Graded, multi-field training: it learns, and is equal in every form.

Resumed: test_vdr_training, test_combinations.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.evals import evaluators
from big_retrieval.inference.load import load
from big_retrieval.train.build import first_state
from big_retrieval.train.loop import train
from big_retrieval.train.run import set_up
from tests.helpers import results, rows, tiny
from tests.train.runs import ALL_AXES, ONE, assert_close_run

pytestmark = pytest.mark.usefixtures("one_model")

SCENES = {"size": 16, "count": 80}


def fields(head: Any, size: int = 16) -> dict[str, Any]:
    """A query, and documents of an image and a title; the title shares tower and head."""
    title = configs.TextField(
        side="document", column="title", length=12, head=head, shares_head="query", weight=0.25,
        optional=True,
    )  # fmt: skip
    image = configs.ImageField(size=size, head=head, weight=0.75, optional=True, flip=0.0)
    return {
        "query": recipe.entry(configs.TextField(), column="query", length=10, head=head),
        "title": recipe.entry(title),
        "image": recipe.entry(image, crop_scale=(0.9, 1.0)),
    }


def graded(loss: Any = None, tokens: int = 2, **changes: Any) -> Config:
    """A tiny run on generated judged pairs."""
    labels = configs.PairLabels(
        query="query_id", document="document_id", score="score", weight="inverse"
    )
    loss = loss or configs.Contrastive(divide_by="rows")
    size = {"width": 16, "depth": 1, "heads": 2, "mlp": 32, "class_tokens": tokens}
    given = {
        "fields": fields(configs.Projection(dim=4)),
        "towers": {
            "image": recipe.entry(configs.ViT(), patch=8, **size),
            "text": recipe.entry(configs.Bert(), norm="pre", **size),
        },
        "labels": recipe.entry(labels),
        "losses__main": recipe.entry(loss),
        "data": recipe.entry(configs.GradedScenes(), **SCENES),
        "topology": "oblique",
        "total_steps": 12,
        "checkpoint_every": 12,
        "optimizer__clip_norm": None,
        "optimizer__schedule__warmup_steps": 2,
    }
    return tiny(**(given | changes))


@pytest.fixture(scope="module")
def full_run(trained: Callable[..., Path]) -> Path:
    """The run on one device."""
    return trained(graded())


@pytest.mark.slow
def test_terms_are_logged_and_heads_are_shared(full_run: Path) -> None:
    row = rows(full_run)[-1]
    terms = [row[f"loss_{name}"] for name in ("average", "query_title", "query_image")]
    assert row["loss"] == pytest.approx(sum(terms), rel=1e-5)
    weights = load(full_run).weights
    assert {"query_head", "image_head"} <= set(weights)
    assert "title_head" not in weights
    assert weights["text"]["position_embedding"].shape[0] == 12 + 1  # titles are the longest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "changes"),
    [
        (1, {"microbatch": 4}),
        (8, {**ALL_AXES, "microbatch": 8, "losses__main__exchange": "ring"}),
    ],
)
def test_slices_and_devices_equal_one_device(
    full_run: Path, tmp_path: Path, devices: int, changes: dict[str, Any]
) -> None:
    train(graded(**changes), tmp_path, jax.devices()[:devices])
    assert_close_run(tmp_path, full_run)


def untrained(config: Config, workdir: Path) -> dict[str, float]:
    """Returns the metrics of a run's initial parameters, on one device."""
    run = set_up(config, workdir, ONE)
    return evaluators.run(
        run.evaluators, {*run.evaluators}, first_state(run.parts, run.tokenizer).weights
    )


def evaluation(split: str) -> Any:
    ev = recipe.entry(configs.Ranking(), metrics=("nDCG@10", "ERR"), documents=("image", "title"))
    ev.data = recipe.entry(configs.GradedScenes(), split=split, **SCENES)
    return ev


@pytest.mark.slow
def test_graded_run_learns_to_rank(tmp_path: Path) -> None:
    evals = {"in_domain": evaluation("in_domain"), "zero_shot": evaluation("zero_shot")}
    evals["in_domain"].traffic, evals["zero_shot"].traffic = 0.8, 0.2
    config = graded(
        total_steps=150, evals=evals, optimizer__lr=1e-2, batch_size=32, log_every=10,
        checkpoint_every=150, labels__weight="table", labels__normalise=True,
        labels__table=tuple((s, (s / 100) ** 0.5) for s in range(101)),
    )  # fmt: skip
    first = untrained(config, tmp_path / "run")
    train(config, tmp_path / "run", ONE)
    last = results(tmp_path / "run")
    for way, gain in (("", 0.05), ("title/", 0.1)):
        name = f"ranking/in_domain/{way}nDCG@10"
        assert last[name] > first[name] + gain, (name, first[name])
    traffic = 0.8 * last["ranking/in_domain/ERR"] + 0.2 * last["ranking/zero_shot/ERR"]
    assert last["ranking/traffic/ERR"] == pytest.approx(traffic)
    report = (tmp_path / "run" / "report.html").read_text()
    assert "relevance of the first 10 adds up to" in report


SIXTEEN = {
    "tokens": 16,
    "losses__main__logit_scale__max": 100 / 16,
    "losses__main__logit_scale__init": 1.0,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "microbatch"),
    [("oblique-16", 8), ("geodesic", None), ("sigmoid", None)],
)
def test_eight_devices_equal_one(kind: str, microbatch: int | None, tmp_path: Path) -> None:
    """Lexical heads: test_vdr_training."""
    config = {
        "oblique-16": lambda **more: graded(**SIXTEEN, **more),
        "geodesic": lambda **more: graded(topology="geodesic", **more),
        "sigmoid": lambda **more: graded(configs.Sigmoid(weight_inside=True), **more),
    }[kind]
    train(config(total_steps=5), tmp_path / "one", ONE)
    train(config(total_steps=5, microbatch=microbatch, mesh__data=8), tmp_path / "many")
    assert_close_run(tmp_path / "many", tmp_path / "one")
