"""Sharding of parameters by the names of their axes."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from big_retrieval import parallel
from big_retrieval.errors import UserError
from big_retrieval.train.build import build_model
from tests.arrays import device_mesh
from tests.helpers import tiny


def placed(*names: str | None) -> P:
    """Sharding of a 6 x 8 parameter whose axes have these names, on 1 x 2 x 4 devices."""
    leaf = nn.LogicallyPartitioned(jax.ShapeDtypeStruct((6, 8), jnp.float32), names)
    return parallel.state_shardings({"kernel": leaf}, device_mesh(1, 2, 4))["kernel"].spec


def test_axes_follow_the_rules_if_the_mesh_divides_them() -> None:
    assert placed("embed", "mlp") == P("fsdp", "tensor")
    assert placed("mlp", "embed") == P(None, "fsdp")  # 4 does not divide 6
    assert placed("heads", "mlp") == P(None, "tensor")
    assert placed(None, "position") == P(None, None)


def test_axis_of_several_mesh_axes_shards_over_all_of_them() -> None:
    leaf = nn.LogicallyPartitioned(jax.ShapeDtypeStruct((8, 8), jnp.float32), ("batch", "embed"))
    spec = parallel.state_shardings({"kernel": leaf}, device_mesh(2, 2, 2))["kernel"].spec
    assert spec == P(("data", "fsdp"), None)
    assert placed("batch", "relative") == P(("data", "fsdp"), None)


def test_state_shardings_reject_an_unknown_axis() -> None:
    with pytest.raises(UserError, match=r"\(6, 8\) has the unknown logical axis 'channels'"):
        placed("embed", "channels")


def test_undivided_names_dimensions_and_their_bytes() -> None:
    config = tiny(mesh__tensor=2, mesh__data=1)
    mesh = parallel.make_mesh(config, jax.devices()[:2])

    def built(vocab_size: int) -> Sequence[str]:
        return build_model(config, mesh, vocab_size=vocab_size, total_steps=2).undivided

    assert not built(64)
    (message,) = built(63)
    # The table and both moments of AdamW, 63 x 16 numbers of 4 bytes each, of which half is extra.
    assert message == (
        "config.mesh.tensor=2 does not divide 63, so text/token_embedding is not sharded: "
        f"{3 * 63 * 16 * 4 // 2:,} bytes more per device, with the optimizer's state"
    )
