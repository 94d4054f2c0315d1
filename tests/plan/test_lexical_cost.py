"""What the losses of lexical models send and compute, by formulas and as compiled."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval import config as configs
from big_retrieval.batch import Reps
from big_retrieval.config import Config, Contrastive, Sparsity, TermMask, Vdr, recipe
from big_retrieval.losses.objective import make_objective
from big_retrieval.plan import cost, hlo, loss_cost
from big_retrieval.plan.vocabulary import with_words
from big_retrieval.train.build import BuiltModel
from big_retrieval.train.step import abstract_batch, compile_step
from tests.helpers import lexical_texts
from tests.plan.test_memory import sized

ROWS, WIDTH, LENGTH, TOP = 64, 2000, 20, 16


def lexical(loss: Any, devices: int = 8, **changes: Any) -> tuple[BuiltModel, Config]:
    """Parts of two texts, and the config with the size of their vocabulary.

    An own kernel: the compiler reduces both gradients of a tied word table, the formulas the sum.
    """
    texts = lexical_texts(transform="none", use_bias=False, activation="elu1p", tied=False)
    parts = sized(
        devices,
        vocab_size=WIDTH,
        losses__main=recipe.entry(loss),
        **{**texts, "batch_size": ROWS, **changes},
    )
    return parts, with_words(parts.config, WIDTH)


MASK = TermMask("gated", "gate")
CODE = TermMask("both", "bag", 0.5, True)
LOSSES = {
    "paper": Vdr(top_k=TOP),
    "ring": Vdr(top_k=TOP, exchange="ring"),
    "mask": Vdr(top_k=TOP, mask=MASK),
    "four terms": Vdr(top_k=TOP, symmetric=True),
    "code": Vdr(top_k=TOP, symmetric=True, mask=CODE),
    "wide": Vdr(top_k=WIDTH // 2),
    "splade": Contrastive(sparsity=Sparsity(query=1e-3, document=1e-3)),
}


def test_by_hand() -> None:
    """Values and columns go there, values come back; bags have no gradient."""
    gated, bag, dense = 4 * (TOP + LENGTH), 4 * LENGTH, 4 * WIDTH
    share = 4 * -(-WIDTH // ROWS)  # of the mask
    expected = {
        "paper": (2 * gated + 2 * bag, gated),
        "mask": (2 * (gated + share) + 2 * bag, gated + share),
        "four terms": (2 * gated + 2 * bag + dense, gated + 2 * dense),
        "code": (2 * (gated + share) + 2 * (bag + share) + 2 * dense, gated + share + 2 * dense),
        "wide": (dense + 2 * bag, dense),
        "splade": (dense, dense),
    }
    for name, (forward, back) in expected.items():
        found = loss_cost.loss_wire(lexical(LOSSES[name])[1], 8)
        assert found["all-gather"] == ROWS * forward * 7 / 8, name
        assert found["reduce-scatter"] == ROWS * back * 7 / 8, name
        assert "collective-permute" not in found
    found = loss_cost.loss_wire(lexical(LOSSES["ring"])[1], 8)
    assert found["collective-permute"] == ROWS * (5 * gated + 4 * bag)
    assert found.keys() == {"collective-permute", "all-reduce"}
    assert loss_cost.loss_wire(lexical(LOSSES["paper"])[1], 1) == {}


def test_each_term_chooses_how_it_is_sent() -> None:
    """Dense queries of a large batch go around a ring, their sparse ones are gathered."""
    config = dataclasses.replace(lexical(LOSSES["four terms"])[1], batch_size=2**17)
    under_way, gathered = loss_cost.costs(config)[0].split()
    assert [each.name for each in under_way] == ["query", "query"]
    assert [each.name for each in gathered] == ["gated", "bag"]
    assert loss_cost.exchange_mode(config) == "ring"
    paper = dataclasses.replace(lexical(LOSSES["paper"])[1], batch_size=2**17)
    assert loss_cost.exchange_mode(paper) == "gather"
    assert loss_cost.loss(paper, 8, "gpu") < loss_cost.loss(config, 8, "gpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_wire_agrees_with_the_compiled_program(name: str) -> None:
    parts, config = lexical(LOSSES[name])
    batch = abstract_batch(parts.config, parts.mesh)
    program = compile_step(parts.step, parts.abstract, batch, parts.mesh)
    found = hlo.by_kind(hlo.collectives(program.as_text() or ""))
    formula = cost.wire_bytes(parts, config)
    for kind in formula:  # statistics, a few numbers a row, are in none of the formulas
        assert found[kind] == pytest.approx(formula[kind], rel=0.03, abs=4000), kind
    assert sum(found.values()) == pytest.approx(sum(formula.values()), rel=0.02)


@pytest.mark.parametrize(
    "name",
    [name if name == "code" else pytest.param(name, marks=pytest.mark.slow) for name in LOSSES],
)
def test_columns_on_the_tensor_axis(name: str) -> None:
    """The loss by itself sends what the formulas say, and no device has all columns of a row."""
    loss = dataclasses.replace(LOSSES[name], block=16)  # of one block, scores are summed once only
    parts, config = lexical(loss, mesh__data=2, mesh__tensor=4)
    objective, batch = make_objective(config), abstract_batch(config, parts.mesh)
    rows = NamedSharding(parts.mesh, P("data"))
    columns = NamedSharding(parts.mesh, P("data", None, "tensor"))
    embeddings = jax.ShapeDtypeStruct((ROWS, 1, WIDTH), jnp.float32, sharding=columns)
    bow = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32, sharding=rows)

    def value(embeddings: Any, bow: Any, batch: Any) -> Any:
        return objective(Reps(embeddings, bow), batch, objective.scalars())

    with jax.set_mesh(parts.mesh):
        step = jax.jit(jax.value_and_grad(value, has_aux=True))
        names = ("query", "document")
        program = step.lower(dict.fromkeys(names, embeddings), dict.fromkeys(names, bow), batch)
        text = program.compile().as_text() or ""
    found, formula = hlo.by_kind(hlo.collectives(text)), loss_cost.loss_wire(config, 2, 4)
    for kind in formula:
        assert found[kind] == pytest.approx(formula[kind], rel=0.04, abs=4000), kind
    assert sum(found.values()) == pytest.approx(sum(formula.values()), rel=0.03, abs=6000)
    if name != "wide":  # whose gate asks every device for all that it has
        assert not re.findall(rf"f32\[\d+(?:,1)?,{WIDTH}\]", text)


def test_hard_negatives_are_encoded_and_scored() -> None:
    """K = 3 more documents a row, for the document's tower and for every query."""
    pairs = {"data": recipe.entry(configs.Pairs(), path="pairs.jsonl", image="")}
    _, without = lexical(LOSSES["paper"], 1, **pairs)
    parts, config = lexical(LOSSES["paper"], 1, **pairs, negatives__count=3)
    plain, found = cost.flops(without, WIDTH), cost.flops(config, WIDTH)
    assert found["loss"] == 4 * plain["loss"] == 2 * 4 * 2 * ROWS**2 * 4 * WIDTH
    assert found["towers"] == plain["towers"] * (1 + 4) / 2  # both towers are alike
    sliced = cost.flops(dataclasses.replace(config, microbatch=16), WIDTH)
    assert sliced["recomputation"] == ROWS * parts.model.forward_flops() * (1 + 4) / 2
