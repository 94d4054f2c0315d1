"""The residual network against plain PyTorch: both modes, averages, gradients; sizes, devices.

What PyTorch computed is in tests/interop/data, made by `python -m tests.interop.generate`.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from jax.sharding import PartitionSpec as P
from safetensors.numpy import load_file

from big_retrieval import parallel
from big_retrieval.config import RESNET_SIZES, ResNet
from big_retrieval.interop import image_names
from big_retrieval.models.batch_norm import BatchNorm, normalise
from big_retrieval.models.resnet import ResidualNetwork
from tests.helpers import built, mesh_keys, noise, tiny
from tests.interop.test_towers import DATA

SMALL: dict[str, Any] = {"blocks": (2, 1), "bottleneck": True, "stem": 4}
KINDS = {"bottleneck": SMALL, "basic": {**SMALL, "bottleneck": False}}


def images(rows: int = 4, size: int = 37, dtype: Any = np.float32) -> np.ndarray:
    """[rows, size, size, 3], from -2 to 2: those of the stored results."""
    return (noise(rows, size, size, 3) / 64 - 2).astype(dtype)


def ours(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The collections of a network of torch's."""
    tables = {"params": image_names.RESNET, "batch_stats": image_names.RESNET_STATS}
    return {
        key: traverse_util.unflatten_dict(
            {path: jnp.asarray(x) for _, path, x in table.to_ours(arrays)}, sep="/"
        )
        for key, table in tables.items()
    }


def train(tower: ResidualNetwork, variables: Any, x: Any) -> tuple[jax.Array, Any]:
    """A pass in training mode: output and moved averages."""
    run = jax.jit(lambda v, x: tower.apply(v, x, train=True, mutable=["batch_stats"]))
    out, moved = run(variables, x)  # type: ignore
    return out, moved["batch_stats"]


def flat(tree: Any) -> dict[str, np.ndarray]:
    return {k: np.asarray(x) for k, x in traverse_util.flatten_dict(tree, sep="/").items()}


def stored(kind: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A network of torch's, and what it computed."""
    folder = DATA / f"resnet_{kind}"
    with np.load(folder / "expected.npz") as file:
        return load_file(folder / "model.safetensors"), {key: file[key] for key in file.files}


def below(found: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {key.removeprefix(prefix): x for key, x in found.items() if key.startswith(prefix)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [32, 37])
def test_evaluation(kind: str, size: int) -> None:
    arrays, expected = stored(kind)
    found = built(ResNet, **KINDS[kind]).apply(ours(arrays), images(size=size))
    np.testing.assert_allclose(found[:, 0], expected[f"eval{size}"], rtol=1e-5, atol=1e-5)  # type: ignore
    assert found.shape == (4, 1, {"bottleneck": 32, "basic": 8}[kind])  # type: ignore


@pytest.mark.parametrize("kind", KINDS)
def test_training_and_its_averages(kind: str) -> None:
    arrays, expected = stored(kind)
    variables, tower = ours(arrays), built(ResNet, **KINDS[kind])
    for step in range(2):
        found, stats = train(tower, variables, images() * (1 + step) + step)
        np.testing.assert_allclose(found[:, 0], expected[f"train{step}"], rtol=1e-5, atol=1e-5)
        variables = {**variables, "batch_stats": stats}
    moved = image_names.RESNET_STATS.to_ours(below(expected, "moved."))
    wanted = {path: x for _, path, x in moved}
    stats = flat(variables["batch_stats"])
    assert stats.keys() == wanted.keys()
    for path, value in stats.items():
        np.testing.assert_allclose(value, wanted[path], rtol=1e-5, atol=1e-5, err_msg=path)


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind == "bottleneck" else pytest.param(kind, marks=pytest.mark.slow)
        for kind in KINDS
    ],
)
@pytest.mark.parametrize("mode", ["train", pytest.param("frozen", marks=pytest.mark.slow)])
def test_gradients(kind: str, mode: str) -> None:
    """In float64, where two right programs differ by rounding alone."""
    arrays, theirs = stored(kind)
    expected = {p: g for _, p, g in image_names.RESNET.to_ours(below(theirs, f"{mode}.grad."))}
    wide = {key: x.astype(np.float64) for key, x in arrays.items()}
    with jax.enable_x64(True):
        variables, x = ours(wide), images(size=21, dtype=np.float64)
        tower = built(
            ResNet,
            **KINDS[kind],
            frozen_stats=mode == "frozen",
            dtype=jnp.float64,
        )

        def loss(params: Any, x: Any) -> jax.Array:
            trees = {**variables, "params": params}
            out, _ = tower.apply(trees, x, train=True, mutable=["batch_stats"])
            return jnp.sum(jnp.square(out))  # type: ignore

        params, pixels = jax.jit(jax.grad(loss, argnums=(0, 1)))(variables["params"], x)
    found = flat(params)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(found[path] / scale, value / scale, atol=1e-9, err_msg=path)
    wanted = theirs[f"{mode}.pixels"]
    np.testing.assert_allclose(pixels, wanted, rtol=1e-8, atol=1e-9 * np.abs(wanted).max())


