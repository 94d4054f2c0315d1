"""The stack of blocks: the same values in every execution."""

import itertools
import re
from functools import partial
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval.config import Bert
from big_retrieval.models import transformer
from big_retrieval.models.layers import BlockInit
from big_retrieval.models.transformer import Block, run_layers
from tests.arrays import device_mesh
from tests.helpers import drawn

W, H, F, DEPTH = 8, 2, 16, 2
EXECUTIONS = list(itertools.product([False, True], ["none", "block", "dots"]))


class Stack(nn.Module):
    norm: str = "pre"
    scan: bool = False
    remat: Any = "none"
    dropout: float = 0.0
    depth: int = DEPTH
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, mask: Any = None, train: bool = False, rows: Any = None):
        return run_layers(self, BlockInit.text(W, self.depth), x, mask, rows=rows, train=train)

    @property
    def spec(self) -> Bert:
        how: Any = {"norm": self.norm, "scan": self.scan, "remat": self.remat}
        return Bert(width=W, heads=H, mlp=F, depth=self.depth, dropout=self.dropout, **how)


def inputs(rows: int = 2, length: int = 5) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(rows, length, W))
    return x, np.arange(length) < np.array([[length], [length - 2]]).repeat(rows // 2, 0)


def variables(stack: Stack, x: Any) -> Any:
    return nn.unbox(jax.jit(stack.init)(jax.random.key(0), x))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_equals_formula(norm: str) -> None:
    with jax.enable_x64(True):
        x, mask = inputs()
        block = Block(Stack(norm).spec, BlockInit.text(W, 1), dtype=jnp.float64)
        params = drawn(block, x)
        y, state = jax.jit(partial(block.apply, capture_intermediates=True))(params, x, mask)
        inner, p = state["intermediates"], params["params"]
        calls = {name: inner[name]["__call__"][0] for name in inner if name != "__call__"}

        def ln(name: str, y: np.ndarray) -> np.ndarray:
            y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
            return y * p[name]["scale"] + p[name]["bias"]

        if norm == "pre":
            np.testing.assert_allclose(calls["ln_1"], ln("ln_1", x), rtol=1e-9)
            middle = x + calls["attention"]
            np.testing.assert_allclose(calls["ln_2"], ln("ln_2", middle), rtol=1e-9)
            expected = middle + calls["mlp"]
        else:
            middle = ln("ln_1", x + calls["attention"])
            np.testing.assert_allclose(calls["ln_1"], middle, rtol=1e-9)
            expected = ln("ln_2", middle + calls["mlp"])
        np.testing.assert_allclose(y, expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_executions_agree(norm: str) -> None:
    """Values, gradients, intermediates and parameter names of scan and remat."""
    with jax.enable_x64(True):
        x, mask = inputs()
        reference = Stack(norm, dtype=jnp.float64)
        params = variables(reference, x)
        results = {}
        for scan, remat in EXECUTIONS if norm == "pre" else [(False, "none"), (True, "block")]:
            stack = Stack(norm, scan, remat, dtype=jnp.float64)
            jax.tree.map(np.testing.assert_array_equal, variables(stack, x), params)

            def loss(p: Any, x: Any, stack: Stack = stack) -> Any:
                y, state = stack.apply(p, x, mask, mutable=["intermediates"])
                return jnp.sum(jnp.sin(3 * y)), state["intermediates"]["layer_outputs"]

            grad = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
            results[scan, remat] = jax.device_get(grad(params, x))
    expected = results.pop((False, "none"))
    assert len(expected[0][1]) == DEPTH
    assert all(np.any(g != 0) for g in jax.tree.leaves(expected[1][0])) or norm == "pre"
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)
    for got in results.values():
        jax.tree.map(close, got, expected)


def test_loops_on_gpus_recompute(monkeypatch: pytest.MonkeyPatch) -> None:
    x = inputs()[0]
    for platform, remat in itertools.product(["cpu", "gpu"], ["none", "block"]):
        monkeypatch.setattr(transformer, "traced_platform", lambda platform=platform: platform)
        stack = Stack(scan=True, remat=remat)
        program = jax.make_jaxpr(stack.apply)(variables(stack, x), x)
        assert ("scan[" in str(program)) == (platform == "cpu" or remat == "block")


def test_layers_have_different_initial_values() -> None:
    params = variables(Stack(), jnp.zeros((1, 2, W)))["params"]
    assert sorted(params) == [f"layers_{i}" for i in range(DEPTH)]
    flat = [flax.traverse_util.flatten_dict(params[f"layers_{i}"], sep="/") for i in range(DEPTH)]
    for name in (n for n in flat[0] if n.endswith("kernel")):
        assert not np.array_equal(flat[0][name], flat[1][name]), name


@pytest.mark.parametrize(
    ("scan", "remat"),
    [
        (False, "none"),
        (True, "block"),
        pytest.param(False, "block", marks=pytest.mark.slow),
        pytest.param(True, "none", marks=pytest.mark.slow),
    ],
)
def test_dropout_in_every_execution(scan: bool, remat: str) -> None:
    """Random by key and by layer, off outside training."""
    x, _ = inputs(2, 4)
    x = jnp.asarray(x, jnp.float32)
    stack = Stack(scan=scan, remat=remat, dropout=0.5)
    params = drawn(stack, x)

    @jax.jit
    def run(key: jax.Array) -> Any:
        def loss(p: Any) -> Any:
            rngs, kept = {"dropout": key}, ["intermediates"]
            y, state = stack.apply(p, x, train=True, rngs=rngs, mutable=kept)
            return jnp.sum(y**2), (y, state["intermediates"]["layer_outputs"])

        grads, (y, outputs) = jax.grad(loss, has_aux=True)(params)
        return y, outputs, grads

    y, outputs, grads = run(jax.random.key(1))
    np.testing.assert_array_equal(y, run(jax.random.key(1))[0])
    assert not np.allclose(y, run(jax.random.key(2))[0])
    assert not np.allclose(y, jax.jit(stack.apply)(params, x))
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(grads))
    silent = np.asarray([np.asarray(o - i) == 0 for i, o in itertools.pairwise((x, *outputs))])
    assert not np.array_equal(silent[0], silent[1])  # elements that both branches dropped
    assert 0.1 < silent.mean() < 0.4  # 0.5^2 of the elements


