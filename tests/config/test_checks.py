"""Checks of keys that do not fit together, of meshes, and the metrics and shapes they use."""

import contextlib
import dataclasses
from typing import Any, Literal

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.config.checks import check, mesh_shape
from big_retrieval.config.checks.evals import metrics_of
from big_retrieval.config.foreign import make_foreign
from big_retrieval.evals.ranks import Ranks
from big_retrieval.evals.retrieval import summarise
from tests.helpers import lexical_texts, mesh_keys, tiny, user_error

RETRIEVAL = configs.Retrieval()
COLOURS = configs.ZeroShot()
OWN = configs.Pairs(path="pairs.jsonl")


@configs.register("field")
@dataclasses.dataclass(frozen=True)
class Present(configs.TextField):
    """A field with an array of a name that batches use."""

    type: Literal["test_present"] = "test_present"  # type: ignore

    def shapes(self) -> Any:
        return {**super().shapes(), "present": ((), "bool")}


def mixture(*weights: float | None, path: str = "pairs.jsonl") -> recipe.Editable:
    parts = {
        f"part{n}": configs.MixturePart(source=configs.Pairs(path=path), weight=weight)
        for n, weight in enumerate(weights)
    }
    return recipe.entry(configs.Mixture(parts=parts))


def with_evals(**evals: Any) -> dict[str, Any]:
    """The change that sets `config.evals`; values are (dataclass, changes)."""
    return {"evals": {name: recipe.entry(ev, **changes) for name, (ev, changes) in evals.items()}}


