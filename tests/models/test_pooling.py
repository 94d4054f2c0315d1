"""Pooled logits against float64: blocks, tails, masks, ties, types."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.errors import UserError
from big_retrieval.models import pooling, pooling_rules
from big_retrieval.models.lexical import elu1p
from big_retrieval.models.pooling import block_size, max_pool, mean_pool
from big_retrieval.models.pooling_rules import Max, PoolingInputs
from tests.arrays import assert_trees_close
from tests.models.pooling_cases import (
    by_definition,
    columns_by_definition,
    draw,
    maximum,
    pool_with_gradients,
)


@pytest.mark.parametrize("backward", ["sparse", "dense"])
@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((4, 7, 6, 37), 8),  # a tail of 5
        ((4, 7, 6, 32), 8),
        ((4, 7, 6, 37), 37),
        ((4, 7, 6, 37), None),  # larger than V
        ((1, 7, 6, 37), 36),
        ((3, 1, 6, 5), 1),
        ((2, 300, 3, 9), 4),  # positions beyond uint8
    ],
)
def test_max_pool_equals_definition(shape: Any, block: int | None, backward: Any) -> None:
    x = draw(*shape)
    assert_trees_close(
        pool_with_gradients(x, maximum(block=block, backward=backward)), by_definition(x)
    )


@pytest.mark.parametrize("top_k", [None, 1, 3, 100])
def test_mean_pool_equals_definition(top_k: int | None) -> None:
    x, pool = draw(), partial(mean_pool, activation=elu1p, top_k=top_k, block=8)
    assert_trees_close(pool_with_gradients(x, pool), by_definition(x, "mean", top_k))


@pytest.mark.parametrize(
    ("columns", "backward"),
    [(range(3, 33), "sparse"), (tuple(range(4, 17)), "dense"), (range(30, 2, -3), "sparse"),
     ((5, 2, 36), "dense")],
)  # fmt: skip
def test_max_pool_of_columns(columns: Any, backward: Any) -> None:
    x, expected = columns_by_definition(draw(), columns)
    pool = maximum(columns=columns, block=4, backward=backward)
    assert_trees_close(pool_with_gradients(x, pool), expected)


def test_positions_and_their_type() -> None:
    for length, dtype in ((1, "uint8"), (256, "uint8"), (257, "uint16")):
        x = draw(3, length, 4, 11)
        logits = np.einsum("bld,vd->blv", x["hidden"], x["kernel"])
        expected = np.argmax(np.where(x["mask"][:, :, None], logits, -np.inf), axis=1)
        positions = jax.jit(max_pool)(x["hidden"], x["kernel"], None, x["mask"])[1]
        assert positions.dtype == dtype
        np.testing.assert_array_equal(positions, expected)


def test_joint_reduction_equals_two() -> None:
    rng = np.random.default_rng(0)
    # Products of few different numbers, so that many logits are equal.
    hidden, kernel = (jnp.asarray(rng.integers(-2, 3, shape)) for shape in ((5, 9, 3), (40, 3)))
    mask = jnp.arange(9) < jnp.asarray([[9], [4], [1], [0], [8]])
    arrays = (hidden.astype(jnp.float32), kernel.astype(jnp.float32), jnp.ones(40), mask)
    block = PoolingInputs(*arrays)
    two, one = (jax.jit(Max(True, joint).forward)(block) for joint in (False, True))
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1][mask.any(1)], two[1][mask.any(1)])
    assert one[1].dtype == two[1].dtype


def test_tpus_reduce_jointly(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw()
    expected = pool_with_gradients(x, maximum(backward="dense"))
    monkeypatch.setattr(pooling, "traced_platform", lambda: "tpu")
    monkeypatch.setattr(pooling_rules, "_largest", None)
    for a, b in zip(pool_with_gradients(x, maximum()), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("backward", ["sparse", "dense"])
def test_first_of_equal_maxima_gets_the_gradient(backward: Any) -> None:
    hidden = jnp.ones((1, 4, 2)).at[0, 0].set(0.0)

    def total(hidden: jax.Array) -> jax.Array:
        return jnp.sum(max_pool(hidden, jnp.ones((3, 2)), backward=backward)[0])

    np.testing.assert_array_equal(jax.jit(jax.grad(total))(hidden)[0, :, 0], [0, 3, 0, 0])


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_row_without_any_position(pooling: str) -> None:
    x = draw()
    x["mask"][1] = False
    pool = maximum() if pooling == "max" else partial(mean_pool, activation=elu1p)
    pooled, d_hidden, d_kernel, d_bias = pool_with_gradients(x, pool)
    np.testing.assert_array_equal(pooled[1], np.float32(-1e30 if pooling == "max" else 0.0))
    np.testing.assert_array_equal(d_hidden[1], 0)
    others = {**x, **{name: x[name][[0, 2, 3]] for name in ("hidden", "mask", "g")}}
    assert_trees_close((d_kernel, d_bias), pool_with_gradients(others, pool)[2:])


def test_no_mask_is_a_full_mask() -> None:
    x = draw()
    x["mask"][:] = True
    for pool in (maximum(), partial(mean_pool, activation=elu1p)):
        bare = pool_with_gradients(x, lambda h, k, b, _, pool=pool: pool(h, k, b, None))
        assert_trees_close(pool_with_gradients(x, pool), bare)


def test_half_precision_accumulates_wide() -> None:
    x = draw(2, 5, 512, 16)
    narrow = {name: np.asarray(jnp.asarray(x[name], jnp.bfloat16), np.float64) for name in x}
    narrow["mask"] = x["mask"]
    expected = by_definition(narrow)
    for backward in ("sparse", "dense"):
        got = pool_with_gradients(narrow, maximum(dtype=jnp.bfloat16, backward=backward))
        assert all(x.dtype == jnp.float32 for x in got)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-4)
        for a, b in zip(got[1:], expected[1:], strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=0.02 * np.max(np.abs(b)))


def test_max_pool_under_jit_checkpoint_and_map() -> None:
    x = draw()
    pool = jax.checkpoint(maximum(block=8))

    def sliced(hidden: Any, kernel: Any, bias: Any, mask: Any) -> jax.Array:
        def one(part: Any) -> jax.Array:
            return pool(part[0], kernel, bias, part[1])

        halves = jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), (hidden, mask))
        return jax.lax.map(one, halves).reshape(4, -1)

    assert_trees_close(pool_with_gradients(x, jax.jit(sliced)), by_definition(x))


def test_block_size_fills_a_tile() -> None:
    assert block_size(64 * 77, "cpu") == 512
    assert block_size(4096 * 77, "gpu") == 1024
    assert block_size(2**30, "tpu", "mean") == 128
    assert block_size(2**30, "tpu") == 1024
    assert block_size(1, "gpu") == 4096


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": np.zeros((4, 7, 5))}, r"The kernel of a pooling has the shape \(37, 6\)"),
        ({"mask": np.ones((4, 6))}, r"The mask of a pooling .* \(4, 6\).* need \(4, 7\)"),
        ({"bias": np.zeros(36)}, r"The bias of a pooling has .* \(36,\).* 37 columns need \(37,\)"),
        ({"columns": range(30, 40)}, "rows of the kernel, 0 to 36"),
        ({"columns": ()}, "rows of the kernel"),
    ],
)
def test_max_pool_rejects_shapes(change: dict[str, Any], message: str) -> None:
    x = {**draw(), **change}
    del x["g"]
    with pytest.raises(UserError, match=message):
        max_pool(**x)
