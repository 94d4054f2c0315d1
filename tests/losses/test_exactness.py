"""Every loss, topology, form of computation and number of devices against a dense reference.

The reference is written from the definitions over all [B, B (1 + K)] scores in float64, and
differentiated by JAX; everything else runs in float32. Two rows of the batch are padding.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval.config.topologies import Topology
from big_retrieval.losses.contrastive import contrastive_loss, sigmoid_loss
from big_retrieval.losses.pairwise import Execution, Negatives, PairBatch
from big_retrieval.similarity import TOPOLOGIES, Inner
from big_retrieval.train.microbatch import in_slices
from tests.arrays import assert_trees_close, device_mesh

ROWS, EXTRA, WIDTH = 24, 2, 10  # 24 = 8 devices x 3 rows
TOP: dict[str, Topology] = {**TOPOLOGIES, "lexical": Inner()}
VALID = np.arange(ROWS) % 11 != 4
QUERY_PRESENT, DOCUMENT_PRESENT = np.arange(ROWS) % 7 != 3, np.arange(ROWS) % 5 != 1
NEGATIVES_VALID = np.arange(ROWS * EXTRA).reshape(ROWS, EXTRA) % 5 != 2


class Kind(NamedTuple):
    """Settings of a loss."""

    sigmoid: bool = False
    weighted: bool = False
    negatives: bool = False
    false_negatives: Any = "keep"
    absent: bool = False  # some queries and documents are missing
    rows: bool = False  # divided by the number of rows
    inside: bool = False  # weights inside of the sigmoid
    several: bool = False  # rows have further relevant queries and documents


KINDS = {
    "softmax": Kind(),
    "weighted": Kind(weighted=True),
    "negatives": Kind(negatives=True),
    "mask": Kind(false_negatives="mask"),
    "positives": Kind(false_negatives="positives"),
    "all": Kind(False, True, True, "positives"),
    "sigmoid": Kind(sigmoid=True),
    "sigmoid_all": Kind(True, True, True, "positives"),
    "sigmoid_mask": Kind(True, True, True, "mask"),
    "absent": Kind(weighted=True, negatives=True, absent=True, rows=True),
    "absent_positives": Kind(False, True, True, "positives", absent=True),
    "inside": Kind(sigmoid=True, weighted=True, inside=True, false_negatives="positives"),
    "sigmoid_absent": Kind(sigmoid=True, weighted=True, absent=True, inside=True),
    "several": Kind(negatives=True, false_negatives="mask", several=True),
    "several_positives": Kind(False, True, True, "positives", several=True),
    "sigmoid_several": Kind(True, True, True, "mask", several=True),
}


LATER = (
    "sigmoid_mask",
    "absent_positives",
    "sigmoid_absent",
    "several_positives",
    "sigmoid_several",
)  # in slow tests only


class Form(NamedTuple):
    """Form of the computation; 0 devices for no mesh."""

    devices: int
    exchange: Any = "auto"
    block: int = 5  # divides nothing here
    microbatch: int | None = None


FORMS = {
    "plain-0": Form(0, block=1000),
    "blockwise-0": Form(0),
    "gather-1": Form(1, "gather"),
    "gather-2": Form(2, "gather"),
    "gather-4": Form(4, "gather"),
    "gather-8": Form(8, "gather", 7),
    "ring-2": Form(2, "ring"),
    "ring-4": Form(4, "ring"),
    "ring-8": Form(8, "ring", 2),
    "micro-0": Form(0, "gather", 7, 6),
    "micro-2": Form(2, "gather", 7, 8),
    "micro-4": Form(4, "ring", 4, 12),
    "micro-8": Form(8, "gather", 5, 8),
}
MESHES = {1: (1, 1, 1), 2: (2, 1, 1), 4: (2, 2, 1), 8: (4, 2, 1)}

PAIRS = [
    (kind, name)
    for kind in KINDS
    for name in TOP
    if not KINDS[kind].several or name in ("oblique", "lexical")
]


def cases() -> list[Any]:
    """Three forms of each loss and topology, in turn; one of every fifth pair in quick tests.

    Every loss meets every form, every topology every form, and every loss every topology.
    """
    forms, out = list(FORMS), []
    for number, (kind, name) in enumerate(PAIRS):
        row, column = divmod(number, len(TOP))
        skipped = kind in LATER or (row + column) % 5
        for later, step in enumerate((0, 5, 10)):
            form = forms[(number + step) % len(forms)]
            marks = [pytest.mark.slow] if later or skipped else []
            out.append(pytest.param(kind, name, form, marks=marks, id=f"{kind}-{name}-{form}"))
    return out


def arrays(seed: int) -> dict[str, Any]:
    """Inputs of a tiny tower, its parameters, scale and bias."""
    rng = np.random.default_rng(seed)
    query = rng.normal(size=(ROWS, WIDTH))
    return {
        "query": query,
        "document": query + 0.7 * rng.normal(size=query.shape),
        "negatives": rng.normal(size=(ROWS, EXTRA, WIDTH)),
        "kernel": rng.normal(size=(WIDTH, 12)) / 3,
        "t": np.asarray(2.0),  # where no case has a gradient near 0, which no float32 resolves
        "bias": np.asarray(-2.0),
        "probe_query": np.zeros((ROWS, 12)),  # their gradients are those of the embeddings
        "probe_document": np.zeros((ROWS, 12)),
    }


def labels(seed: int) -> dict[str, np.ndarray]:
    """Weights and ids; some queries and documents occur two or three times."""
    rng = np.random.default_rng(seed)
    document_id = rng.integers(0, 18, ROWS).astype(np.int32)
    return {
        "weight": rng.uniform(0.2, 3.0, ROWS).astype(np.float32),
        "query_id": np.where(rng.random(ROWS) < 0.2, -1, rng.integers(0, 18, ROWS)).astype(
            np.int32
        ),
        "document_id": document_id,
        "negatives_id": rng.integers(0, 40, (ROWS, EXTRA)).astype(np.int32),
        "more_queries": rng.integers(-6, 18, (ROWS, 2)).astype(np.int32),
        "more_documents": rng.integers(-6, 18, (ROWS, 1)).astype(np.int32),
    }


def several(ids: Any, more: Any, kind: Kind) -> Any:
    """Returns ids of rows, [B], or followed by further ids, [B, K]."""
    concatenate = np.concatenate if isinstance(ids, np.ndarray) else jnp.concatenate
    return concatenate([ids[:, None], more], axis=1) if kind.several else ids


def embeddings(name: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The tower: [..., WIDTH] -> embeddings [..., 3, 4], or lexical ones [..., 1, 12]."""
    raw = jnp.tanh(x @ kernel)
    shape = (1, 12) if name == "lexical" else (3, 4)
    return TOP[name].project(raw.reshape(*raw.shape[:-1], *shape))