def lexical(**changes: Any) -> dict[str, Any]:
    """The change that gives the text field a lexical head, and further ones."""
    head = recipe.entry(configs.Lexical())
    return {"fields__text__head": head, "towers__text__pool": "none", **changes}


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    # the run
    ({"batch_size": 0}, "config.batch_size is 0"),
    ({"total_steps": None}, "config.total_steps"),
    ({"total_steps": 0}, "config.total_steps is 0"),
    ({"log_every": 0}, "config.log_every is 0"),
    ({"seed": -1}, "config.seed is -1"),
    ({"total_steps": None, "total_epochs": 1.0, "total_examples": 3}, "config.total_examples"),
    ({"mesh__data": 0}, "config.mesh.data is 0"),
    ({"mesh__tensor": -2}, "config.mesh.tensor is -2"),
    ({"mesh__fsdp": -1}, "config.mesh.data and config.mesh.fsdp"),
    ({"microbatch": 5}, "config.microbatch 5"),
    ({"losses__main__block": 0}, "config.losses.main.block is 0"),
    # the optimiser
    ({"optimizer__lr": 0.0}, "config.optimizer.lr"),
    ({"optimizer__rule__b2": 1.0}, "config.optimizer.rule.b2"),
    ({"optimizer__weight_decay": -0.1}, "config.optimizer.weight_decay"),
    ({"optimizer__clip_norm": 0.0}, "config.optimizer.clip_norm"),
    ({"optimizer__schedule__end": 2.0}, "config.optimizer.schedule.end"),
    # towers and fields
    ({"towers__image__heads": 3}, "config.towers.image.width 16"),
    ({"towers__text__depth": 0}, "config.towers.text.depth is 0"),
    ({"towers__text__dropout": 1.0}, "config.towers.text.dropout"),
    (
        {"towers__text__attention": "kernel", "towers__text__dropout": 0.1},
        "config.towers.text.attention 'kernel'",
    ),
    (
        {"towers__text__attention": "kernel", "towers__text__relative_positions": 32},
        "config.towers.text.attention 'kernel'",
    ),
    ({"towers__spare": recipe.vit("B/16")}, "config.towers.spare"),
    ({"fields__text__tower": "txt"}, "config.fields.text.tower is 'txt'"),
    ({"fields__text__tower": "image"}, "config.fields.text.tower"),
    ({"fields__image__size": 30}, "config.fields.image.size 30"),
    ({"fields__image__size": 0}, "config.fields.image.size is 0"),
    ({"fields__image__flip": 2.0}, "config.fields.image.flip"),
    ({"fields__image__crop_scale": (0.9, 0.1)}, "config.fields.image.crop_scale"),
    ({"fields__image__eval_resize": 8}, "config.fields.image.eval_resize is 8, less"),
    ({"fields__image__crop_ratio": (-1.0, 1.0)}, "config.fields.image.crop_ratio"),
    ({"fields__image__std": (0.0, 1.0, 1.0)}, "config.fields.image.std"),
    ({"fields__image__column": "img"}, "config.fields.image.column is 'img'"),
    ({"fields__text__column": "caption"}, "config.fields.text.column"),
    ({"fields__text__length": 2}, "config.fields.text.length is 2"),
    ({"fields__text__head__dim": 0}, "config.fields.text.head.dim is 0"),
    ({"fields__text__head__spheres": 2}, "config.fields.text.head.spheres"),
    ({"fields__text__side": "document"}, "config.fields has no field of side 'query'"),
    # lexical heads
    ({"towers__text__pool": "none"}, "config.towers.text.pool is 'none'"),
    (lexical(towers__text__pool="first"), "config.fields.text.head"),
    ({"fields__image__head": recipe.entry(configs.Lexical())}, "image.head.type"),
    (lexical(), "config.towers.text.class_tokens 2"),
    (
        lexical(towers__text__class_tokens=1, topology="inner"),
        "config.fields.text.head.type is 'lexical'",
    ),
    (
        lexical(fields__text__head__epsilon=0.0, towers__text__class_tokens=1, topology="inner"),
        "config.fields.text.head.epsilon is 0.0",
    ),
    (lexical_texts() | {"towers__other__vocab_size": 90}, "config.towers.text.vocab_size is None"),
    # both sides
    ({"towers__image__class_tokens": 1}, "image 1 x 4, text 2 x 4"),
    ({"fields__image__head__dim": 8}, "image 2 x 8, text 2 x 4"),
    # logit scale
    ({"losses__main__logit_scale__init": 200.0}, "config.losses.main.logit_scale.init 200"),
    ({"losses__main__logit_scale__init": -1.0}, "config.losses.main.logit_scale.init"),
    ({"losses__main__logit_scale__min": 50.0}, "config.losses.main.logit_scale.init"),
    # data, tokenizer, loader
    ({"data__count": 0}, "config.data.count is 0"),
    ({"data__size": 5}, "config.data.size is 5"),
    ({"data": recipe.entry(configs.Pairs())}, "config.data.path"),
    ({"data": recipe.entry(OWN, image="", text="")}, "config.data.image"),
    ({"data": recipe.entry(OWN, join="a.csv")}, "config.data.join"),
    ({"data": recipe.entry(OWN, where=("train",))}, "config.data.where"),
    ({"data": recipe.entry(configs.Tar())}, "config.data.path"),
    ({"data": recipe.entry(configs.Tfds())}, "config.data.name"),
    ({"data": recipe.entry(configs.Karpathy())}, "config.data.path"),
    ({"data": recipe.entry(configs.Mixture())}, "config.data.parts"),
    ({"data": mixture(0.5, None)}, "config.data.parts.part1.weight is None"),
    ({"data": mixture(0.5, -1.0)}, "config.data.parts.part1.weight is -1.0"),
    ({"labels__query_field": "text"}, "config.labels.query names no column"),
    ({"data": mixture(1.0, path="")}, "config.data.parts.part0.source.path is empty"),
    ({"loader__max_damaged": 1.5}, "config.loader.max_damaged is 1.5"),
    ({"tokenizer__type": "clip"}, "config.tokenizer.type 'clip'"),
    ({"tokenizer__vocab_size": 0}, "config.tokenizer.vocab_size is 0"),
    ({"loader__workers": -1}, "config.loader.workers is -1"),
    # evaluators
    (with_evals(a=(RETRIEVAL, {"query": "txt"})), "config.evals.a.query is 'txt'"),
    (with_evals(a=(RETRIEVAL, {"query": "image"})), "config.evals.a.query"),
    (with_evals(a=(RETRIEVAL, {"recall_at": ()})), "config.evals.a.recall_at"),
    (with_evals(a=(RETRIEVAL, {"recall_at": (0,)})), "config.evals.a.recall_at"),
    (with_evals(a=(RETRIEVAL, {"chunk": 0})), "config.evals.a.chunk is 0"),
    (with_evals(a=(RETRIEVAL, {"every": -1})), "config.evals.a.every is -1"),
    (with_evals(z=(COLOURS, {"image": "text"})), "config.evals.z.image is 'text'"),
    (with_evals(z=(COLOURS, {"label": "color"})), "config.evals.z.label is 'color'"),
    (
        with_evals(z=(COLOURS, {"data": configs.Scenes(split="shapes")})),
        "config.evals.z.label is 'colour'",
    ),
    (with_evals(z=(COLOURS, {"prompts": ("a photo",)})), "config.evals.z.prompts"),
    (with_evals(z=(COLOURS, {"classes": ("red",)})), "config.evals.z.classes has 1"),
    (with_evals(z=(COLOURS, {"data": OWN})), "config.evals.z.prompts"),
    (
        {**with_evals(a=(RETRIEVAL, {})), "best_metric": "retrieval/a/image_to_text/R@2"},
        "config.best_metric",
    ),
    ({"best_metric": "loss"}, "config.best_metric 'loss'"),
    ({"final_weights": "best"}, "config.final_weights is 'best'"),
    # names
    ({"fields__valid": recipe.entry(configs.ArrayField(), column="x")}, "config.fields.valid: b"),
    ({"fields__weight": recipe.entry(configs.ArrayField(), column="x")}, "config.fields.weight"),
    ({"fields__text": recipe.entry(Present())}, "config.fields.text has an array 'present'"),
    ({"fields__a/b": recipe.entry(configs.ArrayField(), column="x")}, "'a/b'"),
    (
        with_evals(traffic=(configs.Ranking(), {"data": configs.GradedScenes(), "traffic": 1.0})),
        "config.evals.traffic",
    ),
    ({"evals": {"a": recipe.entry(RETRIEVAL), "a/b": recipe.entry(RETRIEVAL)}}, "config.evals.a/b"),
]


