"""The FLOPS regulariser, its warm-up, and how many terms lexical representations use."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, Contrastive, Lexical, Sparsity, TextField, Vdr
from big_retrieval.losses.activity import ALL, WATCHED, activity, flops, warnings
from big_retrieval.losses.context import Context

ROWS, WIDTH, WORDS = 5, 7, 4
EMBEDDINGS = np.array([[1, 0, 2], [3, 0, 0], [9, 9, 9]], np.float32)
SCALARS = {"logit_scale": jnp.asarray(0.3)}


def test_flops_by_hand() -> None:
    """(1 + 3)^2 / 4 + 2^2 / 4 of two rows; the third is padding."""
    found = flops(jnp.asarray(EMBEDDINGS)[:, None], jnp.asarray([True, True, False]))
    assert float(found) == 4 + 1
    assert float(flops(jnp.asarray(EMBEDDINGS)[:, None], jnp.zeros(3, bool))) == 0


def test_gradient_of_flops() -> None:
    """Of row i and term v: 2 mean_v / n, nothing for padding."""
    valid = jnp.asarray([True, True, False])
    found = jax.grad(flops)(jnp.asarray(EMBEDDINGS)[:, None], valid)
    np.testing.assert_allclose(found[:, 0], [[2, 0, 1], [2, 0, 1], [0, 0, 0]])


def arrays(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings with zeros and ties, words with -1 and repetitions, and which rows count."""
    rng = np.random.default_rng(seed)
    embeddings = rng.integers(0, 4, (ROWS, WIDTH)).astype(np.float32)
    bow = rng.integers(-1, WIDTH, (ROWS, WORDS)).astype(np.int32)
    return embeddings, bow, rng.random(ROWS) < 0.7


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([None, 0, 2, WIDTH, WIDTH + 3]), st.booleans())
def test_activity_against_sets(seed: int, top_k: int | None, with_bow: bool) -> None:
    """A loop over rows that holds the active terms of each as a set."""
    embeddings, bow, valid = arrays(seed)
    own = [{w for w in row.tolist() if w >= 0} if with_bow else set() for row in bow]
    active = []
    for row, mine in zip(embeddings, own, strict=True):
        first = np.argsort(-row, kind="stable")[: WIDTH if top_k is None else top_k].tolist()
        kept = set(first) if top_k is None else set(first) | mine
        active.append({c for c in kept if row[c] > 0})
    active = [a for a, counts in zip(active, valid, strict=True) if counts]
    mine = [m for m, counts in zip(own, valid, strict=True) if counts]
    given_bow = jnp.asarray(bow) if with_bow else None
    found = activity(jnp.asarray(embeddings), given_bow, jnp.asarray(valid), top_k)
    total = sum(map(len, active))
    used = len(set().union(*active))
    expected = {"nonzero": total / max(len(active), 1), "coverage": used, "neglected": WIDTH - used}
    inside = embeddings[valid]
    expected["effective"] = np.sum(
        inside.sum(1) ** 2 / np.maximum((inside**2).sum(1), 1e-30)
    ) / max(len(inside), 1)
    if with_bow:
        shared = sum(len(a & m) for a, m in zip(active, mine, strict=True))
        expected["expansion"] = 1 - shared / max(total, 1)
    assert {name: float(x) for name, x in found.items()} == pytest.approx(expected, rel=1e-5)


def batch(valid: np.ndarray, present: np.ndarray | None) -> Any:
    fields: dict[str, Any] = {"query": {}, "title": {}}
    if present is not None:
        fields["title"] = {"present": jnp.asarray(present)}
    return Batch(fields=fields, valid=jnp.asarray(valid), document_id=jnp.arange(len(valid)))  # type: ignore


def reps(query: np.ndarray, title: np.ndarray, bow: Any = None) -> Reps:
    embeddings = {"query": jnp.asarray(query)[:, None], "title": jnp.asarray(title)[:, None]}
    return Reps(embeddings=embeddings, bow=jax.tree.map(jnp.asarray, bow or {}))


