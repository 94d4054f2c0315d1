"""Pooled logits on meshes, and their memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval.compiled.program import read_program
from big_retrieval.models.lexical import elu1p
from big_retrieval.models.pooling import max_pool, mean_pool
from tests.arrays import assert_trees_close, device_mesh
from tests.models.pooling_cases import by_definition, columns_by_definition, draw, maximum


def step(pool: Callable[..., jax.Array]) -> Callable[..., Any]:
    """(hidden, kernel, bias, mask, g) -> pooled and the gradients."""

    def run(hidden: Any, kernel: Any, bias: Any, mask: Any, g: Any) -> Any:
        pooled, pull = jax.vjp(lambda *a: pool(*a, mask), hidden, kernel, bias)
        return pooled, *pull(g)

    return run


def layouts(mesh: Any, rows: Any = ("data", "fsdp")) -> tuple[list[Any], list[Any]]:
    """Shardings of arguments and results of `step`."""
    specs = {
        "hidden": P(rows), "kernel": P("tensor", "fsdp"), "bias": P("tensor"), "mask": P(rows),
        "g": P(rows, "tensor"),
    }  # fmt: skip
    places = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    names = ("g", "hidden", "kernel", "bias")
    return list(places.values()), [places[name] for name in names]


def on_mesh(x: dict[str, Any], shape: tuple[int, ...], pool: Any, rows: Any = None) -> Any:
    mesh = device_mesh(*shape)
    ins, outs = layouts(mesh) if rows is None else layouts(mesh, rows)
    names = ("hidden", "kernel", "bias", "mask", "g")
    with jax.set_mesh(mesh):
        arrays = [
            jax.device_put(x[name] if name == "mask" else np.float32(x[name]), place)
            for name, place in zip(names, ins, strict=True)
        ]
        return jax.device_get(jax.jit(step(pool), out_shardings=tuple(outs))(*arrays))


@pytest.mark.parametrize(
    ("shape", "backward"),
    [
        ((2, 2, 2), "sparse"), ((2, 2, 2), "dense"), ((8, 1, 1), "dense"), ((1, 1, 8), "sparse"),
        ((1, 8, 1), "sparse"),
    ],
)  # fmt: skip
def test_max_pool_on_meshes(shape: Any, backward: Any) -> None:
    x = draw(8, 7, 8, 40)
    assert_trees_close(on_mesh(x, shape, maximum(block=3, backward=backward)), by_definition(x))


def test_mean_pool_on_a_mesh() -> None:
    x, pool = draw(8, 7, 8, 40), partial(mean_pool, activation=elu1p, block=3)
    assert_trees_close(on_mesh(x, (2, 2, 2), pool), by_definition(x, "mean"))


@pytest.mark.parametrize("columns", [range(8, 40), tuple(range(30, 14, -1))])
def test_max_pool_of_columns_on_a_mesh(columns: Any) -> None:
    x, expected = columns_by_definition(draw(8, 7, 8, 40), columns)
    assert_trees_close(on_mesh(x, (2, 2, 2), maximum(columns=columns, block=5)), expected)


def test_rows_and_widths_that_do_not_divide() -> None:
    """Every device computes all 3 rows and the width of 7; columns are sharded."""
    x = draw(3, 7, 7, 40)
    mesh = device_mesh(2, 2, 2)
    arrays = [np.float32(x[name]) for name in ("hidden", "kernel", "bias")]
    with jax.set_mesh(mesh):
        got = jax.jit(step(maximum(block=3)))(*arrays, x["mask"], np.float32(x["g"]))
    assert_trees_close(jax.device_get(got), by_definition(x))


def test_pooling_exchanges_kernel_and_gradients_once() -> None:
    """The kernel and the gradients are exchanged once; logits and output never."""
    rows, length, width, columns = 16, 12, 32, 512
    mesh = device_mesh(2, 2, 2)
    ins, outs = layouts(mesh)
    shapes = ((rows, length, width), (columns, width), (columns,), (rows, length), (rows, columns))
    arrays = [
        jax.ShapeDtypeStruct(shape, bool if i == 3 else jnp.float32, sharding=place)
        for i, (shape, place) in enumerate(zip(shapes, ins, strict=True))
    ]
    with jax.set_mesh(mesh):
        run = jax.jit(step(maximum(block=64)), out_shardings=tuple(outs))
        program = run.lower(*arrays).compile()
    exchanged = [(c.kind, c.bytes, c.trips) for c in read_program(program.as_text()).collectives]
    kernel, hidden = columns // 2 * width * 4, rows // 4 * length * width * 4
    expected = [
        ("all-gather", kernel, 1),  # over fsdp, as it enters
        ("reduce-scatter", kernel // 2, 1),  # its gradient over fsdp
        ("all-reduce", kernel // 2, 1),  # and over data
        ("all-reduce", columns // 2 * 4, 1),  # of the bias
        ("all-reduce", hidden, 1),  # over tensor
    ]
    assert sorted(exchanged) == sorted(expected)


def temp(batch: int, length: int, width: int, columns: int, pool: Any, first: int = 0) -> int:
    """Bytes of temporary memory for value and gradients."""
    shapes = ((batch, length, width), (first + columns, width), (columns,), (batch, length))
    arrays = [
        jax.ShapeDtypeStruct(shape, bool if i == 3 else jnp.float32)
        for i, shape in enumerate((*shapes, (batch, columns)))
    ]
    return jax.jit(step(pool)).lower(*arrays).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("backward", ["sparse", pytest.param("dense", marks=pytest.mark.slow)])
def test_memory_has_no_term_in_length_times_columns(backward: Any) -> None:
    """More columns cost their maxima and positions at any length; more positions cost tiles."""
    pool = maximum(block=256, backward=backward)
    sizes = {(n, v): temp(8, n, 64, v, pool) for n in (64, 128) for v in (4096, 8192)}
    assert sizes[64, 8192] - sizes[64, 4096] <= 8 * 4096 * (4 + 1)
    assert sizes[128, 8192] - sizes[128, 4096] <= 8 * 4096 * (4 + 1)
    assert sizes[128, 4096] - sizes[64, 4096] <= 8 * 64 * (2 * 256 + 64) * 4


def test_columns_of_a_table_are_neither_copied_nor_padded() -> None:
    part = maximum(columns=range(500, 8501), block=256)
    limit = temp(2, 8, 64, 8192, maximum(block=256)) + 2**16  # the table is 2 MiB
    assert temp(2, 8, 64, 8001, part, first=500) <= limit


def test_memory_is_below_4_percent_of_the_logits() -> None:
    for batch in (32, 64):
        fused = temp(batch, 77, 512, 29522, maximum())
        assert fused <= 0.04 * 4 * (batch * 77 * 29522 * 4)


def test_columns_that_do_not_divide() -> None:
    """29,523 word pieces are odd."""
    x = draw(8, 7, 8, 37)
    arrays = [jnp.asarray(x[name], jnp.float32) for name in ("hidden", "kernel", "bias")]
    with jax.set_mesh(device_mesh(2, 2, 2)):
        got = jax.jit(lambda *a: max_pool(*a, jnp.asarray(x["mask"]), block=5)[0])
        np.testing.assert_allclose(got(*arrays), by_definition(x)[0], atol=1e-5)
