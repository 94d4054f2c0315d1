"""One batch with hard negatives: the loss by hand, and padding that does not count."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.batch import Batch
from big_retrieval.config import Config, recipe
from big_retrieval.train.build import BuiltModel, build_model
from big_retrieval.train.step import make_loss
from tests.helpers import drawn, tiny

ROWS, EXTRA, LENGTH, VOCAB = 6, 3, 8, 40
VALID = np.arange(ROWS) != 2
EXTRA_VALID = np.arange(ROWS * EXTRA).reshape(ROWS, EXTRA) % 4 != 1
LEXICAL = configs.Lexical(activation="elu1p", top_k=4, keep_input_terms=True)


def config(loss: Any, head: Any, pool: str, count: int = EXTRA) -> Config:
    """Two encoders, one per side."""
    size = {"width": 16, "depth": 1, "heads": 2, "mlp": 32, "pool": pool}
    fields = {
        name: recipe.entry(
            configs.TextField(), side=side, tower=name, column=column, length=LENGTH, head=head
        )
        for name, side, column in (("query", "query", "query"), ("text", "document", "title"))
    }
    return tiny(
        batch_size=ROWS, fields=fields, topology="inner", losses__main=recipe.entry(loss),
        towers={name: recipe.entry(configs.Bert(), **size) for name in fields},
        data=recipe.entry(configs.GradedScenes()), negatives__count=count,
        labels__query="query_id", labels__document="document_id",
        losses__main__logit_scale__init=1.3,
    )  # fmt: skip


DPR = config(configs.Contrastive(), configs.Projection(dim=None), "first")
VDR = config(configs.Vdr(top_k=4, symmetric=True), LEXICAL, "none")
CONFIGS = {"dpr": DPR, "vdr": VDR}


@functools.cache
def built(name: str) -> tuple[BuiltModel, Any, Any]:
    """The parts, drawn parameters, and loss with gradients as a function of both and a batch."""
    of = CONFIGS[name]
    mesh = parallel.make_mesh(of, jax.devices()[:1])
    parts = build_model(of, mesh, vocab_size=VOCAB, total_steps=10)
    params = drawn(parts.model, parts.model.example_inputs())["params"]
    params["scalars"] = jax.tree.map(jnp.asarray, parts.objective.scalars())
    loss = make_loss(parts.model, parts.objective, None)
    key = jax.random.key(0)
    value = jax.jit(jax.value_and_grad(lambda params, given: loss(params, given, key)[0]))
    return parts, params, value


def arrays(rng: np.random.Generator, *shape: int) -> dict[str, jax.Array]:
    """Texts of random words and lengths, [*shape, L]."""
    ids = rng.integers(1, VOCAB, (*shape, LENGTH)).astype(np.int32)
    long = rng.integers(2, LENGTH + 1, shape)
    mask = np.arange(LENGTH) < long[..., None]
    return {"ids": jnp.asarray(np.where(mask, ids, 0)), "mask": jnp.asarray(mask)}


def batch(extra: Any = None, present: np.ndarray | None = EXTRA_VALID) -> Any:
    rng = np.random.default_rng(0)
    fields = {name: arrays(rng, ROWS) for name in ("query", "text")}
    negatives = extra or {"text": arrays(rng, ROWS, EXTRA)}
    numbers = jnp.arange(ROWS, dtype=jnp.int32)
    return Batch(
        fields=fields, valid=jnp.asarray(VALID), document_id=numbers, query_id=numbers,
        negatives=negatives if present is not None else None,
        negatives_valid=None if present is None else jnp.asarray(present),
    )  # fmt: skip


def close(found: Any, expected: Any) -> None:
    """Asserts close losses and gradients, relative to the largest gradient."""
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-6)
    largest = max(float(np.abs(x).max()) for x in jax.tree.leaves(expected[1]))
    for a, b in zip(jax.tree.leaves(found[1]), jax.tree.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * largest)


def embeddings(parts: BuiltModel, params: Any, field: str, texts: Any) -> np.ndarray:
    """Embeddings of texts one at a time, float64 [n, D]."""
    weights = {"params": {name: part for name, part in params.items() if name != "scalars"}}
    apply = jax.jit(lambda x: parts.model.apply(weights, {field: x}))
    flat = jax.tree.map(lambda x: x.reshape(-1, 1, LENGTH), texts)
    found: Any = [
        apply(jax.tree.map(lambda x: x[n], flat))  # noqa: B023
        for n in range(len(flat["ids"]))
    ]
    return np.concatenate([np.asarray(x.embeddings[field], np.float64)[:, 0] for x in found])


@pytest.mark.slow
def test_dpr_loss_equals_the_paper() -> None:
    """Queries have all documents and hard negatives of the batch, documents only the queries."""
    parts, params, value = built("dpr")
    given = batch()
    query = embeddings(parts, params, "query", given.fields["query"])[VALID]
    text = embeddings(parts, params, "text", given.fields["text"])[VALID]
    kept = (EXTRA_VALID & VALID[:, None]).reshape(-1)
    extra = embeddings(parts, params, "text", given.negatives["text"])[kept]
    scores = 1.3 * query @ np.concatenate([text, extra]).T
    positive = np.diagonal(scores)
    rows = np.logaddexp.reduce(scores, axis=1) - positive
    columns = np.logaddexp.reduce(scores[:, : len(positive)], axis=0) - positive
    assert value(params, given)[0] == pytest.approx(np.mean(rows + columns) / 2, rel=1e-5)
    without = value(params, batch(present=None))[0]
    plain = np.logaddexp.reduce(scores[:, : len(positive)], axis=1) - positive
    assert without == pytest.approx(np.mean(plain + columns) / 2, rel=1e-5)
    assert np.mean(rows) > np.mean(plain) + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpr", "vdr"])
def test_padding_of_missing_negatives_does_not_count(name: str) -> None:
    _, params, value = built(name)
    given = batch()
    other = arrays(np.random.default_rng(7), ROWS, EXTRA)
    mixed = jax.tree.map(
        lambda x, y: jnp.where(EXTRA_VALID[..., None], x, y), given.negatives["text"], other
    )
    expected, found = value(params, given), value(params, batch({"text": mixed}))
    close(found, expected)
    counted = value(params, batch({"text": mixed}, np.ones_like(EXTRA_VALID)))
    assert counted[0] > found[0] + 1e-3
