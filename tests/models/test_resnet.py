"""The residual network against PyTorch (stored results of `python -m tests.interop.generate`)."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file

from big_retrieval import parallel
from big_retrieval.config import RESNET_SIZES, ResNet
from big_retrieval.interop import image_names
from big_retrieval.models.batch_norm import BatchNorm, normalise
from big_retrieval.models.resnet import ResidualNetwork
from tests.helpers import built, mesh_keys, noise, tiny
from tests.interop.folders import DATA

SMALL: dict[str, Any] = {"blocks": (2, 1), "bottleneck": True, "stem": 4}
KINDS = {"bottleneck": SMALL, "basic": {**SMALL, "bottleneck": False}}


def images(rows: int = 4, size: int = 37, dtype: Any = np.float32) -> np.ndarray:
    """[rows, size, size, 3], from -2 to 2, as in the stored results."""
    return (noise(rows, size, size, 3) / 64 - 2).astype(dtype)


def from_torch(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    tables = {"params": image_names.RESNET, "batch_stats": image_names.RESNET_STATS}
    return {
        key: traverse_util.unflatten_dict(
            {path: jnp.asarray(x) for _, path, x in table.to_jax(arrays)}, sep="/"
        )
        for key, table in tables.items()
    }


def train(tower: ResidualNetwork, variables: Any, x: Any) -> tuple[jax.Array, Any]:
    run = jax.jit(lambda v, x: tower.apply(v, x, train=True, mutable=["batch_stats"]))
    out, moved = run(variables, x)  # type: ignore
    return out, moved["batch_stats"]


def flat(tree: Any) -> dict[str, np.ndarray]:
    return {k: np.asarray(x) for k, x in traverse_util.flatten_dict(tree, sep="/").items()}


def stored(kind: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    folder = DATA / f"resnet_{kind}"
    with np.load(folder / "expected.npz") as file:
        return load_file(folder / "model.safetensors"), {key: file[key] for key in file.files}


def below(found: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {key.removeprefix(prefix): x for key, x in found.items() if key.startswith(prefix)}


def assert_stats_close(stats: Any, expected: dict[str, np.ndarray], **tolerance: float) -> None:
    stats = flat(stats)
    assert stats.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(stats[path], value, **tolerance, err_msg=path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [32, 37])
def test_evaluation_equals_torch(kind: str, size: int) -> None:
    arrays, expected = stored(kind)
    out: Any = built(ResNet, **KINDS[kind]).apply(from_torch(arrays), images(size=size))
    np.testing.assert_allclose(out[:, 0], expected[f"eval{size}"], rtol=1e-5, atol=1e-5)
    assert out.shape == (4, 1, {"bottleneck": 32, "basic": 8}[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_training_and_averages_equal_torch(kind: str) -> None:
    arrays, expected = stored(kind)
    variables, tower = from_torch(arrays), built(ResNet, **KINDS[kind])
    for step in range(2):
        out, stats = train(tower, variables, images() * (1 + step) + step)
        np.testing.assert_allclose(out[:, 0], expected[f"train{step}"], rtol=1e-5, atol=1e-5)
        variables = {**variables, "batch_stats": stats}
    moved = image_names.RESNET_STATS.to_jax(below(expected, "moved."))
    assert_stats_close(stats, {path: x for _, path, x in moved}, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["bottleneck", pytest.param("basic", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["train", pytest.param("frozen", marks=pytest.mark.slow)])
def test_gradients_equal_torch(kind: str, mode: str) -> None:
    """In float64, where correct programs differ by rounding only."""
    arrays, results = stored(kind)
    expected = {p: g for _, p, g in image_names.RESNET.to_jax(below(results, f"{mode}.grad."))}
    wide = {key: x.astype(np.float64) for key, x in arrays.items()}
    with jax.enable_x64(True):
        variables, x = from_torch(wide), images(size=21, dtype=np.float64)
        keys = {**KINDS[kind], "frozen_stats": mode == "frozen", "dtype": jnp.float64}
        tower = built(ResNet, **keys)

        def loss(params: Any, x: Any) -> jax.Array:
            trees = {**variables, "params": params}
            out, _ = tower.apply(trees, x, train=True, mutable=["batch_stats"])
            return jnp.sum(jnp.square(out))  # type: ignore

        params, pixels = jax.jit(jax.grad(loss, argnums=(0, 1)))(variables["params"], x)
    gradients = flat(params)
    assert gradients.keys() == expected.keys()
    for path, value in expected.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(gradients[path] / scale, value / scale, atol=1e-9, err_msg=path)
    expected_pixels = results[f"{mode}.pixels"]
    atol = 1e-9 * np.abs(expected_pixels).max()
    np.testing.assert_allclose(pixels, expected_pixels, rtol=1e-8, atol=atol)


@pytest.mark.parametrize("present", [None, np.array([True, False, True])])
def test_normalise_equals_automatic_differentiation(present: np.ndarray | None) -> None:

    def plainly(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        counted = x if present is None else x[present]
        mean, var = jnp.mean(counted, (0, 1, 2)), jnp.var(counted, (0, 1, 2))
        return (x - mean) / jnp.sqrt(var + 1e-5) * scale + bias

    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        inputs = [jnp.asarray(rng.normal(size=s)) for s in ((3, 4, 5, 6), (6,), (6,))]
        out, back = jax.vjp(plainly, *inputs)
        cotangent = jnp.asarray(rng.normal(size=out.shape))
        found, again = jax.vjp(lambda *a: normalise(*a, present)[0], *inputs)
        np.testing.assert_allclose(found, out, rtol=1e-12)
        for a, b in zip(again(cotangent), back(cotangent), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def start(tower: ResidualNetwork, x: Any) -> Any:
    return nn.unbox(jax.jit(tower.init)(jax.random.key(0), x))


def test_frozen_averages_are_used_and_kept() -> None:
    x = images()
    variables = start(built(ResNet, **SMALL), x)
    _, moved = train(built(ResNet, **SMALL), variables, x)
    assert all(
        not np.array_equal(a, flat(moved)[k]) for k, a in flat(variables["batch_stats"]).items()
    )
    variables["batch_stats"] = moved
    frozen = built(ResNet, **SMALL, frozen_stats=True)
    out, kept = train(frozen, variables, x)
    np.testing.assert_allclose(out, built(ResNet, **SMALL).apply(variables, x), rtol=1e-5)
    assert_stats_close(kept, flat(moved), rtol=0, atol=0)


def test_batch_norm_of_one_value() -> None:
    norm = BatchNorm(average=False)
    x = jnp.full((1, 1, 1, 3), 2.0)
    variables = norm.init(jax.random.key(0), x)
    out, moved = norm.apply(variables, x, mutable=["batch_stats"])
    np.testing.assert_array_equal(out, np.zeros((1, 1, 1, 3)))
    np.testing.assert_allclose(moved["batch_stats"]["mean"], 0.2, rtol=1e-6)
    np.testing.assert_allclose(moved["batch_stats"]["var"], 0.9, rtol=1e-6)


def test_bfloat16_keeps_wide_statistics() -> None:
    x = images()
    tower = built(ResNet, **SMALL, dtype=jnp.bfloat16)
    variables = start(tower, x)
    out, stats = train(tower, variables, x)
    wide, wide_stats = train(built(ResNet, **SMALL), variables, x)
    assert out.dtype == jnp.bfloat16
    assert {v.dtype for v in flat(stats).values()} == {np.dtype("float32")}
    np.testing.assert_allclose(out.astype(jnp.float32), wide, atol=0.1)
    assert_stats_close(stats, flat(wide_stats), rtol=1e-7, atol=0.02)


@pytest.mark.slow
def test_remat_changes_no_value() -> None:
    x = images()
    variables = start(built(ResNet, **SMALL), x)
    results = []
    for remat in ("none", "block"):
        tower = built(ResNet, **SMALL, remat=remat)

        def loss(params: Any, tower: Any = tower) -> Any:
            trees = {**variables, "params": params}
            out, moved = tower.apply(trees, x, train=True, mutable=["batch_stats"])
            return jnp.sum(jnp.square(out)), moved

        results.append(jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["params"]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *results)


@pytest.mark.parametrize(
    "shape",
    [{"data": 8}, pytest.param({"data": 2, "fsdp": 2, "tensor": 2}, marks=pytest.mark.slow)],
)
def test_statistics_cover_the_global_batch(shape: dict[str, int]) -> None:
    x = images(rows=16, size=32)
    x += np.arange(16, dtype=np.float32)[:, None, None, None]  # rows differ
    tower = built(ResNet, **SMALL)
    boxed = jax.eval_shape(tower.init, jax.random.key(0), x)
    variables = start(tower, x)
    expected, averages = train(tower, variables, x)
    mesh = parallel.make_mesh(tiny(**mesh_keys(**shape)))
    sharded = jax.device_put(variables, parallel.state_shardings(boxed, mesh))
    rows = jax.device_put(x, parallel.batch_sharding(mesh))
    with parallel.use(mesh):
        out, moved = train(tower, sharded, rows)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    assert_stats_close(moved, flat(averages), rtol=1e-5, atol=1e-5)


def test_initial_deviations() -> None:
    variables = start(built(ResNet, **{**SMALL, "stem": 32}), images())
    kernel = variables["params"]["layer2_0"]["conv2"]["kernel"]
    np.testing.assert_allclose(np.std(kernel), math.sqrt(2 / (9 * 64)), rtol=0.03)


SIZES = {  # of torchvision's models without `fc`
    18: 11_689_512 - 513_000,
    34: 21_797_672 - 513_000,
    50: 25_557_032 - 2_049_000,
    101: 44_549_160 - 2_049_000,
    152: 60_192_808 - 2_049_000,
}


@pytest.mark.parametrize("depth", SIZES)
def test_published_parameter_counts(depth: int) -> None:
    blocks, bottleneck = RESNET_SIZES[depth]
    tower = built(ResNet, blocks=blocks, bottleneck=bottleneck)
    drawn = nn.unbox(jax.eval_shape(tower.init, jax.random.key(0), jnp.zeros((1, 64, 64, 3))))
    assert sum(x.size for x in jax.tree.leaves(drawn["params"])) == SIZES[depth]
    params = traverse_util.flatten_dict(drawn["params"], sep="/")
    norms = sum(x.size for k, x in params.items() if "bn" in k)
    assert sum(x.size for x in jax.tree.leaves(drawn["batch_stats"])) == norms


def test_resnet_50_shapes() -> None:
    blocks, bottleneck = RESNET_SIZES[50]
    tower = built(ResNet, blocks=blocks, bottleneck=bottleneck)

    def run(key: jax.Array, x: jax.Array) -> Any:
        out, trees = tower.init_with_output(key, x, mutable=True)
        return out, trees["intermediates"]["layer_outputs"][-1]

    out, last = jax.eval_shape(run, jax.random.key(0), jnp.zeros((2, 224, 224, 3)))
    assert (last.shape, out.shape) == ((2, 7, 7, 2048), (2, 1, 2048))
