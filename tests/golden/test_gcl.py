"""Reference values of "Generalized contrastive learning": losses, fields, weights, metrics.

What the arrays are and the tolerances: data/gcl/README.md. Every array of a file is compared or
goes into something that is.
"""

import functools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import Config, Contrastive, LogitScale, PairLabels, TextField
from big_retrieval.config.topologies import topology_part
from big_retrieval.data.fields.labels import make_weight
from big_retrieval.evals.encoding import average
from big_retrieval.evals.graded import graded_metrics, mean_metrics, order
from big_retrieval.evals.judged import relevance_of
from big_retrieval.evals.ranks import DocumentScorer
from big_retrieval.losses.context import Context
from big_retrieval.losses.contrastive import contrastive_loss, sigmoid_loss
from big_retrieval.losses.pairwise import PairBatch

Case = Mapping[str, np.ndarray]
SPHERE = topology_part("sphere")
both_precisions = pytest.mark.parametrize(
    "precision", ["float32", pytest.param("float64", marks=pytest.mark.slow)]
)


def close(ours: Any, expected: Any, precision: str) -> None:
    """The README's tolerances."""
    rtol, atol = (1e-9, 1e-12) if precision == "float64" else (1e-4, 1e-5)
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=rtol, atol=atol)


def unit(x: jax.Array) -> jax.Array:
    """Embeddings [n, 1, N] of plain vectors [n, N]."""
    return SPHERE.project(x[:, None, :])


def with_gradients(
    function: Callable[..., jax.Array], inputs: dict[str, np.ndarray], precision: str
) -> tuple[Any, dict[str, Any]]:
    """A scalar function of named arrays and its gradients, in a precision."""
    with jax.enable_x64(precision == "float64"):
        cast = {name: jnp.asarray(x, precision) for name, x in inputs.items()}
        run = jax.jit(jax.value_and_grad(lambda x: function(**x)))
        value, grads = jax.device_get(run(cast))
    return value, grads


@pytest.mark.golden("gcl", "wce_loss.npz", prefixes=".")
@both_precisions
def test_weighted_cross_entropy(case: Case, precision: str) -> None:
    """Eq. 4; with weights of 1 also open_clip's loss."""

    def loss(queries: jax.Array, docs: jax.Array, log_logit_scale: jax.Array) -> jax.Array:
        weight = jnp.asarray(case["weights"], queries.dtype)
        sides = unit(queries), unit(docs), SPHERE
        pairs = PairBatch(*sides, logit_scale=jnp.exp(log_logit_scale), weight=weight)
        return contrastive_loss(pairs, divide_by="rows")[0]

    inputs = {name: case[name] for name in ("queries", "docs", "log_logit_scale")}
    value, grads = with_gradients(loss, inputs, precision)
    close(value, case["loss"], precision)
    for name, grad in grads.items():
        close(grad, case[f"grad_{name}"], precision)
    if "open_clip_cliploss" in case:
        np.testing.assert_array_equal(case["weights"], 1)
        close(value, case["open_clip_cliploss"], "float32")


@pytest.mark.golden("gcl", "wce_loss.npz", prefixes=".")
def test_gradient_of_the_logits(case: Case) -> None:
    """`Z` and `grad_Z`, the logits as embeddings whose score is their product with unit vectors."""
    rows = len(case["Z"])
    inner = topology_part("inner")

    def loss(z: jax.Array) -> jax.Array:
        columns = jnp.eye(rows, dtype=z.dtype)[:, None]
        weight = jnp.asarray(case["weights"], z.dtype)
        pairs = PairBatch(z[:, None], columns, inner, weight=weight)
        return contrastive_loss(pairs, divide_by="rows")[0]

    value, grads = with_gradients(loss, {"z": case["Z"]}, "float64")
    close(value, case["loss"], "float64")
    close(grads["z"], case["grad_Z"], "float64")
    with jax.enable_x64(True):
        embeddings = [unit(jnp.asarray(case[name])) for name in ("queries", "docs")]
        logits = np.exp(case["log_logit_scale"]) * SPHERE.score(*embeddings)
    close(logits, case["Z"], "float64")


