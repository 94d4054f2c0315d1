"""Micro-batched = whole: losses, gradients, random bits; the memory of one slice."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval import parallel
from big_retrieval.compiled.program import read_program
from big_retrieval.errors import UserError
from big_retrieval.losses.objective import Objective
from big_retrieval.models.towers import make_model
from big_retrieval.train.build import BuiltModel, build_model
from big_retrieval.train.loop import train
from big_retrieval.train.microbatch import in_slices
from big_retrieval.train.step import abstract_batch, compile_step, make_loss
from tests.helpers import drawn, tiny
from tests.train.runs import ALL_AXES, assert_close_run

pytestmark = pytest.mark.usefixtures("one_model")

RANDOM = {"towers__image__dropout": 0.3, "towers__text__dropout": 0.3}


def gradient(microbatch: int | None, scan: bool, devices: int = 1, **mesh_axes: int) -> Any:
    """Loss and parameter gradients of one random batch, dropout on."""
    changes = {**RANDOM, "towers__image__scan": scan, "towers__text__scan": scan}
    config = tiny(microbatch=microbatch, **changes, **mesh_axes)
    model, objective = make_model(config, 128), Objective(config)
    params = dict(drawn(model, model.example_inputs())["params"])
    params["scalars"] = jax.tree.map(jnp.asarray, objective.scalars())
    mesh = parallel.make_mesh(config, jax.devices()[:devices])
    rng = np.random.default_rng(0)

    def draw(x: Any) -> jax.Array:
        if x.dtype == bool:
            return jax.device_put(jnp.ones(x.shape, bool), x.sharding)
        return jax.device_put(jnp.asarray(rng.integers(0, 100, x.shape), x.dtype), x.sharding)

    batch = jax.tree.map(draw, abstract_batch(config, mesh))
    loss = make_loss(model, objective, config.microbatch)
    with parallel.use(mesh):
        run = jax.jit(jax.value_and_grad(loss, has_aux=True))
        (value, _), grads = run(params, batch, jax.random.key(1))
    return jax.device_get((value, grads))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scan", "devices", "mesh_axes"),
    [
        (False, 1, {}),
        (True, 1, {}),
        (True, 4, {}),
        (True, 8, {"mesh__fsdp": 2, "mesh__tensor": 2}),
        (False, 4, {"mesh__fsdp": 4}),
    ],
)
def test_same_gradients_with_dropout(scan: bool, devices: int, mesh_axes: dict[str, int]) -> None:
    """Random bits belong to a row of the global batch, whatever slice it is in."""
    whole, sliced = gradient(None, scan), gradient(4, scan, devices, **mesh_axes)
    assert sliced[0] == pytest.approx(whole[0], rel=1e-6)
    largest = max(np.abs(a).max() for a in jax.tree.leaves(whole[1]))
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(sliced), strict=True):
        # Against the largest of all: a gradient that is 0 (of a key's bias) is rounding error.
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * largest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "changes"),
    [
        (1, {"microbatch": 4}),
        (8, {}),  # the random bits do not depend on the mesh either
        (8, {"microbatch": 8, "losses__main__exchange": "ring"}),
        (8, {"microbatch": 8, **ALL_AXES, "losses__main__exchange": "gather"}),
    ],
)
def test_sliced_run_equals_the_whole_batch(
    trained: Callable[..., Path], tmp_path: Path, devices: int, changes: dict[str, Any]
) -> None:
    train(tiny(**RANDOM, **changes), tmp_path, jax.devices()[:devices])
    assert_close_run(tmp_path, trained(tiny(**RANDOM)))


def compiled(devices: int, **changes: Any) -> tuple[BuiltModel, Any]:
    config = tiny(**changes)
    mesh = parallel.make_mesh(config, jax.devices()[:devices])
    parts = build_model(config, mesh, vocab_size=128, total_steps=10)
    batch = abstract_batch(config, mesh)
    return parts, compile_step(parts.steps[0], parts.abstract, batch, mesh)


# A model whose activations are most of its memory.
SIZE = {"width": 64, "depth": 2, "heads": 2, "mlp": 256}
WIDE = {f"towers__{t}__{k}": v for t in ("image", "text") for k, v in SIZE.items()}
WIDE |= {"batch_size": 512}


@pytest.mark.slow
def test_sliced_step_needs_the_memory_of_one_slice() -> None:
    steps = [compiled(1, microbatch=microbatch, **WIDE)[1] for microbatch in (None, 64)]
    whole, sliced = (step.memory_analysis().temp_size_in_bytes for step in steps)
    assert sliced < whole / 5


@pytest.mark.slow
def test_slices_move_no_row_to_another_device() -> None:
    """Only gradients and embeddings move."""
    step = compiled(8, microbatch=64, **WIDE)[1]
    collectives = read_program(step.as_text()).collectives
    assert {item.kind for item in collectives} <= {"all-reduce", "all-gather", "reduce-scatter"}
    assert all(item.bytes < 512 * 8 * 4 * 2 for item in collectives if item.kind == "all-gather")


def test_gradients_are_reduced_once_for_all_slices() -> None:
    mesh = parallel.make_mesh(tiny(), jax.devices()[:4])
    rows, kernel = jnp.arange(96.0).reshape(32, 3) / 96, jnp.ones((3, 5), jnp.bfloat16)

    def loss(kernel: jax.Array, rows: jax.Array, microbatch: int | None) -> jax.Array:
        encode = lambda kernel, _, x: (jnp.tanh(x @ kernel.astype(x.dtype)), None)  # noqa: E731
        return jnp.sum(in_slices(encode, kernel, None, rows, microbatch, has_common=False)[0] ** 2)

    with parallel.use(mesh):
        placed = jax.device_put(rows, parallel.batch_sharding(mesh))
        run = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2).lower(kernel, placed, 8).compile()
        got = run(kernel, placed)
    for a, b in zip(got, jax.grad(loss, (0, 1))(kernel, rows, None), strict=True):
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=2**-7)
    found = read_program(run.as_text() or "").collectives
    assert [(item.kind, item.bytes, item.trips) for item in found] == [("all-reduce", 15 * 4, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", [1, 2])
def test_gradients_cross_the_data_axis_once_per_step(fsdp: int) -> None:
    keys = {"losses__main__exchange": "gather", "mesh__fsdp": fsdp}
    parts, step = compiled(4, batch_size=32, microbatch=8, **keys)
    found = read_program(step.as_text() or "").collectives
    assert all(item.group == fsdp for item in found if item.trips > 1)
    assert fsdp > 1 or not any(item.trips > 1 for item in found)
    reduced = sum(item.bytes for item in found if item.kind == "all-reduce" and item.trips == 1)
    shards = [x.sharding.shard_shape(x.shape) for x in jax.tree.leaves(parts.abstract.params)]
    size = 4 * sum(math.prod(shape) for shape in shards)  # bytes in float32
    assert size <= reduced < 1.2 * size


def test_slices_reject_arrays_that_belong_to_no_row() -> None:
    def run(x: jax.Array) -> Any:
        return in_slices(lambda p, s, x: (x, p), jnp.ones(2), None, x, 4, has_common=False)

    mesh = parallel.make_mesh(tiny(), jax.devices()[:2])
    with parallel.use(mesh), pytest.raises(ValueError, match="has_common"):
        jax.eval_shape(run, jnp.zeros((8, 2)))


def test_slices_must_divide_the_batch() -> None:
    rows = jnp.zeros((12, 2))
    with pytest.raises(UserError, match=r"config\.microbatch 5 .*12"):
        in_slices(lambda p, s, x: x, None, None, rows, 5)