@pytest.mark.parametrize(
    ("scan", "remat"),
    [(False, "block"), (True, "dots"), pytest.param(False, "none", marks=pytest.mark.slow)],
)
def test_dropout_depends_on_the_row_index(scan: bool, remat: str) -> None:
    """Rows 4 to 7 alone, with their indices, give the same as in the batch."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 5, W)), jnp.float32)
    stack = Stack(scan=scan, remat=remat, dropout=0.3)
    params = variables(stack, x)

    @jax.jit
    def run(x: jax.Array, rows: jax.Array) -> Any:
        rngs = {"dropout": jax.random.key(1)}

        def loss(x: jax.Array) -> Any:
            y = stack.apply(params, x, train=True, rows=rows, rngs=rngs)
            return jnp.sum(jnp.sin(y)), y

        slopes, y = jax.grad(loss, has_aux=True)(x)
        return y, slopes

    rows = jnp.arange(8, dtype=jnp.int32)
    whole, part, moved = run(x, rows), run(x[4:], rows[4:]), run(x[4:], rows[:4])
    for name, got, expected, other in zip(("y", "slopes"), part, whole, moved, strict=True):
        np.testing.assert_allclose(got, expected[4:], atol=1e-6, err_msg=name)
        assert np.max(np.abs(other - expected[4:])) > 0.1, name


@pytest.mark.slow
def test_dropout_on_eight_devices() -> None:
    """The same values as on one device, without communication."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(16, 5, W)), jnp.float32)
    mesh = device_mesh(8)
    rules = (("batch", "data"), ("length", None), ("embed_act", None))
    for scan in (False, True):
        stack = Stack(scan=scan, dropout=0.3)
        params = variables(stack, x)

        def run(x: jax.Array, key: jax.Array, stack: Stack = stack, params: Any = params) -> Any:
            return stack.apply(params, x, train=True, rngs={"dropout": key})

        expected = jax.jit(run)(x, jax.random.key(1))
        with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
            placed = jax.device_put(x, NamedSharding(mesh, P("data")))
            compiled = jax.jit(run).lower(placed, jax.random.key(1)).compile()
            got = compiled(placed, jax.random.key(1))
        np.testing.assert_allclose(got, expected, atol=1e-5)
        program = compiled.as_text()
        assert program is not None
        assert not re.search(r"all-gather|all-reduce|all-to-all|permute|reduce-scatter", program)


@pytest.mark.slow
def test_remat_saves_memory() -> None:
    x = jnp.zeros((16, 32, W))
    sizes = {}
    for remat in ("none", "dots", "block"):
        stack = Stack(remat=remat, scan=True, depth=8)
        params = variables(stack, x)
        loss = jax.jit(jax.grad(lambda p, s=stack: jnp.sum(s.apply(p, x) ** 2)))
        analysis = loss.lower(params).compile().memory_analysis()
        sizes[remat] = analysis.temp_size_in_bytes
    assert sizes["block"] < sizes["dots"] < sizes["none"]
    assert sizes["block"] < 0.5 * sizes["none"]


def test_scan_program_does_not_grow_with_depth() -> None:
    x = jnp.zeros((1, 4, W))
    counts = []
    for depth in (2, 6):
        stack = Stack(scan=True, depth=depth)
        params = variables(stack, x)
        counts.append(str(jax.make_jaxpr(stack.apply)(params, x)).count("dot_general"))
    assert counts[0] == counts[1] == 8


def test_eight_devices_equal_one() -> None:
    x, mask = inputs(4, 5)
    x = jnp.asarray(x, jnp.float32)
    mesh = device_mesh(2, 2, 2)
    rules = (
        ("batch", ("data", "fsdp")), ("embed", "fsdp"), ("heads", "tensor"), ("mlp", "tensor"),
        ("length", None), ("embed_act", None),
    )  # fmt: skip
    params = variables(Stack(), x)
    expected = jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(Stack().apply(p, x, mask)))))(params)
    for scan in (False, True):
        stack = Stack(scan=scan)
        boxed = jax.eval_shape(stack.init, jax.random.key(0), x)
        specs = nn.get_partition_spec(boxed)
        shardings = nn.logical_to_mesh_sharding(specs, mesh, rules)
        placed = jax.device_put(params, shardings)
        kernel = placed["params"]["layers_1"]["mlp"]["fc1"]["kernel"]
        assert kernel.addressable_shards[0].data.shape == (W // 2, F // 2)
        with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
            grad = jax.jit(jax.grad(lambda p, s=stack: jnp.sum(jnp.sin(s.apply(p, x, mask)))))
            got = jax.device_get(grad(placed))
        close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
        jax.tree.map(close, got, expected)
