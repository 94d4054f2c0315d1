"""The losses of latent target decoding: rows that lack a value, what a decoder reads, mistakes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.batch import Batch, Reps
from big_retrieval.config import recipe
from big_retrieval.config.checks import check
from big_retrieval.losses.context import Context
from big_retrieval.losses.ltd import InputDecoder, decoder_input
from tests.helpers import tiny, user_error

ROWS = 5
TARGET = recipe.entry(configs.ArrayField(), shape=(6,), generated=True)


@pytest.mark.parametrize("distance", ["cosine", "l2"])
def test_rows_without_a_caption_or_a_target_do_not_count(distance: Any) -> None:
    """These rows have no gradient; if the output equals the target, the gradient is finite."""
    rng = np.random.default_rng(0)
    decoded, targets = jnp.asarray(rng.normal(size=(2, ROWS, 6)), jnp.float32)
    targets = targets.at[1].set(decoded[1])
    text, target, valid = (np.arange(ROWS) != missing for missing in (0, 2, 4))
    fields = {"text": {"present": text}, "target": {"values": targets, "present": target}}
    batch = Batch(fields=fields, valid=jnp.asarray(valid), document_id=jnp.arange(ROWS))
    loss, config = configs.LatentTarget(distance=distance), configs.Config()

    def value(decoded: jax.Array) -> jax.Array:
        return loss(Context(Reps(embeddings={}, extra={"main": decoded}), batch, config))[0]

    found, grad = jax.value_and_grad(value)(decoded)
    a, b = np.asarray(decoded[3], np.float64), np.asarray(targets[3], np.float64)
    far = {
        "cosine": 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b),
        "l2": np.linalg.norm(a - b),
    }[distance]
    np.testing.assert_allclose(found, far / 2, rtol=1e-5)  # rows 1 and 3, the first without any
    assert np.isfinite(grad).all()
    assert np.flatnonzero(np.any(np.abs(np.asarray(grad)) > 1e-6, axis=1)).tolist() == [3]

    costs = Reps(embeddings={}, extra={"main": jnp.arange(ROWS, dtype=jnp.float32)})
    assert configs.InputTarget()(Context(costs, batch, config))[0] == (1 + 2 + 3) / 3


def test_decoder_input_is_flat_embedding_or_mean_of_positions() -> None:
    embeddings, vectors = jnp.arange(12.0).reshape(2, 2, 3), jnp.arange(24.0).reshape(2, 3, 4)
    reps = Reps(embeddings={"text": embeddings}, vectors={"text": vectors})
    fields: Any = {"text": {"mask": np.array([[1, 1, 0], [1, 0, 0]], bool)}}
    flat = decoder_input(reps, fields, "text", pooled=False)
    np.testing.assert_array_equal(flat, embeddings.reshape(2, 6))
    means = jnp.stack([vectors[0, :2].mean(0), vectors[1, 0]])
    np.testing.assert_allclose(decoder_input(reps, fields, "text", pooled=True), means)


def test_input_decoder_ignores_padding_and_maps_other_widths() -> None:
    ids, mask = np.array([[1, 5, 2, 0], [1, 2, 0, 0]]), np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)
    embeddings = jnp.asarray(np.random.default_rng(0).normal(size=(2, 1, 3)), jnp.float32)
    module = InputDecoder(configs.InputTarget(words=4, hidden=5), 7)
    reps = Reps(embeddings={"text": embeddings})

    def fields(length: int) -> Any:
        cut = {"ids": jnp.asarray(ids[:, :length]), "mask": jnp.asarray(mask[:, :length])}
        return {"text": cut}

    params: Any = module.init(jax.random.key(0), reps, fields(4), train=True, rows=None)
    assert "first_state" in params["params"]
    long, short = (module.apply(params, reps, fields(x), train=True, rows=None) for x in (4, 3))
    np.testing.assert_allclose(long, short, rtol=1e-6)
    logits: Any = module.apply(params, reps, fields(4), method="logits")
    likely = jax.nn.log_softmax(logits)
    np.testing.assert_allclose(long, [-likely[0, 0, 5] - likely[0, 1, 2], -likely[1, 0, 2]], 1e-5)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (configs.LatentTarget(field="txt"), ".field: no tower reads 'txt'"),
        (configs.LatentTarget(target="text"), ".target: 'text' is not a target field"),
        (configs.LatentTarget(target="table"), ".target: 'table' has values of shape (2, 3)"),
        (configs.LatentTarget(hidden=0), ".hidden"),
        (configs.InputTarget(field="image"), ".field: 'image' is not a text"),
        (configs.Triplet(margin=-1.0), ".margin"),
    ],
)
def test_impossible_keys_are_rejected(loss: Any, words: str) -> None:
    table = recipe.entry(configs.ArrayField(), shape=(2, 3), generated=True)
    with user_error(f"config.losses.other{words}"):
        check(tiny(fields__target=TARGET, fields__table=table, losses__other=recipe.entry(loss)))
