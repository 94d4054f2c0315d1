"""The recurrent text tower; tests/golden compares with torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.config import Gru
from big_retrieval.models.recurrent import GruLayer, RecurrentText
from tests.helpers import drawn

IDS = jnp.array([[1, 5, 6, 2, 0, 0], [1, 7, 2, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
MASK = jnp.arange(6)[None] < jnp.array([[4], [3], [0]])


@pytest.mark.parametrize("read", ["last", "mean"])
def test_padding_changes_nothing(read: str) -> None:
    module = RecurrentText(Gru(width=8, words=4, read=read), 20)  # type: ignore
    variables = drawn(module, IDS, MASK)
    run = jax.jit(module.apply)
    out = run(variables, IDS, MASK)
    np.testing.assert_array_equal(out, run(variables, jnp.where(MASK, IDS, 9), MASK))
    np.testing.assert_allclose(run(variables, IDS[:, :4], MASK[:, :4]), out, atol=1e-6)
    np.testing.assert_array_equal(out[2], 0)
    grads = jax.grad(lambda v: run(v, IDS, MASK).sum())(variables)["params"]
    table = grads["token_embedding"]
    assert not np.abs(table[0]).any()
    assert np.abs(table[jnp.array([1, 2, 5, 6, 7])]).min() > 0
    # The backward state at the last word has seen no state before it.
    assert np.abs(grads["backward"]["hidden_kernel"]).any() == (read == "mean")


def test_mean_of_both_directions() -> None:
    module = RecurrentText(Gru(width=8, words=4, read="mean"), 20)
    variables = drawn(module, IDS, MASK)
    params, layer = variables["params"], GruLayer(4)
    words = params["token_embedding"][IDS[0, :4]][None]
    ahead, last = layer.apply({"params": params["forward"]}, words)
    back, _ = layer.apply({"params": params["backward"]}, words[:, ::-1])
    mean = np.concatenate([ahead, back], axis=-1).mean(1)
    np.testing.assert_allclose(module.apply(variables, IDS, MASK)[0], mean, rtol=1e-5, atol=1e-6)
    # Cut in two, the second half continues from the state of the first.
    _, half = layer.apply({"params": params["forward"]}, words[:, :2])
    _, end = layer.apply({"params": params["forward"]}, words[:, 2:], None, half)
    np.testing.assert_allclose(end, last, rtol=1e-6, atol=1e-6)