def dense(kind: Kind, name: str, x: dict[str, Any], of: dict[str, np.ndarray]) -> jax.Array:
    """The loss by its definition, without the rows that are padding."""
    rows, extra = np.flatnonzero(VALID), np.flatnonzero((VALID[:, None] & NEGATIVES_VALID).ravel())
    query, document = (embeddings(name, x[side], x["kernel"]) for side in ("query", "document"))
    query = (query + x["probe_query"].reshape(query.shape))[rows]
    document = (document + x["probe_document"].reshape(document.shape))[rows]
    ids = of["document_id"][rows]
    if kind.negatives:
        others = embeddings(name, x["negatives"], x["kernel"])
        others = others.reshape(-1, *others.shape[2:])[extra]
        document = jnp.concatenate([document, others])
        ids = np.concatenate([ids, of["negatives_id"].ravel()[extra]])
    n, m = len(rows), document.shape[0]
    weight = of["weight"][rows].astype(np.float64) if kind.weighted else np.ones(n)
    s = jnp.exp(x["t"]) * TOP[name].score(query, document)  # [n, m]
    positive = np.eye(n, m, dtype=bool)
    queries = of["query_id"][rows]
    same_query = np.zeros((n, m), bool)
    same_query[:, :n] = (queries[:, None] == queries[None, :]) & (queries >= 0)[:, None]
    same_document = ids[:n, None] == ids[None, :]
    for i in range(n if kind.several else 0):
        for j in range(m):
            same_query[i, j] |= (
                j < n and queries[i] in of["more_queries"][rows][j] and (queries[i] >= 0)
            )
            same_document[i, j] |= ids[j] in of["more_documents"][rows][i]
    false_negative = (same_query | same_document) & ~positive & (kind.false_negatives != "keep")
    of_column = np.concatenate([weight, np.zeros(m - n)])
    weights = same_query * of_column[None, :] + same_document * weight[:, None]
    weights = np.where(false_negative, weights / np.maximum(same_query + 1.0 * same_document, 1), 0)
    weights = np.where(positive, weight[:, None], weights)
    counts = ~false_negative if kind.false_negatives == "mask" else np.ones((n, m), bool)
    if kind.absent:
        columns = np.concatenate([DOCUMENT_PRESENT[rows], np.ones(m - n, bool)])
        counts = counts & QUERY_PRESENT[rows][:, None] & columns[None, :]
        weights = weights * counts
    if kind.sigmoid:
        s = s + x["bias"]
        negative = counts & ~false_negative & ~positive
        outer, inner = (weights > 0, weights) if kind.inside else (weights * counts, 1)
        cost = jnp.where(negative, jax.nn.softplus(s), 0) + outer * jax.nn.softplus(-inner * s)
        return jnp.sum(cost) / n
    target = np.where(positive, weight[:, None], 0) if kind.false_negatives == "mask" else weights
    whole = np.diagonal(counts)  # pairs that are present
    total = n if kind.rows else (weight * whole).sum()
    weight = weight * whole

    def entropy(s: jax.Array, target: np.ndarray, counts: np.ndarray) -> jax.Array:
        counts = np.where(whole[:, None], counts, True)  # else nothing is left to be normalised
        log_p = s - jax.nn.logsumexp(jnp.where(counts, s, -jnp.inf), axis=1, keepdims=True)
        sums = target.sum(1, keepdims=True)
        return -jnp.sum(target / np.where(sums > 0, sums, 1) * log_p, axis=1)

    back = entropy(s[:, :n].T, target[:, :n].T, counts[:, :n].T)
    return jnp.sum(weight * 0.5 * (entropy(s, target, counts) + back)) / total


