"""LTD's model families in the trainer: batch norms of heads, slices, devices, phases, plans."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.config import recipe
from big_retrieval.config.checks import check
from big_retrieval.errors import UserError
from big_retrieval.interop.initial_weights import read_initial_weights
from big_retrieval.interop.read import read
from big_retrieval.models.towers import make_model
from big_retrieval.plan import plan
from big_retrieval.train import resume
from big_retrieval.train.build import build_model
from big_retrieval.train.loop import train
from big_retrieval.train.optimizer import names_of
from tests.helpers import tiny, user_error
from tests.train.runs import ALL_AXES, ONE, VOCAB, prepare
from tests.train.test_batch_stats import assert_trees_equal, flat, moved, stats
from tests.train.test_phases import resnet

pytestmark = pytest.mark.usefixtures("one_model")


def words(norm: bool = True, **head: Any) -> dict[str, Any]:
    """The base model's captions, next to the tiny config's images."""
    head = {"dim": 4, "batch_norm": norm, **head}
    return {
        "towers__text": recipe.entry(configs.Gru(), width=8, words=6),
        "towers__image__class_tokens": 1,
        "fields__text__head": recipe.entry(configs.Mlp(), **head),
    }


def regions(tower: Any, head: Any, text: Any, **more: Any) -> dict[str, Any]:
    """Captions and generated regions, with separate heads."""
    fields: Any = {
        "image": configs.RegionField(regions=5, dim=6, generated=True, boxes="boxes", head=head),
        "text": configs.TextField(length=12, head=text),
    }
    found = {f"fields__{name}": recipe.entry(field) for name, field in fields.items()}
    return {**found, "towers__regions": recipe.entry(tower), **more}


def vsrn(frozen: bool = False, norm: bool = True) -> dict[str, Any]:
    tower = configs.RegionGraph(width=8, depth=1, frozen_stats=frozen)
    text = configs.Mlp(dim=8, batch_norm=norm)
    return words(norm) | regions(tower, configs.Projection(dim=None), text)


def tern() -> dict[str, Any]:
    sizes: Any = {"heads": 2, "mlp": 16, "depth": 1, "dropout": 0.1}
    head = configs.SharedTransformer(dim=8, **sizes)
    bert = recipe.entry(configs.Bert(), width=12, pool="none", final_norm=False, **sizes)
    found = regions(configs.RegionTransformer(width=16, **sizes), head, head, towers__text=bert)
    return {**found, "fields__text__shares_head": "image"}


def alone(changes: dict[str, Any]) -> configs.Config:
    """The tiny config with some fields, and without towers that no field uses."""
    config = tiny(**changes)
    used = {field.tower for field in config.encoded.values()}
    towers = {name: tower for name, tower in config.towers.items() if name in used}
    return dataclasses.replace(config, towers=towers)


def steps(config: configs.Config, devices: Any = ONE) -> tuple[list[float], Any]:
    """(losses of three steps on one random batch, the state afterwards)."""
    check(config)
    step, state, batch = prepare(config, devices)
    found = []
    for _ in range(3):
        state, out = step(state, batch)
        found.append(float(out["loss"]))
    assert int(state.first_bad_step) == -1
    assert len(set(found)) > 1
    return found, state


def test_phase_updates_batch_norms_of_a_frozen_network() -> None:
    """LTD's first phase: the network is frozen, but its batch norms use the batch."""
    phases = {"heads": recipe.phase(start_step=0, trainable=".*_head/.*", batch_stats="update")}
    more: dict[str, Any] = {"optimizer__phases": phases, "optimizer__schedule__warmup_steps": 0}
    captions = {key: x for key, x in words().items() if not key.startswith("towers__image")}
    config = resnet("update", **captions, **more)
    check(config)
    step, state, batch = prepare(config)
    before = {name: np.asarray(x) for name, x in names_of(state.params).items()}
    _, expected = moved(config, state, batch.fields)
    assert {"text_head/bn/mean", "image/bn1/var"} < set(flat(expected))
    state, _ = step(state, batch)
    assert_trees_equal(state.batch_stats, expected, rtol=1e-5, atol=1e-6)
    for name, x in names_of(state.params).items():
        assert np.array_equal(x, before[name]) == ("_head/" not in name), name


