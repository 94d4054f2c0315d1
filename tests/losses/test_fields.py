"""Sides of several fields: terms, averages, missing fields, weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, Contrastive, Sigmoid, TextField
from big_retrieval.config.topologies import topology_part
from big_retrieval.losses.context import Context
from big_retrieval.losses.contrastive import contrastive_loss, sigmoid_loss
from big_retrieval.losses.pairs import pair_weights
from big_retrieval.losses.pairwise import PairBatch
from big_retrieval.similarity import TOPOLOGIES

ROWS = 12
FIELDS = ("query", "image", "title")
GAMMA = {"query": 1.0, "image": 0.7, "title": 0.3}
SHAPES = {"sphere": (1, 8), "oblique": (16, 4), "geodesic": (4, 4), "euclidean": (1, 8)}
SHAPES |= {"inner": (1, 24)}  # of lexical representations


def embeddings(name: str, seed: int = 0) -> dict[str, jax.Array]:
    rng = np.random.default_rng(seed)
    raw = {field: rng.normal(size=(ROWS, *SHAPES[name])) for field in FIELDS}
    if name == "inner":
        raw = {field: np.maximum(x, 0) for field, x in raw.items()}
    return {f: TOPOLOGIES[name].project(jnp.asarray(x, jnp.float32)) for f, x in raw.items()}


def batch(weight: Any = None, **present: np.ndarray) -> Any:
    fields = {
        name: {"present": jnp.asarray(present[name])} if name in present else {} for name in FIELDS
    }
    valid = jnp.ones(ROWS, bool)
    return Batch(fields=fields, valid=valid, document_id=jnp.arange(ROWS), weight=weight)  # type: ignore


def sides(name: str, documents: tuple[str, ...] = ("image", "title")) -> Config:
    fields = {"query": TextField(side="query", weight=GAMMA["query"])}
    fields |= {n: TextField(side="document", weight=GAMMA[n]) for n in documents}
    return Config(topology=name, fields=fields)


def objective(of: Config, loss: Any) -> Any:
    return lambda reps, batch, scalars: loss(Context(reps, batch, of, scalars=scalars))


def average(of: Config, reps: Reps, batch: Any, renormalise: bool = False) -> Any:
    loss = Contrastive(renormalise=renormalise)
    return loss.embeddings(Context(reps, batch, of), ("image", "title"))


SCALARS = {"logit_scale": jnp.asarray(1.5), "bias": jnp.asarray(-2.0)}


def test_terms_of_lists_average_and_pairs() -> None:
    of, loss = sides("sphere"), Contrastive()
    assert [*loss.terms_of(of, "all")] == ["average", "query_image", "query_title"]
    assert [*loss.terms_of(of, "average")] == ["average"]
    assert [*loss.terms_of(of, "pairs")] == ["query_image", "query_title"]
    assert [*loss.terms_of(sides("sphere", ("title",)), "average")] == ["query_title"]


@pytest.mark.parametrize("name", SHAPES)
def test_objective_is_sum_of_its_terms(name: str) -> None:
    """For every topology, 16 class tokens and lexical representations too."""
    reps: Any = Reps(embeddings=embeddings(name))  # type: ignore
    weight = jnp.linspace(0.5, 9.0, ROWS)
    of, config = sides(name), Contrastive(divide_by="rows")
    loss, metrics = objective(of, config)(reps, batch(weight), SCALARS)
    p = reps.embeddings
    mixed = 0.7 * p["image"] + 0.3 * p["title"]
    mixed = TOPOLOGIES[name].project(mixed) if name == "geodesic" else mixed
    how: Any = {"topology": topology_part(name), "logit_scale": jnp.exp(1.5), "weight": weight}
    documents = mixed, p["image"], p["title"]
    each = [contrastive_loss(PairBatch(p["query"], d, **how), "rows")[0] for d in documents]
    np.testing.assert_allclose(loss, sum(each), rtol=1e-5)
    found = [metrics[f"loss_{name}"] for name in config.terms_of(of, "all")]
    np.testing.assert_allclose(found, each, rtol=1e-5)


@pytest.mark.parametrize("config", [Contrastive(), Contrastive(divide_by="rows"), Sigmoid()])
def test_weights_of_one_change_nothing(config: Any) -> None:
    """Bit for bit: the plain losses of one field a side."""
    reps: Any = Reps(embeddings=embeddings("sphere"))  # type: ignore
    of = sides("sphere", ("title",))
    one, _ = objective(of, config)(reps, batch(jnp.ones(ROWS)), SCALARS)
    none, _ = objective(of, config)(reps, batch(), SCALARS)
    how: Any = {"topology": topology_part("sphere"), "logit_scale": jnp.exp(SCALARS["logit_scale"])}
    plain: Any = contrastive_loss
    if isinstance(config, Sigmoid):
        plain, how["bias"] = sigmoid_loss, SCALARS["bias"]
    expected, _ = plain(PairBatch(reps.embeddings["query"], reps.embeddings["title"], **how))
    assert float(one) == float(none) == float(expected)


def test_missing_field_is_left_out_of_terms_and_average() -> None:
    """Its weight goes to the others, its row and column out of its pairwise term; N stays."""
    p = embeddings("sphere")
    present = np.arange(ROWS) % 3 != 1
    weight = jnp.linspace(0.5, 9.0, ROWS)
    reps: Any = Reps(embeddings=p)  # type: ignore
    of, config = sides("sphere"), Contrastive(divide_by="rows")
    run = jax.value_and_grad(
        lambda x: objective(of, config)(
            Reps(embeddings={**p, "image": x}),  # type: ignore
            batch(weight, image=present),
            SCALARS,
        ),
        has_aux=True,
    )
    (_, metrics), grad = run(p["image"])
    np.testing.assert_array_equal(np.asarray(grad)[~present], 0)
    assert np.abs(np.asarray(grad)[present]).min() > 0
    found, mask = average(of, reps, batch(image=present))
    np.testing.assert_allclose(found[~present], p["title"][~present], rtol=1e-6)
    mixed = 0.7 * p["image"] + 0.3 * p["title"]
    np.testing.assert_allclose(found[present], mixed[present], rtol=1e-6)
    assert mask is None  # the title is always there
    how: Any = {"topology": topology_part("sphere"), "logit_scale": jnp.exp(1.5)}
    some = np.flatnonzero(present)
    rows = contrastive_loss(
        PairBatch(p["query"][some], p["image"][some], weight=weight[some], **how), "rows"
    )[0]
    # Queries without an image stay negatives of the images: none of them may be left out.
    there = (None, jnp.asarray(present))
    every = PairBatch(p["query"], p["image"], weight=weight, present=there, **how)
    both = contrastive_loss(every, "rows")[0]
    np.testing.assert_allclose(metrics["loss_query_image"], both, rtol=1e-6)
    assert float(both) > float(rows) * len(some) / ROWS


def test_row_without_any_field_does_not_count() -> None:
    p = embeddings("sphere")
    image, title = np.arange(ROWS) != 2, np.arange(ROWS) > 3
    reps: Any = Reps(embeddings=p)  # type: ignore
    found, mask = average(sides("sphere"), reps, batch(image=image, title=title))
    np.testing.assert_array_equal(mask, image | title)
    np.testing.assert_array_equal(found[2], 0)
    for config in (Contrastive(), Sigmoid(weight_inside=True)):
        grad = jax.grad(
            lambda x, config=config: objective(sides("sphere"), config)(
                Reps(embeddings={**p, "query": x}),  # type: ignore
                batch(image=image, title=title),
                SCALARS,
            )[0]
        )(p["query"])
        assert np.isfinite(grad).all()


def test_average_is_renormalised_on_request() -> None:
    reps: Any = Reps(embeddings=embeddings("oblique"))  # type: ignore
    plain, _ = average(sides("oblique"), reps, batch())
    again, _ = average(sides("oblique"), reps, batch(), renormalise=True)
    norms = jnp.linalg.norm(jnp.asarray(plain), axis=-1)
    assert float(norms.mean()) < 0.9
    np.testing.assert_allclose(jnp.linalg.norm(jnp.asarray(again), axis=-1), 1, rtol=1e-5)


def test_weights_are_divided_by_their_mean_on_request() -> None:
    weight = jnp.asarray(np.arange(ROWS), jnp.float32)
    given = batch(weight).replace(valid=jnp.arange(ROWS) < 9)
    normalised = pair_weights(given, True)
    assert normalised is not None
    np.testing.assert_allclose(jnp.mean(normalised[:9]), 1, rtol=1e-6)
    assert pair_weights(given, False) is given.weight
    assert pair_weights(batch(), True) is None
