"""examples/margins.py: by tiles against a matrix of all scores."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval.losses.pairwise import Execution, PairBatch
from big_retrieval.similarity import TOPOLOGIES
from tests.arrays import assert_trees_close, device_mesh
from tests.examples.helpers import SHALLOW, copied, example, trained
from tests.helpers import losses, rows

VALID, WEIGHT = np.arange(16) % 11 != 4, np.linspace(0.5, 2.0, 16)
SPHERE = TOPOLOGIES["sphere"]


def dense(x: jax.Array) -> jax.Array:
    """The definition, over all scores at once, without the rows that are padding."""
    query, document = (SPHERE.project(side)[VALID] for side in x)
    scores, weight = SPHERE.score(query, document), WEIGHT[VALID]
    pull = jnp.square(jax.nn.relu(0.6 - jnp.diag(scores)))
    push = jnp.square(jax.nn.relu(scores - 0.1)) * (1 - jnp.eye(len(scores)))
    return jnp.sum(weight * (pull + push.sum(1))) / jnp.sum(weight)


@pytest.mark.parametrize("exchange", ["gather", "ring"])
def test_value_and_gradients_are_those_of_the_definition(exchange: Any) -> None:
    x = np.random.default_rng(0).normal(size=(2, 16, 1, 4)).astype(np.float32)
    expected = jax.value_and_grad(dense)(jnp.asarray(x))

    def blockwise(x: jax.Array) -> jax.Array:
        given: dict[str, Any] = {"valid": jnp.asarray(VALID), "weight": jnp.asarray(WEIGHT)}
        sides, how = map(SPHERE.project, x), Execution(exchange, 3)
        margins = example("margins").Margins(positive=0.6, negative=0.1)
        return margins.pull_and_push(PairBatch(*sides, SPHERE, execution=how, **given))[0]

    mesh = device_mesh(2, 2)
    with jax.set_mesh(mesh):
        sharded = jax.device_put(x, NamedSharding(mesh, P(None, ("data", "fsdp"))))
        found = jax.jit(jax.value_and_grad(blockwise))(sharded)
    assert_trees_close(found, expected)


@pytest.mark.slow
def test_margins_trains_next_to_another_loss_from_any_folder(tmp_path: Path) -> None:
    config = copied("margins", tmp_path, "margins")
    flags = ["--config.losses.margins.negative=0.1", "--config.log_every=1", SHALLOW]
    trained(config, tmp_path / "run", *flags)
    for row in (row for row in rows(tmp_path / "run") if "loss" in row):
        total = row["main/loss"] + 0.1 * row["margins/loss"]
        assert row["loss"] == pytest.approx(total, rel=1e-6)
        assert "main/logit_scale" in row
    assert len(losses(tmp_path / "run")) == 2
    wrong = trained(config, tmp_path / "other", "--config.losses.margins.positive=0.1", status=2)
    assert "config.losses.margins.positive is 0.1; it must be above config" in wrong.stderr
