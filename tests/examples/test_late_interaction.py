"""examples/late_interaction.py: MaxSim as a topology, in the loss on any mesh and in evaluation."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval.errors import UserError
from big_retrieval.inference.load import load
from big_retrieval.losses.contrastive import contrastive_loss
from big_retrieval.losses.pairwise import Execution, PairBatch
from tests.arrays import assert_trees_close, device_mesh
from tests.examples.helpers import SHALLOW, copied, example, ran, trained, without_own_parts
from tests.helpers import results

ROWS, TOKENS, DIM = 16, 5, 4
COUNTS = np.arange(ROWS) % TOKENS + 1  # tokens of each row; the rest is padding

VALID = np.arange(ROWS) % 9 != 4


def raw(seed: int) -> dict[str, np.ndarray]:
    """Both sides, [ROWS, TOKENS, DIM + 1]; what stands in padding shall not matter."""
    rng = np.random.default_rng(seed)
    query = rng.normal(size=(ROWS, TOKENS, DIM))
    document = query + 0.7 * rng.normal(size=query.shape)
    masks = [np.arange(TOKENS) < count[:, None] for count in (COUNTS, COUNTS[::-1])]
    sides = zip(("query", "document"), (query, document), masks, strict=True)
    return {name: np.concatenate([x, m[..., None]], axis=-1) for name, x, m in sides}


def one_score(a: np.ndarray, b: np.ndarray) -> float:
    """The definition, of two rows, with loops."""
    tokens = []
    for row in (a, b):
        real = [x[:-1] / np.linalg.norm(x[:-1]) for x in row if x[-1] == 1]
        tokens.append(real)
    best_a = [max(float(x @ y) for y in tokens[1]) for x in tokens[0]]
    best_b = [max(float(x @ y) for x in tokens[0]) for y in tokens[1]]
    return (float(np.mean(best_a)) + float(np.mean(best_b))) / 2


def test_scores_are_those_of_the_definition() -> None:
    topology, sides = example("late_interaction").MaxSim(), raw(0)
    with jax.enable_x64(True):
        query, document = (topology.project(jnp.asarray(sides[x])) for x in ("query", "document"))
        found, paired = topology.score(query, document), topology.paired(query, document)
        turned = topology.score(document, query)
    expected = [[one_score(q, d) for d in sides["document"]] for q in sides["query"]]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(paired, np.diag(expected), rtol=1e-9)
    np.testing.assert_allclose(turned, np.transpose(expected), rtol=1e-9)


def loss(x: dict[str, jax.Array], how: Execution | None, valid: np.ndarray) -> jax.Array:
    topology = example("late_interaction").MaxSim()
    query, document = topology.project(x["query"]), topology.project(x["document"])
    if how is not None:
        given = {"valid": jnp.asarray(valid), "execution": how}
        return contrastive_loss(PairBatch(query, document, topology, 5.0, **given))[0]
    logits = 5.0 * topology.score(query[valid], document[valid])
    positive = jnp.diag(logits)
    each = jax.nn.logsumexp(logits, axis=1) + jax.nn.logsumexp(logits, axis=0) - 2 * positive
    return jnp.mean(each) / 2


@functools.cache
def reference() -> tuple[jax.Array, dict[str, jax.Array]]:
    """Value and gradients of the definition, in float64."""
    with jax.enable_x64(True):
        wide = {key: jnp.asarray(value) for key, value in raw(1).items()}
        return jax.jit(jax.value_and_grad(lambda x: loss(x, None, VALID)))(wide)


@pytest.mark.parametrize(
    ("devices", "exchange", "block"),
    [(1, "gather", 5), (8, "gather", 2), (8, "ring", 1)],
)
def test_late_interaction_loss_equals_loss_of_all_scores(
    devices: int, exchange: Any, block: int
) -> None:
    """Value and gradients, against a matrix of all scores in float64; two rows are padding."""
    mesh = device_mesh(devices)
    with jax.set_mesh(mesh):
        rows = NamedSharding(mesh, P(("data", "fsdp")))
        x = {k: jax.device_put(v.astype(np.float32), rows) for k, v in raw(1).items()}
        how = Execution(exchange, block)
        found = jax.jit(jax.value_and_grad(lambda x: loss(x, how, VALID)))(x)
    assert_trees_close(found, reference())
    for key, grad in found[1].items():
        assert not np.any(np.asarray(grad)[raw(1)[key][..., -1] == 0])


@pytest.mark.slow
def test_late_interaction_trains_evaluates_and_loads_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = copied("late_interaction", tmp_path, "maxsim")
    body = (
        config.read_text().replace('"maxsim"', '"own_maxsim"').replace('"tokens"', '"own_tokens"')
    )
    config.write_text(body.replace('"own_own_maxsim"', '"own_maxsim"'))
    done = trained(config, tmp_path / "run", SHALLOW)
    model = load(tmp_path / "run")
    texts = model.encode_texts(["a small red circle", "a circle"])
    assert texts.shape == (2, 20, 33)
    assert list(np.asarray(texts)[..., -1].sum(axis=1)) != [20, 20]
    self_score = np.asarray(model.score(texts, texts))
    np.testing.assert_allclose(np.diag(self_score), 1, rtol=1e-5)
    without_own_parts(monkeypatch, "topology", "head")
    with pytest.raises(UserError, match=r"is of the type 'own_\w+', which .*own_late_interaction"):
        load(tmp_path / "run")
    done = ran("evaluate", f"--run={tmp_path / 'run'}", f"--plugins={config}")
    name = "retrieval/test/text_to_image/mean_rank"
    assert f"{results(tmp_path / 'run')[name]:.4f}" in done.stdout
