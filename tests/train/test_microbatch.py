"""Micro-batched = whole: losses, gradients, random bits; the memory of one slice."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval import parallel
from big_retrieval.errors import UserError
from big_retrieval.losses.objective import make_objective
from big_retrieval.models.towers import make_model
from big_retrieval.plan.program import read_program
from big_retrieval.train.build import build_model
from big_retrieval.train.loop import train
from big_retrieval.train.microbatch import in_slices
from big_retrieval.train.step import abstract_batch, compile_step, make_loss
from tests.helpers import drawn, losses, tiny

pytestmark = pytest.mark.usefixtures("one_model")

RANDOM = {"towers__image__dropout": 0.3, "towers__text__dropout": 0.3}


def gradient(microbatch: int | None, scan: bool) -> Any:
    """Loss and parameter gradients of one random batch, dropout on."""
    changes = {**RANDOM, "towers__image__scan": scan, "towers__text__scan": scan}
    config = tiny(microbatch=microbatch, **changes)
    model, objective = make_model(config, 128), make_objective(config)
    params = dict(drawn(model, model.example_inputs())["params"])
    params["scalars"] = jax.tree.map(jnp.asarray, objective.scalars())
    mesh = parallel.make_mesh(config, jax.devices()[:1])
    rng = np.random.default_rng(0)

    def draw(x: jax.ShapeDtypeStruct) -> jax.Array:
        if x.dtype == bool:
            return jnp.ones(x.shape, bool)
        return jnp.asarray(rng.integers(0, 100, x.shape), x.dtype)

    batch = jax.tree.map(draw, abstract_batch(config, mesh))
    loss = make_loss(model, objective, config.microbatch)
    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, _), grads = run(params, batch, jax.random.key(1))
    return jax.device_get((value, grads))


@pytest.mark.slow
@pytest.mark.parametrize("scan", [False, True])
def test_same_gradients_with_dropout(scan: bool) -> None:
    """Random bits belong to a row of the global batch, whatever slice it is in."""
    whole, sliced = gradient(None, scan), gradient(4, scan)
    assert sliced[0] == pytest.approx(whole[0], rel=1e-6)
    largest = max(np.abs(a).max() for a in jax.tree.leaves(whole[1]))
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(sliced), strict=True):
        # Against the largest of all: a gradient that is 0 (of a key's bias) is rounding error.
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * largest)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("whole")
    train(tiny(**RANDOM), workdir, jax.devices()[:1])
    return workdir


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "changes"),
    [
        (1, {"microbatch": 4}),
        (8, {}),  # the random bits do not depend on the mesh either
        (8, {"microbatch": 8, "losses__main__exchange": "ring"}),
        (
            8,
            {
                "microbatch": 8,
                "mesh__fsdp": 2,
                "mesh__tensor": 2,
                "losses__main__exchange": "gather",
            },
        ),
    ],
)
def test_same_run(whole: Path, tmp_path: Path, devices: int, changes: dict[str, Any]) -> None:
    train(tiny(**RANDOM, **changes), tmp_path, jax.devices()[:devices])
    one, many = losses(whole), losses(tmp_path)
    assert one.keys() == many.keys()
    np.testing.assert_allclose(list(many.values()), list(one.values()), rtol=1e-5)


def compiled(microbatch: int | None, devices: int) -> Any:
    """The step of a model whose activations are most of its memory."""
    size = {"width": 64, "depth": 2, "heads": 2, "mlp": 256}
    towers = {f"towers__{t}__{k}": v for t in ("image", "text") for k, v in size.items()}
    config = tiny(batch_size=512, microbatch=microbatch, **towers)
    mesh = parallel.make_mesh(config, jax.devices()[:devices])
    parts = build_model(config, mesh, vocab_size=128, total_steps=10)
    return compile_step(parts.step, parts.abstract, abstract_batch(config, mesh), mesh)


@pytest.mark.slow
def test_memory_of_one_slice() -> None:
    whole, sliced = (compiled(m, 1).memory_analysis().temp_size_in_bytes for m in (None, 64))
    assert sliced < whole / 5


@pytest.mark.slow
def test_no_row_changes_its_place() -> None:
    """Slices take their rows from each device: what travels are gradients and embeddings only."""
    found = read_program(compiled(64, 8).as_text()).collectives
    assert {item.kind for item in found} <= {"all-reduce", "all-gather", "reduce-scatter"}
    images = 64 // 8 * 32 * 32 * 3  # bytes of a slice's pixels on one device
    assert all(item.bytes < 512 * 8 * 4 * 2 for item in found if item.kind == "all-gather"), images


def test_slices_that_do_not_divide() -> None:
    rows = jnp.zeros((12, 2))
    with pytest.raises(UserError, match=r"microbatch 5.*12"):
        in_slices(lambda p, x: x, None, rows, 5)
