"""Where parameters live: by the names of their axes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from big_retrieval import parallel
from big_retrieval.errors import UserError


def placed(*names: str | None) -> P:
    """The place of a 6 x 8 parameter whose axes have these names, on 1 x 2 x 4 devices."""
    leaf = nn.LogicallyPartitioned(jax.ShapeDtypeStruct((6, 8), jnp.float32), names)
    mesh = jax.make_mesh((1, 2, 4), parallel.AXES, axis_types=(AxisType.Auto,) * 3)
    return parallel.state_shardings({"kernel": leaf}, mesh)["kernel"].spec


def test_axes_go_where_their_rules_say_if_the_mesh_divides_them() -> None:
    assert placed("embed", "mlp") == P("fsdp", "tensor")
    assert placed("mlp", "embed") == P(None, "fsdp")  # 4 does not divide 6
    assert placed("heads", "mlp") == P(None, "tensor")
    assert placed(None, "position") == P(None, None)


def test_a_name_without_a_rule_is_an_error() -> None:
    with pytest.raises(UserError, match=r"\(6, 8\) has the logical axis 'channels', which is none"):
        placed("embed", "channels")
