"""The loss of VDR: block by block, on meshes, in slices, with padding: always the same.

Values are compared with the reference implementation in tests/golden/test_vdr.py; here with a dense
form in float64.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval.config import TermMask, Vdr
from big_retrieval.losses import blockwise, pairwise
from big_retrieval.losses.pairwise import Execution, Negatives, PairBatch
from big_retrieval.losses.vdr import vdr_loss
from big_retrieval.similarity import Inner
from big_retrieval.sparse import gate, sharded
from big_retrieval.sparse.sharded import term_axis
from big_retrieval.train.microbatch import in_slices
from tests.arrays import assert_trees_close, device_mesh

ROWS, EXTRA, WIDTH, WORDS, TOP = 16, 2, 61, 5, 6
VALID = np.arange(ROWS) % 7 != 4
NEGATIVES_VALID = np.arange(ROWS * EXTRA).reshape(ROWS, EXTRA) % 5 != 2
KINDS = {
    "paper": Vdr(top_k=TOP),
    "no bag": Vdr(top_k=TOP, bag=False),
    "mask": Vdr(top_k=TOP, mask=TermMask("gated", "gate")),
    "normed": Vdr(top_k=TOP, bag_norm=True, directions="query", reduction="mean"),
    "code": Vdr(
        top_k=TOP, symmetric=True, top_k_document=9, mask=TermMask("both", "bag", 0.5, True)
    ),
    "all": Vdr(top_k=None, symmetric=True, bag=False),
}
# Devices along data, fsdp and tensor, exchange, block, rows of a slice.
TERMS = ("gated", "bag")
FORMS = {
    "blocks": (None, "auto", 5, None),
    "slices": (None, "auto", 5, 4),
    "ring-2": ((2, 1, 1), "ring", 3, None),
    "slices-8": ((4, 2, 1), "gather", 5, 8),
    "ring-8": ((4, 2, 1), "ring", 2, None),
    "columns-2": ((1, 1, 2), "auto", 5, None),
    "columns-8": ((2, 1, 4), "gather", 3, 8),
    "columns-ring-8": ((2, 2, 2), "ring", 3, None),
}
QUICK = {
    ("paper", "blocks"),
    ("code", "blocks"),
    ("code", "ring-8"),
    ("paper", "columns-8"),
}
CASES = [  # every second pair: each kind in half of the forms, each form with half of the kinds
    pytest.param(kind, form, marks=() if (kind, form) in QUICK else pytest.mark.slow)
    for i, kind in enumerate(KINDS)
    for j, form in enumerate(FORMS)
    if (i + j) % 2 == 0 or (kind, form) in QUICK
]


def arrays() -> dict[str, Any]:
    """Inputs of a tiny lexical tower: positive representations need no more than an exponential."""
    rng = np.random.default_rng(0)
    return {
        "query": rng.normal(size=(ROWS, WIDTH)),
        "document": rng.normal(size=(ROWS, WIDTH)),
        "negatives": rng.normal(size=(ROWS, EXTRA, WIDTH)),
        "kernel": np.eye(WIDTH) + rng.normal(size=(WIDTH, WIDTH)) / 10,
        "scale": np.asarray(0.7),
    }


def bow() -> dict[str, np.ndarray]:
    """Columns of words, some twice, some none, of rows of all three kinds."""
    rng = np.random.default_rng(1)
    shapes = {"query": (ROWS,), "document": (ROWS,), "negatives": (ROWS, EXTRA)}
    return {
        name: rng.integers(-1, WIDTH, (*shape, WORDS)).astype(np.int32)
        for name, shape in shapes.items()
    }


def loss(x: Any, terms: Any, config: Vdr, execution: Execution, microbatch: int | None) -> Any:
    def encode(kernel: Any, _: None, rows: Any) -> Any:
        return jax.tree.map(lambda y: jnp.exp(y @ kernel), rows), {}

    rows = {name: x[name] for name in terms}
    dense, _ = in_slices(encode, x["kernel"], None, rows, microbatch, has_common=False)
    pairs = PairBatch(
        dense["query"][:, None], dense["document"][:, None], Inner(), x["scale"],
        valid=jnp.asarray(VALID), execution=execution,
        negatives=Negatives(dense["negatives"][:, :, None], jnp.asarray(NEGATIVES_VALID)),
    )  # fmt: skip
    return vdr_loss(config, pairs, terms)[0]


def dense_loss(x: Any, terms: Any, config: Vdr) -> Any:
    """From the matrices of each term, over the whole matrix of scores."""
    embeddings = {name: jnp.exp(x[name] @ x["kernel"]).reshape(-1, WIDTH) for name in terms}
    documents = jnp.concatenate([embeddings["document"], embeddings["negatives"]])
    their_bow = np.concatenate([terms["document"], terms["negatives"].reshape(-1, WORDS)])
    operands = matrices(config, embeddings["query"], terms["query"], documents, their_bow)
    kept = jnp.asarray(VALID)
    total = 0.0
    for query, both in operands:
        columns_kept = jnp.concatenate([kept, (kept[:, None] & NEGATIVES_VALID).reshape(-1)])
        scores = x["scale"] * (query @ both.T)
        scores = jnp.where(columns_kept[None, :], scores, -jnp.inf)
        positive = jnp.diagonal(scores[:, :ROWS])
        by_row = jax.nn.logsumexp(scores, axis=1) - positive
        by_column = (
            jax.nn.logsumexp(jnp.where(kept[:, None], scores[:, :ROWS], -jnp.inf), axis=0)
            - positive
        )
        both_ways = by_row if config.directions == "query" else by_row + by_column
        total += jnp.sum(jnp.where(kept, both_ways, 0)) / jnp.sum(kept)
    if config.reduction == "mean":
        total /= len(operands) * (1 if config.directions == "query" else 2)
    return total


def matrices(
    config: Vdr, query: Any, bow: np.ndarray, documents: Any, their_bow: np.ndarray
) -> list[tuple[Any, Any]]:
    """Queries [B, V] and documents [N, V] of each term, by the definitions of the paper."""
    bag, their_bag = (sown(each) for each in (bow, their_bow))
    gate_of_query = bag | strongest(query, config.top_k)
    mask = config.mask
    active = (gate_of_query if mask.source == "gate" else bag).any(axis=0)
    masked = {where: shared_out(active, ROWS, mask.apply in (where, "both")) for where in TERMS}
    own = {where: jnp.pad(each, ((0, ROWS * EXTRA), (0, 0))) for where, each in masked.items()}
    out = [(jnp.where(gate_of_query | masked["gated"], query, 0), documents * ~own["gated"])]
    if config.bag:
        entry = weighed(config, bag, masked["bag"])
        out.append((entry, documents * ~own["bag"]))
    if config.symmetric:
        gated = their_bag | strongest(documents, config.top_k_of_documents)
        out.append((query, jnp.where(gated, documents, 0)))
    if config.symmetric and config.bag:
        active = their_bag.any(axis=0)
        masked = shared_out(active, len(their_bag), mask.apply in ("bag", "both"))
        out.append((query * ~masked[:ROWS], weighed(config, their_bag, masked)))
    return out


def sown(bow: np.ndarray) -> np.ndarray:
    """bool [n, V] of columns [n, L], -1 for none."""
    return (bow[:, :, None] == np.arange(WIDTH)).any(axis=1)


def strongest(embeddings: Any, top_k: int | None) -> Any:
    order = jnp.argsort(jnp.argsort(-jax.lax.stop_gradient(embeddings), axis=1), axis=1)
    return order < (WIDTH if top_k is None else top_k)


def shared_out(active: Any, rows: int, present: bool) -> Any:
    turns = np.arange(WIDTH)[None, :] % rows == np.arange(rows)[:, None]
    return turns & ~active & present


def weighed(config: Vdr, bag: np.ndarray, share: Any) -> Any:
    """Bags of words and, beside them, the columns of the mask."""
    norms = jnp.sqrt(jnp.maximum(bag.sum(axis=1, keepdims=True), 1)) if config.bag_norm else 1
    theirs = jnp.sqrt(jnp.maximum(share.sum(axis=1, keepdims=True), 1))
    return bag / norms + config.mask.weight * share / (theirs if config.mask.normalise else 1)


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_vdr_loss_and_gradients_equal_dense_form(kind: str, form: str) -> None:
    x, terms, config = arrays(), bow(), KINDS[kind]
    with jax.enable_x64(True):
        expected = jax.device_get(
            jax.jit(jax.value_and_grad(lambda x: dense_loss(x, terms, config)))(
                jax.tree.map(jnp.asarray, x)
            )
        )
    single = jax.tree.map(lambda y: jnp.asarray(y, jnp.float32), x)
    found = run(single, terms, config, *FORMS[form])
    assert_trees_close(found, expected)


@pytest.mark.parametrize(("kind", "form"), [("mask", "blocks"), ("paper", "columns-8")])
def test_products_of_tpus_change_nothing(
    kind: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = jax.tree.map(lambda y: jnp.asarray(y, jnp.float32), arrays())
    expected = run(x, bow(), KINDS[kind], *FORMS[form])
    for module in (blockwise, gate, pairwise, sharded):
        monkeypatch.setattr(module, "traced_platform", lambda: "tpu")
    got = run(x, bow(), KINDS[kind], *FORMS[form])
    assert_trees_close(got, expected, share=2e-6)


def run(
    x: Any, terms: Any, config: Vdr, shape: Any, exchange: Any, block: int, slices: int | None
) -> Any:
    """Value and gradients in one form of computation."""

    def value(x: Any, terms: Any) -> Any:
        return loss(x, terms, config, Execution(exchange, block, term_axis()), slices)

    if shape is None:
        return jax.jit(jax.value_and_grad(value))(x, terms)
    mesh = device_mesh(*shape)
    rows = NamedSharding(mesh, P(("data", "fsdp")))

    def place(y: Any) -> Any:
        sharded = y.ndim and y.shape[0] == ROWS
        return jax.device_put(y, rows if sharded else NamedSharding(mesh, P()))

    with jax.set_mesh(mesh):
        return jax.device_get(
            jax.jit(jax.value_and_grad(value))(jax.tree.map(place, x), jax.tree.map(place, terms))
        )


def test_queries_are_sent_as_sparse_rows() -> None:
    """No device receives, or holds, the dense queries of the others."""
    rows, width, top_k, length = 64, 4096, 16, 8
    config = Vdr(top_k=top_k)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    sharded = NamedSharding(mesh, P("data"))
    embeddings = jax.ShapeDtypeStruct((rows, width), jnp.float32, sharding=sharded)
    terms = jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=sharded)

    def value(q: Any, p: Any, bow: Any) -> Any:
        pairs = PairBatch(q[:, None], p[:, None], Inner(), execution=Execution("gather", block=8))
        return vdr_loss(config, pairs, {"query": bow})[0]

    with jax.set_mesh(mesh):
        program = jax.jit(jax.value_and_grad(value, (0, 1))).lower(embeddings, embeddings, terms)
        text = program.compile().as_text()
    assert text is not None
    assert f"f32[{rows},{top_k + length}]" in text  # gathered
    for line in text.splitlines():
        gathers = any(word in line for word in ("all-gather(", "all-to-all(", "all-reduce("))
        assert not (gathers and f",{width}]" in line.split(" = ")[-1].split("(")[0]), line


def test_mask_needs_inactive_terms() -> None:
    """Where every column is active there is nothing to share out, and the loss is the plain one."""
    x, terms = arrays(), bow()
    wide = Vdr(top_k=WIDTH, mask=TermMask("gated", "gate"))
    plain = Vdr(top_k=WIDTH)
    single = jax.tree.map(lambda y: jnp.asarray(y, jnp.float32), x)
    values = [
        jax.jit(lambda x, config=config: loss(x, terms, config, Execution(), None))(single)
        for config in (wide, plain)
    ]
    assert values[0] == values[1]