def config_of(**documents: float) -> Config:
    """A query and document fields of these weights, after lexical heads."""
    fields = {"query": TextField(side="query", head=Lexical())}
    for name, weight in documents.items():
        fields[name] = TextField(side="document", weight=weight, head=Lexical())
    return Config(topology="inner", fields=fields)


CONFIG = config_of(title=1.0)


def contrastive(**factors: Any) -> Contrastive:
    return Contrastive(sparsity=Sparsity(**factors))


def context(reps: Reps, batch: Batch, step: int = 0, logged: Any = True) -> Context:
    return Context(reps, batch, CONFIG, scalars=SCALARS, step=step, logged=logged)


def test_the_regulariser_grows_with_the_square_of_the_steps() -> None:
    query, _, valid = arrays(0)
    title, _, _ = arrays(1)
    given_batch = batch(valid, None)
    plain, _ = contrastive()(context(reps(query, title), given_batch))
    means = [np.square(x[valid].mean(0)).sum() for x in (query, title)]
    whole = 0.2 * means[0] + 0.01 * means[1]
    objective = contrastive(query=0.2, document=0.01, warmup_steps=10)
    for step, share in ((0, 0.0), (1, 0.01), (5, 0.25), (10, 1.0), (25, 1.0)):
        found, metrics = objective(context(reps(query, title), given_batch, step))
        assert float(found - plain) == pytest.approx(share * whole, rel=1e-4, abs=1e-6)
    assert float(metrics["flops_query"]) == pytest.approx(means[0], rel=1e-6)
    assert float(metrics["flops_document"]) == pytest.approx(means[1], rel=1e-6)
    at_once, metrics = contrastive(document=0.01)(context(reps(query, title), given_batch))
    assert float(at_once - plain) == pytest.approx(0.01 * means[1], rel=1e-4)
    assert "flops_query" not in metrics


@pytest.mark.parametrize("gated", [False, True])
def test_padding_and_absent_documents_do_not_count(gated: bool) -> None:
    """Of both objectives: whatever these rows hold, loss and metrics are the same."""
    objective: Any = contrastive(query=0.2, document=0.1)
    if gated:
        objective = Vdr(top_k=2)
    valid = np.array([True, True, False, True, True])
    present = np.array([True, False, True, True, True])
    found = []
    for filling in (0.0, 5.0):
        query, bow, _ = arrays(2)
        title, others, _ = arrays(3)
        query[~valid], title[~(valid & present)] = filling, filling
        bow[~valid], others[~(valid & present)] = (-1, 6) if filling else (0, -1)
        given_reps = reps(query, title, {"query": bow, "title": others})
        loss, metrics = objective(context(given_reps, batch(valid, present)))
        found.append({"loss": float(loss)} | {name: float(x) for name, x in metrics.items()})
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    assert found[0]["nonzero_document"] > 0


@pytest.mark.parametrize("gated", [False, True])
def test_steps_that_are_not_logged_have_the_same_loss_and_no_activity(gated: bool) -> None:
    objective: Any = contrastive(query=0.2, document=0.1)
    if gated:
        objective = Vdr(top_k=2)
    (query, bow, valid), (title, others, _) = arrays(2), arrays(3)

    @jax.jit
    def run(query: jax.Array, logged: Any) -> Any:
        embedded = reps(query, title, {"query": bow, "title": others})  # type: ignore
        return objective(context(embedded, batch(valid, None), 0, logged))

    step = jax.value_and_grad(run, has_aux=True)
    (loss, metrics), slope = step(jnp.asarray(query), jnp.asarray(False))
    (expected, measured), gradient = step(jnp.asarray(query), jnp.asarray(True))
    np.testing.assert_array_equal(slope, gradient)
    assert loss == expected
    for name, value in metrics.items():
        assert np.isnan(value) == (name.rpartition("_")[0] in (*WATCHED, "expansion")), name
        assert np.isfinite(measured[name])
    assert np.isnan(metrics["nonzero_query"])


