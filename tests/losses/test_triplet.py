"""The triplet loss: hardest or all negatives by tiles against a matrix of all scores."""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval.losses.pairwise import Execution, Negatives, PairBatch
from big_retrieval.losses.triplet import Triplet, triplet_loss
from big_retrieval.similarity import TOPOLOGIES
from tests.arrays import assert_trees_close, device_mesh

Which = Literal["hardest", "all"]
ROWS, EXTRA, MARGIN = 24, 2, 0.3
VALID = np.arange(ROWS) % 11 != 4


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    query = rng.normal(size=(ROWS, 3, 4))
    document = query + rng.normal(size=query.shape)
    return {"query": query, "document": document, "extra": rng.normal(size=(ROWS, EXTRA, 3, 4))}


WEIGHT = np.linspace(0.5, 2.0, ROWS)


def dense(name: str, x: dict[str, jax.Array], extra: bool, which: Which) -> jax.Array:
    """The definition, over all scores at once, without the rows that are padding."""
    topology = TOPOLOGIES[name]
    query, document = topology.project(x["query"])[VALID], topology.project(x["document"])[VALID]
    scores, count = topology.score(query, document), int(VALID.sum())
    positive, others = jnp.diag(scores), jnp.where(jnp.eye(count, dtype=bool), -jnp.inf, scores)
    rivals = others
    if extra:
        more = topology.project(x["extra"])[VALID].reshape(-1, 3, 4)
        rivals = jnp.concatenate([others, topology.score(query, more)], axis=1)
    reduced = jnp.max if which == "hardest" else jnp.sum
    hinges = reduced(jax.nn.relu(MARGIN + rivals - positive[:, None]), axis=1) + reduced(
        jax.nn.relu(MARGIN + others - positive[None, :]), axis=0
    )
    return jnp.sum(WEIGHT[VALID] * hinges)


@functools.cache
def reference(name: str, extra: bool, which: Which) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Value and gradients of the definition, in float64."""
    with jax.enable_x64(True):
        wide = {key: jnp.asarray(value) for key, value in inputs().items()}
        return jax.jit(jax.value_and_grad(lambda x: dense(name, x, extra, which)))(wide)


def blockwise(
    name: str, x: dict[str, jax.Array], extra: bool, which: Which, how: Execution
) -> jax.Array:
    topology = TOPOLOGIES[name]
    embeddings = {key: topology.project(value) for key, value in x.items()}
    pairs = PairBatch(
        embeddings["query"], embeddings["document"], topology,
        valid=jnp.asarray(VALID), weight=jnp.asarray(WEIGHT),
        negatives=Negatives(embeddings["extra"]) if extra else None, execution=how,
    )  # fmt: skip
    return triplet_loss(Triplet(margin=MARGIN, negatives=which), pairs)[0]


FORMS = [(1, "gather", 7), (2, "ring", 4), (4, "gather", 5), (8, "gather", 2), (8, "ring", 3)]
# Every form with one topology, every topology with a form: the loss asks nothing of a topology.
CASES: list[tuple[str, Which, Any]] = [("oblique", "hardest", form) for form in FORMS]
CASES += [(name, "hardest", FORMS[i % 5]) for i, name in enumerate(TOPOLOGIES) if name != "oblique"]
CASES += [("oblique", "all", FORMS[0]), ("sphere", "all", FORMS[3]), ("geodesic", "all", FORMS[4])]


@pytest.mark.parametrize(("name", "which", "form"), CASES)
def test_value_and_gradients_are_those_of_the_definition(
    name: str, which: Which, form: tuple[int, Any, int]
) -> None:
    """Also on 8 devices, gathered and around a ring, with hard negatives and padding."""
    devices, exchange, block = form
    extra = devices != 4
    mesh, how = device_mesh(devices), Execution(exchange, block)
    with jax.set_mesh(mesh):
        rows_of = NamedSharding(mesh, P(("data", "fsdp")))
        x = {k: jax.device_put(v.astype(np.float32), rows_of) for k, v in inputs().items()}
        found = jax.jit(jax.value_and_grad(lambda x: blockwise(name, x, extra, which, how)))(x)
    assert_trees_close(found, reference(name, extra, which))


def test_triplet_loss_pulls_one_negative_of_equal_scores() -> None:
    """The first, in whatever tiles: the gradient is not split and not doubled."""
    same = {"query": np.zeros((6, 1, 2)), "document": np.zeros((6, 1, 2))}
    same["query"][:, 0, 0] = same["document"][:, 0, 0] = 1.0

    def loss(document: jax.Array, block: int) -> jax.Array:
        sides = jnp.asarray(same["query"]), document, TOPOLOGIES["inner"]
        pairs = PairBatch(*sides, execution=Execution(block=block))
        return triplet_loss(Triplet(margin=MARGIN), pairs)[0]

    grads = [jax.grad(loss)(jnp.asarray(same["document"]), block)[:, 0, 0] for block in (2, 4, 16)]
    # documents: query 0's hardest is 1, all others' is 0; each pair pulls its own document by -2
    expected = np.array([5.0 + 1, 1 + 1, 1, 1, 1, 1]) - 2
    for grad in grads:
        np.testing.assert_allclose(grad, expected, atol=1e-6)
