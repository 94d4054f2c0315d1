"""The text tower."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.config import Bert
from big_retrieval.errors import UserError
from big_retrieval.models.bert import TextTransformer
from tests.helpers import built, drawn

SMALL: dict[str, Any] = {"vocab_size": 30, "width": 16, "depth": 2, "heads": 2, "mlp": 24}
IDS = np.array([[1, 7, 9, 2, 0, 0], [1, 5, 2, 0, 0, 0]])
MASK = IDS > 0


def tower_and_variables(**changes: Any) -> tuple[TextTransformer, Any]:
    tower = built(Bert, **{**SMALL, **changes})
    return tower, drawn(tower, IDS, MASK)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_shapes_and_names(norm: str) -> None:
    tower, variables = tower_and_variables(class_tokens=3, norm=norm)
    params = variables["params"]
    assert params["position_embedding"].shape == (6 + 2, 16)
    assert params["token_embedding"].shape == (30, 16)
    assert ("ln_embedding" in params) == (norm == "post")
    assert "ln_final" in params
    y = np.asarray(jax.jit(tower.apply)(variables, IDS, MASK))
    assert y.shape == (2, 3, 16)
    assert np.max(np.abs(y[:, 0] - y[:, 1])) > 1e-3  # positions alone tell the tokens apart


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_padding_changes_nothing(norm: str) -> None:
    tower, variables = tower_and_variables(class_tokens=2, norm=norm)
    run = jax.jit(tower.apply)
    y = run(variables, IDS, MASK)
    other = np.where(MASK, IDS, 13)
    np.testing.assert_array_equal(run(variables, other, MASK.astype(np.int32)), y)
    np.testing.assert_allclose(run(variables, IDS[:, :4], MASK[:, :4]), y, atol=1e-5)
    assert not np.allclose(run(variables, other, np.ones_like(MASK)), y, atol=1e-3)
    words = np.where(IDS == 7, 8, IDS)
    assert not np.allclose(run(variables, words, MASK)[0], y[0], atol=1e-4)


def test_bert_rejects_longer_texts() -> None:
    tower, variables = tower_and_variables(class_tokens=2)
    long = np.ones((2, 7), np.int32)
    with pytest.raises(UserError, match=r"7 tokens.*at most 6"):
        tower.apply(variables, long, long)
    roomy, variables = tower_and_variables(class_tokens=2, max_length=9)
    assert variables["params"]["position_embedding"].shape == (10, 16)
    assert roomy.apply(variables, long, long).shape == (2, 2, 16)
    with pytest.raises(UserError, match=r"6 tokens.*at most 5"):
        tower_and_variables(max_length=5)


def test_id_outside_the_vocabulary_gives_nan() -> None:
    tower, variables = tower_and_variables()
    assert np.all(np.isnan(jax.jit(tower.apply)(variables, np.where(IDS == 7, 30, IDS), MASK)[0]))


def test_dropout_and_half_precision() -> None:
    tower, variables = tower_and_variables(dropout=0.3)
    still = jax.jit(tower.apply)(variables, IDS, MASK)
    rngs = {"dropout": jax.random.key(1)}
    training = jax.jit(partial(tower.apply, train=True))
    assert not np.allclose(training(variables, IDS, MASK, rngs=rngs), still)
    half = jax.jit(built(Bert, **SMALL, dtype=jnp.bfloat16).apply)(variables, IDS, MASK)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(half), still, atol=0.1)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_depends_on_the_row_index(norm: str) -> None:
    tower, variables = tower_and_variables(dropout=0.3, norm=norm, depth=1)
    training = jax.jit(partial(tower.apply, train=True, rngs={"dropout": jax.random.key(1)}))
    whole = training(variables, IDS, MASK)
    part = training(variables, IDS[1:], MASK[1:], rows=jnp.array([1]))
    np.testing.assert_allclose(part, whole[1:], atol=1e-6)
    moved = training(variables, IDS[1:], MASK[1:], rows=jnp.array([0]))
    assert not np.allclose(moved, whole[1:], atol=1e-2)


@pytest.mark.parametrize(("std", "words", "positions"), [(None, 0.02, 0.01), (0.5, 0.5, 0.5)])
def test_initial_deviations(std: float | None, words: float, positions: float) -> None:
    sizes = {**SMALL, "width": 64, "vocab_size": 200, "max_length": 200, "embedding_std": std}
    params = nn.unbox(jax.jit(built(Bert, **sizes).init)(jax.random.key(0), IDS, MASK))["params"]
    np.testing.assert_allclose(np.std(params["token_embedding"]), words, rtol=0.05)
    np.testing.assert_allclose(np.std(params["position_embedding"]), positions, rtol=0.05)