@pytest.mark.golden("gcl", "multifield_loss.npz", prefixes=".")
@both_precisions
def test_multi_field_loss(case: Case, precision: str) -> None:
    """Eq. 5: the loss, all of its terms and all gradients, through the objective of a run."""
    names = {side: tuple(f"{side}{i}" for i in range(int(case[f"num_{side}"]))) for side in SIDES}
    gammas = {
        name: float(gamma)
        for side in SIDES
        for name, gamma in zip(names[side], case[f"gamma_{side}"], strict=True)
    }

    def objective(inputs: dict[str, jax.Array], renormalise: bool) -> Any:
        inputs = dict(inputs)
        scale = inputs.pop("log_logit_scale")
        rows = len(case["weights"])
        batch: Any = Batch(
            fields={name: {} for name in inputs},
            valid=jnp.ones(rows, bool),
            document_id=jnp.arange(rows),
            weight=jnp.asarray(case["weights"], scale.dtype),
        )  # type: ignore
        reps: Any = Reps(embeddings={name: unit(x) for name, x in inputs.items()})  # type: ignore
        fields = {
            name: TextField(side=side, weight=gammas[name])
            for side, of_side in (("query", "lhs"), ("document", "rhs"))
            for name in names[of_side]
        }
        config = Config(topology="sphere", fields=fields)
        run = Contrastive(
            divide_by="rows", renormalise=renormalise, logit_scale=LogitScale(max=None)
        )
        return run(Context(reps, batch, config, scalars={"logit_scale": scale}))

    inputs = {name: case[name] for name in (*names["lhs"], *names["rhs"], "log_logit_scale")}
    value, grads = with_gradients(lambda **x: objective(x, False)[0], inputs, precision)
    close(value, case["loss"], precision)
    for name, grad in grads.items():
        close(grad, case[f"grad_{name}"], precision)
    with jax.enable_x64(precision == "float64"):
        cast = {name: jnp.asarray(x, precision) for name, x in inputs.items()}
        terms = {k: v for k, v in objective(cast, False)[1].items() if k.startswith("loss_")}
        again = objective(cast, True)[1]["loss_average"]
    order = ["average", *(f"{q}_{d}" for q in names["lhs"] for d in names["rhs"])]
    close([terms[f"loss_{name}"] for name in order], case["terms"], precision)
    close(again, case["avg_term_if_average_renormalised"], precision)


SIDES = ("lhs", "rhs")


@pytest.mark.golden("gcl", "wsig_loss.npz", prefixes=".")
@both_precisions
def test_weighted_sigmoid(case: Case, precision: str) -> None:
    """Eq. 6, whose b is minus our bias; the weight outside too, and SigLIP's where all are 1."""

    def loss(
        queries: jax.Array, docs: jax.Array, log_t: jax.Array, b: jax.Array, inside: bool = True
    ) -> jax.Array:
        pairs = PairBatch(
            unit(queries), unit(docs), SPHERE, jnp.exp(log_t), bias=-b,
            weight=jnp.asarray(case["weights"], queries.dtype),
        )  # fmt: skip
        return sigmoid_loss(pairs, inside)[0]

    inputs = {name: case[name] for name in ("queries", "docs", "log_t")}
    inputs["b"] = case["b_eq6_sign"]
    value, grads = with_gradients(loss, inputs, precision)
    close(value, case["loss"], precision)
    for name, grad in grads.items():
        close(grad, case[f"grad_{name}"], precision)
    outside, _ = with_gradients(functools.partial(loss, inside=False), inputs, precision)
    close(outside, case["loss_if_weight_outside_log"], precision)
    if "open_clip_sigliploss_with_bias_minus_b" in case:
        np.testing.assert_array_equal(case["weights"], 1)
        close(value, case["open_clip_sigliploss_with_bias_minus_b"], "float32")
    with jax.enable_x64(True):
        embeddings = [unit(jnp.asarray(case[name])) for name in ("queries", "docs")]
        close(SPHERE.score(*embeddings), case["Z"], "float64")


@pytest.mark.golden("gcl", "multifield_eval.npz")
def test_averages_of_documents_and_their_search(case: Case) -> None:
    """Averages of fields, a missing one left out, and the best documents of every query."""
    embeddings = {
        name: np.asarray(unit(jnp.asarray(case[f"{name}_emb"]))) for name in ("image", "title")
    }
    weights = dict(zip(("image", "title"), case["field_weights"].tolist(), strict=True))
    documents = average(SPHERE, embeddings, weights, {"title": ~case["title_missing"]})  # [D, 1, N]
    np.testing.assert_allclose(documents[:, 0], case["doc_features"], atol=1e-5)
    queries = np.asarray(unit(jnp.asarray(case["query_features"])))
    devices: Any = SimpleNamespace(
        whole=jnp.asarray,
        row_multiple=lambda: 1,
        map_rows=lambda function, rows, *rest: jax.device_get(function(*rows, *rest)),
    )
    depth = int(case["top_k"])
    scorer = DocumentScorer(documents, score=SPHERE.score, encoder=devices, chunk=2)
    found, scores = scorer.best(queries, depth)
    np.testing.assert_array_equal(found, case["topk_doc_index"])
    np.testing.assert_allclose(scores, case["topk_scores"], atol=1e-5)