@pytest.mark.parametrize("present", [None, np.array([True, False, True])])
def test_normalise_against_its_definition(present: np.ndarray | None) -> None:
    """In float64; the derivative is that of the plain form by automatic differentiation."""

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


def test_frozen_averages_stay_and_serve() -> None:
    x = images()
    variables = start(built(ResNet, **SMALL), x)
    _, moved = train(built(ResNet, **SMALL), variables, x)
    assert all(
        not np.array_equal(a, flat(moved)[k]) for k, a in flat(variables["batch_stats"]).items()
    )
    variables["batch_stats"] = moved
    frozen = built(ResNet, **SMALL, frozen_stats=True)
    out, still = train(frozen, variables, x)
    np.testing.assert_allclose(out, built(ResNet, **SMALL).apply(variables, x), rtol=1e-5)
    for path, value in flat(still).items():
        np.testing.assert_array_equal(value, flat(moved)[path])


def test_one_value_has_no_deviation() -> None:
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
    for path, value in flat(wide_stats).items():
        np.testing.assert_allclose(flat(stats)[path], value, atol=0.02, err_msg=path)


@pytest.mark.slow
def test_remat_changes_no_number() -> None:
    x = images()
    variables = start(built(ResNet, **SMALL), x)
    found = []
    for remat in ("none", "block"):
        tower = built(ResNet, **SMALL, remat=remat)

        def loss(params: Any, tower: Any = tower) -> Any:
            trees = {**variables, "params": params}
            out, moved = tower.apply(trees, x, train=True, mutable=["batch_stats"])
            return jnp.sum(jnp.square(out)), moved

        found.append(jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["params"]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *found)


@pytest.mark.parametrize(
    "shape",
    [{"data": 8}, pytest.param({"data": 2, "fsdp": 2, "tensor": 2}, marks=pytest.mark.slow)],
)
def test_statistics_of_the_global_batch(shape: dict[str, int]) -> None:
    x = images(rows=16, size=32)
    x += np.arange(16, dtype=np.float32)[:, None, None, None]  # every device sees something else
    tower = built(ResNet, **SMALL)
    boxed = jax.eval_shape(tower.init, jax.random.key(0), x)
    variables = start(tower, x)
    expected, averages = train(tower, variables, x)
    mesh = parallel.make_mesh(tiny(**mesh_keys(**shape)))
    sharded = jax.device_put(variables, parallel.state_shardings(boxed, mesh))
    rows = jax.device_put(x, parallel.batch_sharding(mesh))
    with parallel.use(mesh):
        found, moved = train(tower, sharded, rows)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for path, value in flat(averages).items():
        np.testing.assert_allclose(flat(moved)[path], value, rtol=1e-5, atol=1e-5, err_msg=path)


def test_logical_names_and_initial_deviations() -> None:
    tower = built(ResNet, **{**SMALL, "stem": 32})
    boxed = jax.jit(tower.init)(jax.random.key(0), images())
    specs = nn.get_partition_spec(boxed)
    assert specs["params"]["conv1"]["kernel"] == P(
        "kernel_row", "kernel_column", "channel", "embed"
    )
    assert specs["params"]["layer1_0"]["bn1"]["scale"] == P("embed")
    assert specs["batch_stats"]["bn1"]["mean"] == P()
    kernel = nn.unbox(boxed)["params"]["layer2_0"]["conv2"]["kernel"]
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
    norms = sum(x.size for k, x in flat_shapes(drawn["params"]).items() if "bn" in k)
    assert sum(x.size for x in jax.tree.leaves(drawn["batch_stats"])) == norms


def test_the_last_map_of_a_photograph() -> None:
    """ResNet-50 at 224 pixels: 7 x 7 of 2048 channels, whose average is the vector."""
    blocks, bottleneck = RESNET_SIZES[50]
    tower = built(ResNet, blocks=blocks, bottleneck=bottleneck)

    def run(key: jax.Array, x: jax.Array) -> Any:
        out, trees = tower.init_with_output(key, x, mutable=True)
        return out, trees["intermediates"]["layer_outputs"][-1]

    out, last = jax.eval_shape(run, jax.random.key(0), jnp.zeros((2, 224, 224, 3)))
    assert (last.shape, out.shape) == ((2, 7, 7, 2048), (2, 1, 2048))


def flat_shapes(tree: Any) -> dict[str, Any]:
    return traverse_util.flatten_dict(tree, sep="/")
