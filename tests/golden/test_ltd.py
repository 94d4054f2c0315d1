"""Latent target decoding: reference values of its losses and of the multiplier of a constraint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import (
    Config,
    Constraint,
    InputTarget,
    LatentTarget,
    Loss,
    TextField,
    Tokenizer,
    Triplet,
)
from big_retrieval.losses import constraint
from big_retrieval.losses.context import Context, Result
from big_retrieval.losses.contrastive import contrastive_loss
from big_retrieval.losses.ltd import TargetDecoder
from big_retrieval.losses.objective import Objective
from big_retrieval.losses.pairwise import PairBatch
from big_retrieval.losses.triplet import triplet_loss
from big_retrieval.similarity import Inner
from tests.golden.test_ltd_models import gru

Case = Mapping[str, np.ndarray]


Distance = Literal["cosine", "l2"]


@pytest.mark.golden("ltd", "triplet.npz", prefixes=".")
@pytest.mark.parametrize(("name", "which"), [("max", "hardest"), ("sum", "all")])
def test_triplets(case: Case, name: str, which: Literal["hardest", "all"]) -> None:
    """The sum over the batch and both directions."""
    with jax.enable_x64(True):

        def loss(captions: jax.Array, images: jax.Array) -> jax.Array:
            part = Triplet(margin=float(case[f"{name}.margin"]), negatives=which)
            return triplet_loss(part, PairBatch(captions[:, None], images[:, None], Inner()))[0]

        embeddings = jnp.asarray(case[f"{name}.captions"]), jnp.asarray(case[f"{name}.images"])
        value, grads = jax.value_and_grad(loss, argnums=(0, 1))(*embeddings)
    np.testing.assert_allclose(value, case[f"{name}.loss"], rtol=1e-5)
    for key, grad in zip(("captions", "images"), grads, strict=True):
        np.testing.assert_allclose(grad, case[f"{name}.grad_{key}"], rtol=1e-5, atol=1e-6)


@pytest.mark.golden("ltd", "infonce.npz", prefixes=".")
def test_infonce(case: Case) -> None:
    with jax.enable_x64(True):

        def loss(captions: jax.Array, images: jax.Array) -> jax.Array:
            sides, scale = (captions[:, None], images[:, None]), 1 / float(case["tau"])
            return contrastive_loss(PairBatch(*sides, Inner(), scale))[0]

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
        given = case[f"{name}.rec_loss"]
        config = Constraint(
            bound=float(case[f"{name}.bound"]), start=float(case[f"{name}.start_val"])
        )
        state, found = constraint.start(config), []
        penalty = jax.value_and_grad(lambda value, m, c=config: constraint.penalty(c, m, value))
        for value in given:
            before = constraint.effective(config, state["raw"])
            loss, slope = penalty(jnp.asarray(value), state)
            gradient = constraint.slope(config, jnp.asarray(value))
            state = constraint.ascend(config, state, jnp.asarray(value))
            after = constraint.effective(config, state["raw"])
            found.append((before, loss, slope, gradient, state["raw"], after))
        keys = ("eff_before", "loss", "dloss_drec", "dloss_draw", "raw_after", "eff_after")
        for key, values in zip(keys, np.array(found).T, strict=True):
            wanted = case[f"{name}.{key}"]
            np.testing.assert_allclose(
                values, wanted, rtol=1e-4, atol=2e-5, err_msg=f"{name} {key}"
            )
        above = int(np.sum(given > np.float32(config.bound)))
        assert int(state["violations"]) == above
        assert int(state["steps"]) == len(given)


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
    """Our decoder."""
    module = TargetDecoder(LatentTarget(hidden=params["layer_0"]["bias"].shape[0]), size)
    reps = Reps(embeddings={"text": captions[:, None]})
    return module.apply({"params": params}, reps, {}, train=True, rows=None)


def compare(grads: Any, wanted: Any) -> None:
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.golden("ltd", "target_decoder.npz")
def test_the_target_decoder(case: Case) -> None:
    with jax.enable_x64(True):
        targets, captions = jnp.asarray(case["targets"]), jnp.asarray(case["z_captions"])
        params = decoder_params(case)
        output = decode(params, captions, targets.shape[1])
        np.testing.assert_allclose(output, case["output"], rtol=1e-5, atol=1e-6)

        def loss(params: Any, captions: jax.Array) -> jax.Array:
            return reconstruction(decode(params, captions, targets.shape[1]), targets, "cosine")

        value, grads = jax.value_and_grad(loss, argnums=(0, 1))(params, captions)
        np.testing.assert_allclose(value, case["rec_loss"], rtol=1e-5)
        compare(grads, (decoder_params(case, "grad"), case["grad_z_captions"]))


def reconstruction(decoded: jax.Array, targets: jax.Array, distance: Distance) -> jax.Array:
    """The loss of what a decoder has made, with padding at the end of the batch."""
    rows, size = targets.shape
    loss = LatentTarget(distance=distance)
    padded = [jnp.concatenate([x, jnp.ones((1, size))]) for x in (decoded, targets)]
    fields = {"text": {}, "target": {"values": padded[1]}}
    valid = jnp.arange(rows + 1) < rows
    batch = Batch(fields=fields, valid=valid, document_id=jnp.arange(rows + 1))
    return loss(Context(Reps(embeddings={}, extra={"main": padded[0]}), batch, Config()))[0]


@pytest.mark.golden("ltd", "target_reconstruction.npz", prefixes=".")
@pytest.mark.parametrize("distance", ["cosine", "l2"])
def test_reconstruction(case: Case, distance: Distance) -> None:
    with jax.enable_x64(True):
        names = (f"{distance}.reconstructions", f"{distance}.targets")
        sides = [jnp.asarray(case[name]) for name in names]
        value, grad = jax.value_and_grad(reconstruction)(*sides, distance)
    np.testing.assert_allclose(value, case[f"{distance}.loss"], rtol=1e-5)
    wanted = case[f"{distance}.grad_reconstructions"]
    np.testing.assert_allclose(grad, wanted, rtol=1e-5, atol=1e-6)


def input_decoder_params(case: Case) -> dict[str, Any]:
    """An input decoder's arrays in our layout, from PyTorch's."""
    last = {key: case[f"param.token_prediction_layer.{key}"] for key in ("weight", "bias")}
    predict = {"kernel": last["weight"].T, "bias": last["bias"]}
    return {"words": case["param.embed.weight"], "gru": gru(case, "param.gru"), "predict": predict}


FORMS = {"time": "loss_as_released", "vocabulary": "loss_vocab_softmax"}


@pytest.mark.golden("ltd", "itd_input_decoder.npz")
@pytest.mark.parametrize("over", FORMS)
def test_the_input_decoder(case: Case, over: Literal["time", "vocabulary"]) -> None:
    """With the softmax over time also its gradient, which the authors' code gives."""
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), input_decoder_params(case))
        rows, vocabulary = len(case["tokens"]), len(case["param.token_prediction_layer.bias"])
        loss = InputTarget(words=case["param.embed.weight"].shape[1], softmax_over=over)
        tokenizer = Tokenizer(vocab_size=vocabulary)
        config = Config(fields={"text": TextField()}, tokenizer=tokenizer)
        ids, mask = jnp.asarray(case["tokens"]), jnp.asarray(case["mask"], bool)
        fields = {"text": {"ids": ids, "mask": mask}}
        batch = Batch(fields=fields, valid=jnp.ones(rows, bool), document_id=jnp.arange(rows))
        module: Any = loss.module(config)

        def value(captions: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
            reps, how = Reps(embeddings={"text": captions[:, None]}), {"params": params}
            logits = module.apply(how, reps, fields, method="logits")
            made = module.apply(how, reps, fields, train=True, rows=None)
            reps = reps.replace(extra={"main": made})  # type: ignore
            return loss(Context(reps, batch, config))[0], logits

        run = jax.value_and_grad(value, has_aux=True)
        (found, logits), grad = run(jnp.asarray(case["z_captions"]), params)
    np.testing.assert_allclose(found, case[FORMS[over]], rtol=1e-5)
    np.testing.assert_allclose(logits, case["logits"], rtol=1e-5, atol=1e-6)
    if over == "time":
        wanted = case["grad_z_captions_as_released"]
        np.testing.assert_allclose(grad, wanted, rtol=1e-5, atol=1e-6)


@dataclass(frozen=True)
class OfEmbeddings(Loss):
    """A contrastive part of the total loss: captions against images."""

    triplet: bool = False

    def __call__(self, context: Context) -> Result:
        """InfoNCE with a temperature of 0.05, or triplets with a margin of 0.2."""
        sides = context.reps.embeddings["text"], context.reps.embeddings["image"]
        if self.triplet:
            return triplet_loss(Triplet(margin=0.2), PairBatch(*sides, Inner()))
        return contrastive_loss(PairBatch(*sides, Inner(), 20.0))


MODES = ("con_infonce", "dual_infonce", "lag_infonce", "lag_triplet")


@pytest.mark.golden("ltd", "total_loss.npz")
@pytest.mark.parametrize("name", MODES)
def test_the_total_by_the_objective(case: Case, name: str) -> None:
    """A contrastive loss alone, with the decoder's by a weight, and with it as a constraint."""
    of = {key.removeprefix(f"{name}."): x for key, x in case.items() if key.startswith(f"{name}.")}
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if "bound" in of else {"rtol": 1e-5, "atol": 1e-6}
    losses: dict[str, Loss] = {"main": OfEmbeddings(triplet=name.endswith("triplet"))}
    limits = Constraint()
    if "bound" in of:
        limits = Constraint(bound=float(of["bound"]), start=float(of["multiplier"]))
    if "targets" in of:
        losses["target"] = LatentTarget(constraint=limits)
    objective = Objective(Config(losses=losses))
    multipliers = objective.multipliers()
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
        (value, (metrics, _)), grads = run(*sides, params)
    np.testing.assert_allclose(value, of["loss"], **tolerance)
    np.testing.assert_allclose(grads[0], of["grad_images"], **tolerance)
    np.testing.assert_allclose(grads[1], of["grad_captions"], **tolerance)
    if params is not None:
        wanted = decoder_params(of, "grad")
        for a, b in zip(jax.tree.leaves(grads[2]), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, **tolerance)
        rebuilt = of["reconstruction_loss"]
        np.testing.assert_allclose(metrics["target/loss"], rebuilt, **tolerance)
        np.testing.assert_allclose(metrics["main/loss"], of["contrastive_loss"], **tolerance)
    if "bound" in of:
        by_lambda = constraint.slope(limits, np.asarray(metrics["target/loss"]))
        np.testing.assert_allclose(by_lambda, of["grad_multiplier"][0], **tolerance)