def test_a_side_of_two_fields_has_the_words_of_both() -> None:
    """And the average of their embeddings; a field that a row lacks has no part in it."""
    title, first, _ = arrays(4)
    text, second, _ = arrays(5)
    present = np.array([True, False, True, True, False])
    embeddings = {"title": jnp.asarray(title)[:, None], "text": jnp.asarray(text)[:, None]}
    embeddings["query"] = embeddings["title"]
    bow = {"title": jnp.asarray(first), "text": jnp.asarray(second)}
    fields: Any = {"query": {}, "title": {}, "text": {"present": jnp.asarray(present)}}
    given_batch = Batch(fields=fields, valid=jnp.ones(ROWS, bool), document_id=jnp.arange(ROWS))
    config, both = config_of(title=3.0, text=1.0), Reps(embeddings=embeddings, bow=bow)
    given = Context(both, given_batch, config, scalars=SCALARS)
    side = Contrastive().pair_batch(given)
    assert side.present == (None, None)
    shares = np.where(present, 0.25, 0.0)[:, None]
    np.testing.assert_allclose(side.document[:, 0], (1 - shares) * title + shares * text, rtol=1e-6)
    words = Contrastive().words(given)["document"]
    np.testing.assert_array_equal(words, np.concatenate([first, second], axis=1))


def metrics_of(embeddings: np.ndarray, top_k: int | None = None) -> dict[str, float]:
    """Of both sides, the document's healthy."""
    healthy = np.eye(len(embeddings), 40, dtype=np.float32) + np.eye(len(embeddings), 40, 5)
    out = {}
    for side, x in (("query", embeddings), ("document", healthy)):
        found = activity(jnp.asarray(x), None, jnp.ones(len(x), bool), top_k)
        out |= {f"{name}_{side}": float(value) for name, value in found.items()}
    return out


NOTHING = np.zeros((10, 40), np.float32)
FULL = np.ones((10, 40), np.float32)
ALIKE = np.where(np.arange(40) < 6, FULL, 0)


NO_GATE, GATED = {}, {"query": 6, "document": 6}


@pytest.mark.parametrize(
    ("embeddings", "gates", "words"),
    [
        (NOTHING, NO_GATE, ["0.00 active terms on average", "collapse", "regulariser"]),
        (NOTHING, GATED, ["0.00 active terms on average"]),
        (FULL, NO_GATE, ["40 of 40 terms active", "nothing is sparse", "gate"]),
        (FULL + np.eye(10, 40), GATED, ["query", "alike in all 40 terms", "bias_init"]),
        (ALIKE, NO_GATE, ["all query representations have the same 6 terms", "learning rate"]),
        (ALIKE, GATED, ["all query representations have the same 6 terms"]),
    ],
)
def test_warnings(embeddings: np.ndarray, gates: dict[str, int], words: list[str]) -> None:
    (sentence,) = warnings(metrics_of(embeddings), gates)
    assert "document" not in sentence
    for word in words:
        assert word in sentence


def test_no_warning_where_all_is_well() -> None:
    healthy = np.eye(10, 40, 3, dtype=np.float32) + np.eye(10, 40)
    assert not [*warnings(metrics_of(healthy), NO_GATE)]
    assert not [*warnings(metrics_of(healthy, top_k=2), GATED)]
    assert not [*warnings({"loss": 1.0, "accuracy": 0.5}, NO_GATE)]


def test_no_warning_of_what_the_gate_itself_does() -> None:
    """One that leaves everything, or of images, which have no words, nothing."""
    rng = np.random.default_rng(0)
    embeddings = rng.exponential(size=(10, 40)).astype(np.float32) ** 3
    assert not [*warnings(metrics_of(embeddings, top_k=40), {"query": 40, "document": 40})]
    assert not [*warnings(metrics_of(embeddings, top_k=None), {"query": ALL, "document": ALL})]
    assert not [*warnings(metrics_of(embeddings, top_k=0), {"query": 0, "document": 0})]