BEIR = {"beir_ndcg": "nDCG", "beir_map": "MAP", "beir_recall": "R", "beir_precision": "P"}


@pytest.mark.golden("gcl", "score_to_weight.npz")
def test_score_to_weight(case: Case) -> None:
    """Eqs. 1 to 3 for two best scores."""
    names = ("linear", "inverse", "inverse_sqrt", "piecewise")
    assert set(case) == {
        *(f"{name}{end}" for name in (*names, "scores", "s_max") for end in ("", "_b")),
        "constant", "constant_c",
    }  # fmt: skip
    for end in ("", "_b"):
        for name in names:
            labels = PairLabels(score="score", weight=name, s_max=float(case[f"s_max{end}"]))
            ours = make_weight(labels)(case[f"scores{end}"])
            np.testing.assert_allclose(ours, case[f"{name}{end}"], rtol=1e-12, err_msg=name)
    level = float(case["constant_c"])
    flat = ((0.0, level), (float(case["s_max"]), level))
    labels = PairLabels(score="score", weight="table", table=flat, s_max=float(case["s_max"]))
    np.testing.assert_array_equal(make_weight(labels)(case["scores"]), case["constant"])
    ours = make_weight(PairLabels(score="score"))(case["scores"])
    np.testing.assert_array_equal(ours, case["constant"] / case["constant_c"])


def run_relevance(case: Case, trec_ties: bool) -> np.ndarray:
    """The relevance of a run in rank order, [Q, depth]."""
    found = relevance_of(case["run_docs"], case["qrel_docs"], case["qrel_rels"])
    scores = np.where(case["run_docs"] < 0, -np.inf, case["run_scores"])
    names = np.array([[f"d{doc:04d}" for doc in row] for row in case["run_docs"]])
    places = order(scores, found, names if trec_ties else "given")
    return np.take_along_axis(found, places, axis=1)


@pytest.mark.golden("gcl", "metrics_*.npz")
def test_metrics(case: Case) -> None:
    """Every metric of every query and every mean, ties as the reference breaks them."""
    ks, missing, compared = case["ks"].tolist(), case["run_missing"], set()
    judged = np.where(case["qrel_docs"] >= 0, case["qrel_rels"], 0)
    np.testing.assert_array_equal(missing, (case["run_docs"] < 0).all(axis=1))
    assert np.isnan(case["run_scores"][case["run_docs"] < 0]).all()

    stable = run_relevance(case, trec_ties=False)
    names = {"err": "ERR", "rbp7": "RBP@0.7", "rbp8": "RBP@0.8", "rbp9": "RBP@0.9"}
    ours = graded_metrics(stable, judged, list(names.values()))
    means = mean_metrics(ours, ~missing)
    for theirs, name in names.items():
        np.testing.assert_allclose(ours[name], case[f"{theirs}_per_query"], rtol=1e-9)
        np.testing.assert_allclose(means[name], case[f"mean_{theirs}"], rtol=1e-9)
        compared |= {f"{theirs}_per_query", f"mean_{theirs}"}
    linear = graded_metrics(stable, judged, ["ERR"], "linear")["ERR"]
    np.testing.assert_allclose(linear, case["err_paper_text_per_query"], rtol=1e-9)

    trec, over_run = run_relevance(case, trec_ties=True), ~missing
    ours = graded_metrics(trec, judged, [f"{name}@{k}" for name in BEIR.values() for k in ks])
    mrr = graded_metrics(stable, judged, [f"MRR@{k}" for k in ks])
    means = mean_metrics(ours, over_run, "run") | mean_metrics(mrr, over_run)
    per_query = np.stack([ours[f"nDCG@{k}"] for k in ks], axis=1)  # [Q, K]
    expected = case["ndcg_per_query"]
    np.testing.assert_array_equal(np.isnan(expected).all(axis=1), missing)
    np.testing.assert_allclose(per_query[~missing], expected[~missing], rtol=1e-9, atol=1e-12)
    for theirs, name in (BEIR | {"beir_mrr": "MRR"}).items():
        found = [means[f"{name}@{k}"] for k in ks]
        np.testing.assert_allclose(found, case[theirs], atol=1e-5, err_msg=theirs)
    inputs = {"qrel_docs", "qrel_rels", "run_docs", "run_scores", "run_missing", "ks"}
    outputs = {*BEIR, "beir_mrr", "ndcg_per_query", "err_paper_text_per_query"}
    assert set(case) == compared | inputs | outputs