def test_check_of_slices_with_a_heads_batch_norm() -> None:
    with pytest.raises(UserError, match=r"config.microbatch 4: .*config.fields.text.head need"):
        check(tiny(microbatch=4, **words()))
    check(tiny(microbatch=4, **words(batch_stats="slice")))
    check(tiny(microbatch=4, **words(frozen_stats=True)))
    check(tiny(microbatch=4, **words(norm=False)))
    phases = {"late": recipe.phase(start_step=1, batch_stats="running")}
    check(tiny(optimizer__phases=phases, **words()))
    with pytest.raises(UserError, match="no tower or head has batch norms"):
        check(tiny(optimizer__phases=phases, **words(norm=False)))
    phases = {"late": recipe.phase(start_step=1, batch_stats="update")}
    with pytest.raises(UserError, match=r"set config.fields.text.head.batch_stats to 'slice'"):
        check(tiny(microbatch=4, optimizer__phases=phases, **words(frozen_stats=True)))
    for how, free in (("batch", True), ("slice", False)):
        config = tiny(**words(batch_stats=how))
        assert resume._free("config.microbatch", config) == free


FAMILIES = pytest.mark.parametrize("family", [vsrn, tern])


@pytest.mark.slow
@FAMILIES
def test_eight_devices_and_slices_are_the_whole_on_one(family: Any) -> None:
    """TERN has dropout, whose bits depend on the row."""
    one, state = steps(alone(family()))
    slices = {"microbatch": 8} if family is tern else {}  # VSRN has batch norms
    many, other = steps(alone({**family(), **ALL_AXES, **slices}), jax.devices())
    np.testing.assert_allclose(many, one, rtol=1e-5)
    assert_trees_equal(other.batch_stats, state.batch_stats, rtol=1e-3, atol=1e-4)
    if family is vsrn:
        by_row = family(frozen=True, norm=False)
        one, _ = steps(alone(by_row))
        sliced, _ = steps(alone({**by_row, "microbatch": 8}))
        np.testing.assert_allclose(sliced, one, rtol=1e-5)


@pytest.mark.slow
def test_init_reads_a_head_with_its_averages(tmp_path: Path) -> None:
    changes = {**words(), "total_steps": 2, "checkpoint_every": 2}
    train(tiny(**changes), tmp_path, ONE)
    init = {"text": recipe.entry(configs.Init(), path=str(tmp_path))}
    config = tiny(**changes, init=init)
    parts = build_model(config, parallel.make_mesh(config, ONE), vocab_size=128, total_steps=2)
    trees = (parts.abstract.params, parts.abstract.batch_stats)
    sizes = [{name: x.shape for name, x in names_of(tree).items()} for tree in trees]
    table = read(str(tmp_path)).parts["text"].params["token_embedding"]
    found = read_initial_weights(config, sizes[0] | {"text/token_embedding": table.shape}, sizes[1])
    heads = {name for name in found.params if name.startswith("text_head/")}
    assert heads == {f"text_head/{x}" for x in ("fc1/kernel", "fc2/kernel", "bn/scale", "bn/bias")}
    expected = flat(stats(tmp_path, 2))
    assert found.stats.keys() == expected.keys() == {"text_head/bn/mean", "text_head/bn/var"}
    for name, x in expected.items():
        np.testing.assert_array_equal(found.stats[name], x)


@FAMILIES
def test_embeddings_are_in_float32(family: Any) -> None:
    model = make_model(alone({**family(), "dtype": "bfloat16"}), VOCAB)
    key, inputs = jax.random.key(0), model.example_inputs()
    reps, drawn = jax.eval_shape(lambda: model.init_with_output(key, inputs))
    assert {x.dtype for x in jax.tree.leaves((reps.embeddings, drawn))} == {jnp.dtype("float32")}
    assert {x.shape for x in reps.embeddings.values()} == {(1, 1, 8)}


@FAMILIES
def test_plans_are_made_by_tracing(family: Any) -> None:
    where = plan.Target(None, ONE, "not compiled")
    found = plan.make(alone(family()), where)
    assert found["flops_by_part"]["towers"] > 0
    assert found["per_device_bytes"]["parameters"] > 0


def test_shared_head_has_a_projection_for_each_field() -> None:
    config = alone(tern())
    parts = build_model(config, parallel.make_mesh(config, ONE), vocab_size=VOCAB, total_steps=2)
    shapes = {name: x.shape for name, x in names_of(parts.abstract.params).items()}
    assert shapes["image_head/image_projection/kernel"] == (16, 8)
    assert shapes["image_head/text_projection/kernel"] == (12, 8)
    assert not any(name.startswith("text_head/") for name in shapes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            tern()
            | {"fields__image__head": recipe.entry(configs.Projection(), dim=8)}
            | {"fields__text__shares_head": ""},
            "config.towers.regions",
        ),
        (
            tern() | {"fields__text__head": recipe.entry(configs.SharedTransformer(), dim=16)},
            "config.fields.text.shares_head",
        ),
        ({**words(), "towers__text__width": 7}, "config.towers.text.width is 7"),
    ],
)
def test_check_rejects_impossible_families(changes: dict[str, Any], words: str) -> None:
    with user_error(words):
        check(alone(changes))
