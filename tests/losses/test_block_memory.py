"""What the compiler allots and sends for the contrastive core; the same on every run.

Abstract arrays only: nothing of these sizes is ever allocated.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval.compiled.program import read_program
from big_retrieval.config.topologies import topology_part
from big_retrieval.losses import core
from big_retrieval.losses.blockwise import block_size
from big_retrieval.losses.contrastive import contrastive_loss, sigmoid_loss
from big_retrieval.losses.pairwise import Execution, PairBatch
from big_retrieval.losses.tiles import SideRows, SoftmaxReduction

MIB = 2**20
DIM = 512


def blockwise(name: str, exchange: Any = "auto", sigmoid: bool = False) -> Any:
    top, execution = topology_part(name), Execution(exchange)

    def loss(query: jax.Array, document: jax.Array, t: jax.Array) -> jax.Array:
        common: Any = {"topology": top, "logit_scale": jnp.exp(t), "execution": execution}
        if sigmoid:
            return sigmoid_loss(PairBatch(query, document, bias=-10.0, **common))[0]
        return contrastive_loss(PairBatch(query, document, **common))[0]

    return loss


def plain(query: jax.Array, document: jax.Array, t: jax.Array) -> jax.Array:
    logits = jnp.exp(t) * topology_part("sphere").score(query, document)
    partitions = jax.nn.logsumexp(logits, axis=1) + jax.nn.logsumexp(logits, axis=0)
    return jnp.mean(0.5 * partitions - jnp.diagonal(logits))


def compiled(loss: Any, rows: int, devices: int = 1, tokens: int = 1) -> Any:
    """Loss and all gradients for so many pairs."""
    shape = (rows, tokens, DIM // tokens)
    step = jax.value_and_grad(loss, argnums=(0, 1, 2))
    t = jax.ShapeDtypeStruct((), jnp.float32)
    if devices == 1:
        side = jax.ShapeDtypeStruct(shape, jnp.float32)
        return jax.jit(step).lower(side, side, t).compile()
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))
    sharded, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    side = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharded)
    with jax.set_mesh(mesh):
        out = (whole, (sharded, sharded, whole))
        return jax.jit(step, out_shardings=out).lower(side, side, t).compile()


def temp(program: Any) -> int:
    return program.memory_analysis().temp_size_in_bytes


def test_blockwise_loss_needs_far_less_memory_than_plain_form() -> None:
    assert temp(compiled(plain, 24576)) >= 120 * temp(compiled(blockwise("sphere"), 24576))


@pytest.mark.parametrize("sigmoid", [False, True])
def test_memory_grows_with_rows_only(sigmoid: bool) -> None:
    small, large = (temp(compiled(blockwise("sphere", sigmoid=sigmoid), n)) for n in (2**14, 2**17))
    assert math.log(large / small) / math.log(8) <= 1.1


@pytest.mark.parametrize("tail", [1, 300])
def test_memory_of_odd_batches_has_no_padding(tail: int) -> None:
    """Rows that no block divides cost no copy of a side."""
    whole, odd = (temp(compiled(blockwise("sphere"), 2**14 + n)) for n in (0, tail))
    assert odd <= whole + 2 * MIB


@pytest.mark.parametrize(
    ("exchange", "name", "tokens", "limit"),
    [
        ("ring", "sphere", 1, 35 * MIB),
        ("gather", "sphere", 1, 110 * MIB),
        ("ring", "geodesic", 16, 64 * MIB),
    ],
)
def test_eight_devices(exchange: str, name: str, tokens: int, limit: int) -> None:
    """Memory per device, and bytes on the wire as losses/exchange.py gives them."""
    rows, devices = 24576, 8
    program = compiled(blockwise(name, exchange), rows, devices, tokens)
    assert temp(program) <= limit
    text = program.as_text()
    n = rows // devices
    for first, second in ((n, rows), (rows, rows), (rows, n)):
        assert f"[{first},{second}]" not in text
    found = read_program(text).collectives
    side = rows * DIM * 4
    reduced = [item for item in found if item.kind == "all-reduce"]
    assert all(item.bytes < side / 10 for item in reduced)
    kinds = {item.kind for item in found}
    if exchange == "ring":
        expected = 3 * side
        assert kinds <= {"collective-permute", "all-reduce"}
    else:
        expected = 2 * side * (devices - 1) // devices
        assert kinds == {"all-gather", "reduce-scatter", "all-reduce"}
    assert sum(item.wire_bytes for item in found) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("exchange", "rows", "ring"),
    [
        ("auto", 2**17, False),
        ("auto", 2**17 + 1, True),
        ("ring", 8, True),
        ("gather", 2**18, False),
    ],
)
def test_auto_gathers_up_to_256_mib(exchange: core.Exchange, rows: int, ring: bool) -> None:
    sweep = core.TileSweep(topology_part("sphere"), SoftmaxReduction(), "keep", block=8)
    embeddings: Any = jax.ShapeDtypeStruct((rows, 1, DIM), jnp.float32)
    index: Any = None
    assert core.on_mesh(sweep, exchange, SideRows(embeddings, index, index)).ring == ring


def test_blocks_of_wide_rows_are_smaller_on_tpus() -> None:
    inner, sphere = topology_part("inner"), topology_part("sphere")
    assert block_size(inner, (4096, 29522), "tpu") == 4096
    assert block_size(inner, (8192, 29522), "tpu") == 512
    assert block_size(inner, (8192, 29522), "gpu") == 4096
    assert block_size(sphere, (2**20, 1, 512), "tpu") == 4096
