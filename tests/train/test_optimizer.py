"""Schedules, rules over names, decay, freezing, averages."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_retrieval.config import Optimizer, Schedule
from big_retrieval.errors import UserError
from big_retrieval.train.optimizer import factors, make_optimizer, make_schedule, names_of

PARAMS = {
    "image": {
        "layers_0": {"mlp": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}},
        "layers_1": {"mlp": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}},
        "position_embedding": jnp.ones((4, 2)),
    },
    "scalars": {"main": {"temperature": jnp.ones(())}},
}


def curve(steps: int = 100, **changes: object) -> np.ndarray:
    config = dataclasses.replace(Schedule(), **changes)  # type: ignore
    return np.asarray(jax.vmap(make_schedule(config, steps))(jnp.arange(steps + 1)))


def test_cosine_follows_its_formula() -> None:
    found = curve(warmup_steps=20, end=0.1)
    steps = np.arange(101)
    body = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * np.clip((steps - 20) / 80, 0, 1)))
    np.testing.assert_allclose(found, body * np.minimum(1, steps / 20), rtol=1e-5, atol=1e-7)


def test_linear_constant_and_rsqrt() -> None:
    np.testing.assert_allclose(curve(type="linear"), 1 - np.arange(101) / 100, atol=1e-6)
    np.testing.assert_allclose(curve(type="constant"), 1.0)
    found = curve(type="rsqrt", timescale=10, warmup_steps=10)
    expected = np.sqrt(10 / (10 + np.maximum(0, np.arange(101) - 10)))
    np.testing.assert_allclose(found[10:], expected[10:], rtol=1e-5)


def test_cooldown_is_linear_from_where_the_body_was() -> None:
    found = curve(type="rsqrt", timescale=10, cooldown_steps=50, end=0.0)
    body = np.sqrt(10 / 60)
    np.testing.assert_allclose(found[50:], body * (1 - np.arange(51) / 50), rtol=1e-5, atol=1e-7)


def test_warmup_longer_than_the_run_is_clipped() -> None:
    found = curve(steps=10, warmup_steps=1000, cooldown_steps=1000)
    np.testing.assert_allclose(found, np.arange(11) / 10, rtol=1e-6)


def one_update(config: Optimizer, gradient: float = 1.0) -> dict[str, jax.Array]:
    """The change of every parameter by the first step."""
    tx, _ = make_optimizer(config, PARAMS, 10)
    grads = jax.tree.map(lambda p: jnp.full_like(p, gradient), PARAMS)
    updates, _ = tx.update(grads, tx.init(PARAMS), PARAMS)
    return names_of(updates)


PLAIN = Optimizer(
    lr=0.1, eps=1e-12, weight_decay=0.0, clip_norm=None, schedule=Schedule(type="constant")
)


def test_first_adam_step_is_the_learning_rate() -> None:
    for name, change in one_update(PLAIN).items():
        np.testing.assert_allclose(change, -0.1, rtol=1e-5, err_msg=name)


def test_decay_spares_vectors_scalars_and_position_tables() -> None:
    for name, change in one_update(dataclasses.replace(PLAIN, weight_decay=0.5)).items():
        expected = -0.15 if name.endswith("kernel") else -0.1
        np.testing.assert_allclose(change, expected, rtol=1e-5, err_msg=name)


def test_the_last_matching_rule_holds() -> None:
    rules = ((r"image/.*", 0.5), (r".*/layers_1/.*", 0.0))
    changes = one_update(dataclasses.replace(PLAIN, lr_factors=rules))
    np.testing.assert_allclose(changes["image/layers_0/mlp/kernel"], -0.05, rtol=1e-5)
    np.testing.assert_allclose(changes["image/layers_1/mlp/kernel"], 0.0)
    np.testing.assert_allclose(changes["scalars/main/temperature"], -0.1, rtol=1e-5)


def test_decay_factors() -> None:
    config = dataclasses.replace(
        PLAIN, weight_decay=0.5, decay_factors=((r".*layers_0/mlp/kernel", 0.0), (".*bias", 2.0))
    )
    changes = one_update(config)
    np.testing.assert_allclose(changes["image/layers_0/mlp/kernel"], -0.1, rtol=1e-5)
    np.testing.assert_allclose(changes["image/layers_0/mlp/bias"], -0.2, rtol=1e-5)


def test_frozen_parameters_stay_and_have_no_state() -> None:
    config = dataclasses.replace(PLAIN, freeze=(r"image/layers_0/.*",), clip_norm=1.0)
    changes = one_update(config)
    np.testing.assert_array_equal(changes["image/layers_0/mlp/kernel"], 0.0)
    assert np.all(np.asarray(changes["image/layers_1/mlp/kernel"]) < 0)
    tx, _ = make_optimizer(config, PARAMS, 10)
    frozen = 8  # numbers in layers_0
    whole = sum(x.size for x in jax.tree.leaves(PARAMS))
    moments = sum(
        x.size for x in jax.tree.leaves(tx.init(PARAMS)) if x.ndim or x.dtype != jnp.int32
    )
    assert moments == 2 * (whole - frozen)


def test_clipping_is_by_the_global_norm() -> None:
    tx, _ = make_optimizer(dataclasses.replace(PLAIN, clip_norm=0.5), PARAMS, 10)
    grads = jax.tree.map(jnp.ones_like, PARAMS)
    _, state = tx.update(grads, tx.init(PARAMS), PARAMS)
    first = optax.tree.get(state, "mu")
    norm = optax.tree.norm(jax.tree.map(lambda m: m / (1 - PLAIN.b1), first))
    np.testing.assert_allclose(norm, 0.5, rtol=1e-5)


@pytest.mark.parametrize("key", ["lr_factors", "decay_factors", "freeze"])
@pytest.mark.parametrize("pattern", [r"imagee/.*", r"layers_0", "("])
def test_rules_that_cannot_be_meant(key: str, pattern: str) -> None:
    rule = pattern if key == "freeze" else (pattern, 0.5)
    with pytest.raises(UserError) as problem:
        make_optimizer(dataclasses.replace(PLAIN, **{key: (rule,)}), PARAMS, 10)  # type: ignore
    assert f"config.optimizer.{key}" in str(problem.value)
    assert repr(pattern) in str(problem.value)


def test_factors_default() -> None:
    assert set(factors(PARAMS, (), "key").values()) == {1.0}
