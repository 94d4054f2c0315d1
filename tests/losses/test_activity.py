"""The FLOPS regularizer, its warm-up, and the active terms of lexical representations."""

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


def test_flops_and_its_gradient_equal_the_formula() -> None:
    """The third row is padding; the gradient of row i and term v is 2 mean_v / n."""
    valid = jnp.asarray([True, True, False])
    value, grad = jax.value_and_grad(flops)(jnp.asarray(EMBEDDINGS)[:, None], valid)
    assert float(value) == (1 + 3) ** 2 / 4 + 2**2 / 4
    np.testing.assert_allclose(grad[:, 0], [[2, 0, 1], [2, 0, 1], [0, 0, 0]])
    assert float(flops(jnp.asarray(EMBEDDINGS)[:, None], jnp.zeros(3, bool))) == 0


def arrays(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns embeddings with zeros and ties, words with -1 and repetitions, and valid rows."""
    rng = np.random.default_rng(seed)
    embeddings = rng.integers(0, 4, (ROWS, WIDTH)).astype(np.float32)
    bow = rng.integers(-1, WIDTH, (ROWS, WORDS)).astype(np.int32)
    return embeddings, bow, rng.random(ROWS) < 0.7


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([None, 0, 2, WIDTH, WIDTH + 3]), st.booleans())
def test_activity_equals_sets_of_active_terms(seed: int, top_k: int | None, with_bow: bool) -> None:
    embeddings, bow, valid = arrays(seed)
    active, words = [], []  # a set of terms per valid row
    for row, terms in zip(embeddings[valid], bow[valid], strict=True):
        words.append({w for w in terms.tolist() if w >= 0} if with_bow else set())
        kept = set(np.argsort(-row, kind="stable")[: WIDTH if top_k is None else top_k].tolist())
        kept |= set() if top_k is None else words[-1]
        active.append({term for term in kept if row[term] > 0})
    given_bow = jnp.asarray(bow) if with_bow else None
    metrics = activity(jnp.asarray(embeddings), given_bow, jnp.asarray(valid), top_k)
    total, rows, used = sum(map(len, active)), max(len(active), 1), len(set().union(*active))
    inside = embeddings[valid]
    effective = np.sum(inside.sum(1) ** 2 / np.maximum((inside**2).sum(1), 1e-30)) / rows
    expected = {"nonzero": total / rows, "coverage": used, "neglected": WIDTH - used}
    expected["effective"] = effective
    if with_bow:
        shared = sum(len(a & m) for a, m in zip(active, words, strict=True))
        expected["expansion"] = 1 - shared / max(total, 1)
    assert {name: float(x) for name, x in metrics.items()} == pytest.approx(expected, rel=1e-5)


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


OBJECTIVES = pytest.mark.parametrize(
    "objective", [contrastive(query=0.2, document=0.1), Vdr(top_k=2)], ids=["flops", "vdr"]
)


def test_sparsity_factor_grows_with_the_square_of_the_steps() -> None:
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


@OBJECTIVES
def test_padding_and_absent_documents_do_not_count(objective: Any) -> None:
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


@OBJECTIVES
def test_unlogged_step_has_equal_loss_and_no_activity(objective: Any) -> None:
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


def test_side_of_two_fields_has_both_words_and_the_average_embedding() -> None:
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
    """Returns the metrics of queries, next to documents without a problem."""
    healthy = np.eye(len(embeddings), 40, dtype=np.float32) + np.eye(len(embeddings), 40, 5)
    out = {}
    for side, x in (("query", embeddings), ("document", healthy)):
        metrics = activity(jnp.asarray(x), None, jnp.ones(len(x), bool), top_k)
        out |= {f"{name}_{side}": float(value) for name, value in metrics.items()}
    return out


NOTHING = np.zeros((10, 40), np.float32)
FULL = np.ones((10, 40), np.float32)
ALIKE = np.where(np.arange(40) < 6, FULL, 0)
HEALTHY = np.eye(10, 40, 3, dtype=np.float32) + np.eye(10, 40)
UNEQUAL = np.random.default_rng(0).exponential(size=(10, 40)).astype(np.float32) ** 3
NO_GATE, GATED = {}, {"query": 6, "document": 6}


@pytest.mark.parametrize(
    ("embeddings", "gates", "words"),
    [
        (NOTHING, NO_GATE, ["collapse", "0.00 active terms", "regularizer"]),
        (NOTHING, GATED, ["collapse", "0.00 active terms"]),
        (FULL, NO_GATE, ["not sparse", "40 of 40 terms", "gate"]),
        (FULL + np.eye(10, 40), GATED, ["nearly equal in all 40 terms", "bias_init"]),
        (ALIKE, NO_GATE, ["the same 6 active terms", "learning rate"]),
        (ALIKE, GATED, ["the same 6 active terms"]),
    ],
)
def test_warnings_name_side_and_remedy(
    embeddings: np.ndarray, gates: dict[str, int], words: list[str]
) -> None:
    (message,) = warnings(metrics_of(embeddings), gates)
    assert message.startswith("query")
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("metrics", "k"),
    [
        (metrics_of(HEALTHY), None),
        (metrics_of(HEALTHY, top_k=2), 6),
        ({"loss": 1.0, "accuracy": 0.5}, None),
        # effects of the gate itself: k = V, k = ALL, and images, which have no words, with k = 0
        (metrics_of(UNEQUAL, top_k=40), 40),
        (metrics_of(UNEQUAL), ALL),
        (metrics_of(UNEQUAL, top_k=0), 0),
    ],
)
def test_healthy_metrics_give_no_warning(metrics: dict[str, float], k: int | None) -> None:
    assert not [*warnings(metrics, {} if k is None else {"query": k, "document": k})]