def test_check_accepts_tiny_configs() -> None:
    check(tiny())
    check(tiny(**with_evals(a=(RETRIEVAL, {}), z=(COLOURS, {}))))
    check(tiny(**lexical_texts()))
    check(tiny(total_steps=None), trains=False)


@pytest.mark.parametrize(("changes", "key"), IMPOSSIBLE)
def test_check_rejects(changes: dict[str, Any], key: str) -> None:
    c = tiny(**changes)
    with user_error(key):
        check(c)


@pytest.mark.parametrize(
    ("mesh", "devices", "batch", "expected"),
    [
        ({}, 1, 16, (1, 1, 1)),
        ({}, 8, 16, (8, 1, 1)),
        ({"fsdp": 2}, 8, 16, (4, 2, 1)),
        ({"data": 1, "tensor": -1}, 8, 3, (1, 1, 8)),
        ({"data": 2, "fsdp": 2, "tensor": 2}, 8, 4, (2, 2, 2)),
        ({"data": 3}, 8, 24, "config.mesh (data 3, fsdp 1, tensor 1)"),
        ({"fsdp": 3}, 8, 24, "config.mesh (data -1, fsdp 3, tensor 1)"),
        ({"tensor": 2}, 1, 16, "1 device(s)"),
        ({"data": 2, "fsdp": 2}, 8, 16, "data 2, fsdp 2"),
        ({"tensor": -1}, 8, 16, "config.mesh.data and config.mesh.tensor"),
        ({}, 8, 12, "config.batch_size 12"),
        ({}, 8, 1, "config.batch_size 1 "),
        ({"fsdp": 4}, 8, 12, "config.batch_size 12"),
    ],
)
def test_mesh_shape(mesh: dict[str, int], devices: int, batch: int, expected: Any) -> None:
    config = tiny(batch_size=batch, **mesh_keys(**mesh))
    with user_error(expected) if isinstance(expected, str) else contextlib.nullcontext():
        assert mesh_shape(config, devices) == expected


def test_mesh_shape_divides_microbatches() -> None:
    with user_error("config.microbatch 4", "; 8 would"):
        mesh_shape(tiny(microbatch=4), 8)
    with user_error("config.microbatch 6", "; 4 would"):  # 8 does not divide the batch of 12
        mesh_shape(tiny(batch_size=12, microbatch=6), 4)
    assert mesh_shape(tiny(microbatch=8), 8) == (8, 1, 1)


def test_check_accepts_foreign_losses_in_evaluations() -> None:
    loss = make_foreign(configs.Loss, {"type": "gone"}, configs.Plugin(), "config.losses.main")
    check(dataclasses.replace(tiny(), losses={"main": loss}), trains=False)


def test_embedding_shape() -> None:
    def shape_of(c: configs.Config, field: str, vocab_size: int = 0) -> tuple[int, int]:
        return c.fields[field].head.embedding_shape(c, field, vocab_size)

    assert shape_of(tiny(), "image") == (2, 4)
    one = {"towers__image__class_tokens": 1, "towers__text__class_tokens": 1}
    c = tiny(**one, fields__image__head__spheres=2, fields__text__head__spheres=2)
    check(c)
    assert shape_of(c, "text") == (2, 2)
    words = tiny(**lexical_texts())
    assert shape_of(words, "query", 70) == (1, 70)
    sized = tiny(**lexical_texts(), towers__text__vocab_size=90)
    assert shape_of(sized, "query", 70) == (1, 90)


def test_metrics_of_evaluators() -> None:
    c = tiny(**with_evals(a=(RETRIEVAL, {}), z=(COLOURS, {})))
    ranks = Ranks(np.array([1, 2]), *np.zeros((2, 2)), np.array([True, True]))
    computed = set(summarise(ranks, RETRIEVAL.recall_at))
    names = {name.rsplit("/", 1)[1] for name in metrics_of(c, "a")}
    assert names == computed | {"rsum", "R-mean"}
    assert metrics_of(c, "z")[0] == "zeroshot/z/accuracy"
