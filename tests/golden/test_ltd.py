"""Latent target decoding: reference values of its losses and of the multiplier of a constraint."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.config import Constraint
from big_retrieval.losses import constraint
from big_retrieval.losses.contrastive import contrastive_loss
from big_retrieval.similarity import InnerProduct
from tests.examples.helpers import example

Case = Mapping[str, np.ndarray]


@pytest.mark.golden("ltd", "triplet.npz", prefixes=".")
def test_hardest_triplets(case: Case) -> None:
    """The sum over the batch and both directions."""
    with jax.enable_x64(True):

        def loss(captions: jax.Array, images: jax.Array) -> jax.Array:
            sides, margin = (captions[:, None], images[:, None]), float(case["max.margin"])
            triplet = example("triplet").triplet_loss
            return triplet(*sides, margin, topology=InnerProduct())[0]

        points = jnp.asarray(case["max.captions"]), jnp.asarray(case["max.images"])
        value, grads = jax.value_and_grad(loss, argnums=(0, 1))(*points)
    np.testing.assert_allclose(value, case["max.loss"], rtol=1e-5)
    for key, grad in zip(("captions", "images"), grads, strict=True):
        np.testing.assert_allclose(grad, case[f"max.grad_{key}"], rtol=1e-5, atol=1e-6)


@pytest.mark.golden("ltd", "infonce.npz", prefixes=".")
def test_infonce(case: Case) -> None:
    with jax.enable_x64(True):

        def loss(captions: jax.Array, images: jax.Array) -> jax.Array:
            sides, scale = (captions[:, None], images[:, None]), 1 / float(case["tau"])
            return contrastive_loss(*sides, topology=InnerProduct(), scale=scale)[0]

        points = jnp.asarray(case["captions"]), jnp.asarray(case["images"])
        value, grads = jax.value_and_grad(loss, argnums=(0, 1))(*points)
    np.testing.assert_allclose(value, case["loss"], rtol=1e-5)
    for key, grad in zip(("captions", "images"), grads, strict=True):
        np.testing.assert_allclose(grad, case[f"grad_{key}"], rtol=1e-5, atol=1e-6)


@pytest.mark.golden("ltd", "lagrange_multiplier.npz")
def test_the_multiplier_of_a_constraint(case: Case) -> None:
    """All sequences of the file: below its range and back, and above it."""
    names = {name.rpartition(".")[0] for name in case}
    assert names
    for name in sorted(names):
        of = {key: case[f"{name}.{key}"] for key in ("rec_loss", "eff_before", "loss", "raw_after")}
        config = Constraint(
            bound=float(case[f"{name}.bound"]), start=float(case[f"{name}.start_val"])
        )
        state, found = constraint.start(config), []
        penalty = jax.value_and_grad(lambda value, m, c=config: constraint.penalty(c, m, value))
        for value in of["rec_loss"]:
            before = constraint.effective(config, state["raw"])
            loss, slope = penalty(jnp.asarray(value), state)
            state = constraint.ascend(config, state, jnp.asarray(value))
            after = constraint.effective(config, state["raw"])
            found.append((before, loss, slope, state["raw"], after))
        keys = ("eff_before", "loss", "dloss_drec", "raw_after", "eff_after")
        for key, values in zip(keys, np.array(found).T, strict=True):
            wanted = case[f"{name}.{key}"]
            np.testing.assert_allclose(
                values, wanted, rtol=1e-4, atol=2e-5, err_msg=f"{name} {key}"
            )
        above = int(np.sum(of["rec_loss"] > np.float32(config.bound)))
        assert int(state["violations"]) == above
        assert int(state["steps"]) == len(of["rec_loss"])