def computed(
    kind: Kind, name: str, form: Form, feature_axis: str | None, x: dict[str, Any],
    of: dict[str, jax.Array],
) -> jax.Array:  # fmt: skip
    """Returns the loss of the package."""

    def encode(
        kernel: jax.Array, _: None, part: dict[str, jax.Array]
    ) -> tuple[dict[str, jax.Array], None]:
        return {side: embeddings(name, inputs, kernel) for side, inputs in part.items()}, None

    inputs = {side: x[side] for side in ("query", "document", "negatives")}
    reps, _ = in_slices(encode, x["kernel"], None, inputs, form.microbatch, has_common=False)
    query = reps["query"] + x["probe_query"].reshape(reps["query"].shape)
    document = reps["document"] + x["probe_document"].reshape(reps["document"].shape)
    common: dict[str, Any] = {
        "topology": TOP[name],
        "logit_scale": jnp.exp(x["t"]),
        "weight": of["weight"] if kind.weighted else None,
        "valid": of["valid"],
        "query_id": several(of["query_id"], of["more_queries"], kind),
        "document_id": several(of["document_id"], of["more_documents"], kind),
        "false_negatives": kind.false_negatives,
        "execution": Execution(form.exchange, form.block, feature_axis),
    }
    if kind.negatives:
        extra = Negatives(reps["negatives"], of["negatives_valid"], of["negatives_id"])
        common["negatives"] = extra
    if kind.absent:
        common["present"] = of["query_present"], of["document_present"]
    if kind.sigmoid:
        pairs = PairBatch(query, document, bias=x["bias"], **common)
        return sigmoid_loss(pairs, kind.inside)[0]
    pairs = PairBatch(query, document, **common)
    return contrastive_loss(pairs, "rows" if kind.rows else "weights")[0]


@functools.cache
def reference(kind: Kind, name: str) -> Any:
    """Value and gradients of the dense form, in float64."""
    with jax.enable_x64(True):
        x, of = jax.tree.map(jnp.asarray, arrays(3)), labels(4)
        return jax.device_get(jax.jit(jax.value_and_grad(lambda x: dense(kind, name, x, of)))(x))


@pytest.mark.parametrize(("kind", "name", "form"), cases())
def test_loss_and_gradients_equal_the_dense_form(kind: str, name: str, form: str) -> None:
    check(KINDS[kind], name, FORMS[form], MESHES.get(FORMS[form].devices), None)


@pytest.mark.parametrize(
    "kind",
    ["all", *(pytest.param(x, marks=pytest.mark.slow) for x in ("softmax", "sigmoid_all"))],
)
@pytest.mark.parametrize("exchange", ["gather", "ring"])
def test_vocabulary_sharded_over_the_tensor_axis_equals_the_dense_form(
    kind: str, exchange: str
) -> None:
    check(KINDS[kind], "lexical", Form(8, exchange), (2, 1, 4), "tensor")


def check(
    kind: Kind, name: str, form: Form, shape: tuple[int, ...] | None, feature_axis: str | None
) -> None:
    x, of = arrays(3), labels(4)
    expected = reference(kind, name)
    single = jax.tree.map(np.float32, x)
    given: dict[str, Any] = {
        **of,
        "valid": VALID,
        "negatives_valid": NEGATIVES_VALID,
        "query_present": QUERY_PRESENT,
        "document_present": DOCUMENT_PRESENT,
    }
    run = jax.jit(jax.value_and_grad(lambda x, of: computed(kind, name, form, feature_axis, x, of)))
    if shape is None:
        value, grads = jax.device_get(run(single, given))
    else:
        mesh = device_mesh(*shape)

        def place(tree: dict[str, Any]) -> dict[str, Any]:
            sharded = NamedSharding(mesh, P(("data", "fsdp")))
            whole = NamedSharding(mesh, P())
            return {
                key: jax.device_put(a, sharded if a.ndim and len(a) == ROWS else whole)
                for key, a in tree.items()
            }

        with jax.set_mesh(mesh):
            value, grads = jax.device_get(run(place(single), place(given)))
    unused = {"negatives"} if not kind.negatives else set()
    unused |= {"bias"} if not kind.sigmoid else set()
    wanted = {key: np.zeros_like(x) if key in unused else x for key, x in expected[1].items()}
    assert_trees_close((value, grads), (expected[0], wanted))
