"""Class tokens: copies of one end of a text, pooling, and their weight in attention."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.config import Bert, ViT
from big_retrieval.models.class_tokens import pooled, tile_first, tile_last, weigh_as_one
from tests.helpers import built, drawn

IDS = jnp.asarray([[1, 7, 9, 2, 0, 0], [1, 5, 2, 0, 0, 0], [1, 7, 9, 5, 6, 2]])
MASK = IDS > 0
SIZE: dict[str, Any] = {"width": 16, "depth": 2, "heads": 2, "mlp": 24}


def test_tile_first() -> None:
    tiled = tile_first(IDS, MASK, 3)
    np.testing.assert_array_equal(tiled.ids[0], [1, 1, 1, 7, 9, 2, 0, 0])
    np.testing.assert_array_equal(tiled.mask[0], [1, 1, 1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(tiled.place[0], range(8))
    np.testing.assert_array_equal(tiled.copy[0], [0, 1, 2, -1, -1, -1, -1, -1])


def test_tile_last() -> None:
    tiled = tile_last(IDS, MASK, 3)
    np.testing.assert_array_equal(tiled.ids[1], [1, 5, 2, 2, 2, 0, 0, 0])
    np.testing.assert_array_equal(tiled.mask[1], [1, 1, 1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(tiled.place[1], [0, 1, 2, 2, 2, 3, 4, 5])
    np.testing.assert_array_equal(tiled.copy[1], [-1, -1, 0, 1, 2, -1, -1, -1])
    np.testing.assert_array_equal(tiled.ids[2], [1, 7, 9, 5, 6, 2, 2, 2])


@pytest.mark.parametrize("tile", [tile_first, tile_last])
def test_tiles_of_one_copy_change_nothing(tile: Any) -> None:
    tiled = tile(IDS, MASK, 1)
    np.testing.assert_array_equal(tiled.ids, IDS)
    np.testing.assert_array_equal(tiled.mask, MASK)
    np.testing.assert_array_equal(jnp.broadcast_to(tiled.place, IDS.shape)[0], range(6))


def test_pooled_selects_or_averages_tokens() -> None:
    x = jnp.arange(3 * 7 * 1.0).reshape(3, 7, 1)  # two class tokens
    first, last = pooled(x, tile_first(IDS, MASK, 2), "first", 2), tile_last(IDS, MASK, 2)
    np.testing.assert_array_equal(first[:, :, 0], [[0, 1], [7, 8], [14, 15]])
    np.testing.assert_array_equal(pooled(x, last, "last", 2)[:, :, 0], [[3, 4], [9, 10], [19, 20]])
    single = tile_first(IDS, MASK, 1)
    mean = pooled(x[:, :6], single, "mean", 1)[:, :, 0]
    np.testing.assert_allclose(mean, [[1.5], [8.0], [16.5]])
    assert pooled(x, single, "none", 1) is x


def test_weigh_as_one_gives_copies_the_weight_of_one() -> None:
    copy = tile_last(IDS, MASK, 3).copy
    weights = np.exp(weigh_as_one(copy, 3, causal=True)[1, 0])  # by query and key
    expected = np.ones((8, 8))
    expected[:, 2:5] = 1 / 3
    expected[2, 2:5], expected[3, 2:5] = 1, 1 / 2  # copies see only those before them
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def repeat_first(rows: jax.Array, count: int) -> jax.Array:
    return jnp.repeat(rows[:1], count, axis=0)


@pytest.mark.slow
def test_equal_image_tokens_compute_the_same_as_one() -> None:
    one = built(ViT, patch=4, **SIZE)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 8, 3)), jnp.float32)
    params = drawn(one, images)["params"]
    many = {
        **params,
        "class_embedding": repeat_first(params["class_embedding"], 5),
        "position_embedding": jnp.concatenate(
            [repeat_first(params["position_embedding"], 5), params["position_embedding"][1:]]
        ),
    }
    expected: Any = one.apply({"params": params}, images)
    for as_one in (True, False):
        tower = built(ViT, patch=4, class_tokens=5, tokens_as_one=as_one, **SIZE)
        difference = jnp.abs(tower.apply({"params": many}, images) - expected).max()
        assert (difference < 1e-5) == as_one


@pytest.mark.parametrize("pool", ["first", "last"])
@pytest.mark.parametrize("scan", [False, True])
def test_equal_text_tokens_compute_the_same_as_one(pool: str, scan: bool) -> None:
    keys: dict[str, Any] = {"pool": pool, "causal": pool == "last", "norm": "pre", "scan": scan}
    keys |= {"vocab_size": 12, "max_length": 6, **SIZE}
    one = built(Bert, **keys)
    params = drawn(one, IDS, MASK)["params"]
    table = params["position_embedding"]
    more = (
        {"position_embedding": jnp.concatenate([repeat_first(table, 4), table[1:]])}
        if pool == "first"
        else {"end_embedding": jnp.zeros((4, 16))}
    )
    expected: Any = one.apply({"params": params}, IDS, MASK)
    for as_one in (True, False):
        tower = built(Bert, class_tokens=4, tokens_as_one=as_one, **keys)
        outputs: Any = tower.apply({"params": {**params, **more}}, IDS, MASK)
        assert (jnp.abs(outputs - expected).max() < 1e-5) == as_one
