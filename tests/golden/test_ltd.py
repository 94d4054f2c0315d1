"""Latent target decoding: reference values of its losses and of the multiplier of a constraint."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Constraint
from big_retrieval.losses import constraint
from big_retrieval.losses.contrastive import contrastive_loss
from big_retrieval.losses.function import Context, LossFunction, Result
from big_retrieval.losses.objective import Objective
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

        embeddings = jnp.asarray(case["max.captions"]), jnp.asarray(case["max.images"])
        value, grads = jax.value_and_grad(loss, argnums=(0, 1))(*embeddings)
    np.testing.assert_allclose(value, case["max.loss"], rtol=1e-5)
    for key, grad in zip(("captions", "images"), grads, strict=True):
        np.testing.assert_allclose(grad, case[f"max.grad_{key}"], rtol=1e-5, atol=1e-6)


@pytest.mark.golden("ltd", "infonce.npz", prefixes=".")
def test_infonce(case: Case) -> None:
    with jax.enable_x64(True):

        def loss(captions: jax.Array, images: jax.Array) -> jax.Array:
            sides, scale = (captions[:, None], images[:, None]), 1 / float(case["tau"])
            return contrastive_loss(*sides, topology=InnerProduct(), logit_scale=scale)[0]

        embeddings = jnp.asarray(case["captions"]), jnp.asarray(case["images"])
        value, grads = jax.value_and_grad(loss, argnums=(0, 1))(*embeddings)
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


def decoder_params(case: Case, prefix: str = "param") -> dict[str, Any]:
    """A decoder's arrays in our layout, from those of a file, under `<prefix>.decoder.<n>`."""
    return {
        f"layer_{number}": {
            "kernel": np.asarray(case[f"{prefix}.decoder.{2 * number}.weight"], np.float64).T,
            "bias": np.asarray(case[f"{prefix}.decoder.{2 * number}.bias"], np.float64),
        }
        for number in range(3)
    }


def decode(params: Any, captions: jax.Array, size: int) -> jax.Array:
    """The example's decoder."""
    width = params["layer_0"]["bias"].shape[0]
    module = example("latent_target").Decoder("text", width, size)
    reps = Reps(embeddings={"text": captions[:, None]})
    return module.apply({"params": params}, reps, {}, train=True, rows=None)


def compare(grads: Any, wanted: Any) -> None:
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.golden("ltd", "target_decoder.npz")
def test_the_decoder_of_the_example(case: Case) -> None:
    with jax.enable_x64(True):
        targets, captions = jnp.asarray(case["targets"]), jnp.asarray(case["z_captions"])
        params = decoder_params(case)
        output = decode(params, captions, targets.shape[1])
        np.testing.assert_allclose(output, case["output"], rtol=1e-5, atol=1e-6)

        def loss(params: Any, captions: jax.Array) -> jax.Array:
            decoded = decode(params, captions, targets.shape[1])
            return jnp.mean(1 - example("latent_target").cosine(decoded, targets))

        value, grads = jax.value_and_grad(loss, argnums=(0, 1))(params, captions)
        np.testing.assert_allclose(value, case["rec_loss"], rtol=1e-5)
        compare(grads, (decoder_params(case, "grad"), case["grad_z_captions"]))


@pytest.mark.golden("ltd", "target_reconstruction.npz", prefixes=".")
def test_reconstruction(case: Case) -> None:
    with jax.enable_x64(True):
        sides = [jnp.asarray(case[f"cosine.{name}"]) for name in ("reconstructions", "targets")]
        cosine = example("latent_target").cosine
        value, grad = jax.value_and_grad(lambda a, b: jnp.mean(1 - cosine(a, b)))(*sides)
    np.testing.assert_allclose(value, case["cosine.loss"], rtol=1e-5)
    np.testing.assert_allclose(grad, case["cosine.grad_reconstructions"], rtol=1e-5, atol=1e-6)


class OfEmbeddings(LossFunction):
    """A contrastive part of the total loss: captions against images."""

    def __init__(self, triplet: bool) -> None:
        self.triplet = triplet

    def __call__(self, context: Context) -> Result:
        """InfoNCE with a temperature of 0.05, or triplets with a margin of 0.2."""
        sides = context.reps.embeddings["text"], context.reps.embeddings["image"]
        if self.triplet:
            return example("triplet").triplet_loss(*sides, 0.2, topology=InnerProduct())
        return contrastive_loss(*sides, topology=InnerProduct(), logit_scale=20.0)


MODES = ("con_infonce", "dual_infonce", "lag_infonce", "lag_triplet")


@pytest.mark.golden("ltd", "total_loss.npz")
@pytest.mark.parametrize("name", MODES)
def test_the_total_by_the_objective(case: Case, name: str) -> None:
    """A contrastive loss alone, with the decoder's by a weight, and with it as a constraint."""
    of = {key.removeprefix(f"{name}."): x for key, x in case.items() if key.startswith(f"{name}.")}
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if "bound" in of else {"rtol": 1e-5, "atol": 1e-6}
    losses: dict[str, LossFunction] = {"main": OfEmbeddings(name.endswith("triplet"))}
    constraints, multipliers = {}, {}
    if "targets" in of:
        part = example("latent_target").LatentTarget()
        losses["target"] = example("latent_target").Decoding(part, "target", of["targets"].shape[1])
    if "bound" in of:
        constraints["target"] = Constraint(bound=float(of["bound"]), start=float(of["multiplier"]))
        multipliers["target"] = constraint.start(constraints["target"])
    objective = Objective(losses, dict.fromkeys(losses, 1.0), constraints)
    with jax.enable_x64(True):
        rows = len(of["images"])
        fields: dict[str, Any] = {"text": {}, "image": {}}
        if "targets" in of:
            fields["target"] = {"values": jnp.asarray(of["targets"])}
        batch = Batch(fields=fields, valid=jnp.ones(rows, bool), document_id=jnp.arange(rows))

        def total(images: jax.Array, captions: jax.Array, params: Any) -> Any:
            embeddings, extra = {"text": captions[:, None], "image": images[:, None]}, {}
            if params is not None:
                extra["target"] = decode(params, captions, of["targets"].shape[1])
            return objective(Reps(embeddings=embeddings, extra=extra), batch, {}, 0, multipliers)

        sides = jnp.asarray(of["images"]), jnp.asarray(of["captions"])
        params = decoder_params(of) if "targets" in of else None
        run = jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)
        (value, metrics), grads = run(*sides, params)
    np.testing.assert_allclose(value, of["loss"], **tolerance)
    np.testing.assert_allclose(grads[0], of["grad_images"], **tolerance)
    np.testing.assert_allclose(grads[1], of["grad_captions"], **tolerance)
    if params is not None:
        wanted = decoder_params(of, "grad")
        for a, b in zip(jax.tree.leaves(grads[2]), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, **tolerance)
        rebuilt = of["reconstruction_loss"]
        np.testing.assert_allclose(metrics["target/loss"], rebuilt, **tolerance)
