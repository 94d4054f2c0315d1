"""Operations and traffic of the losses of lexical models."""

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
from big_retrieval.losses.objective import Objective, with_vocabulary
from big_retrieval.plan import cost
from big_retrieval.train.build import BuiltModel
from big_retrieval.train.step import abstract_batch
from tests.helpers import lexical_texts
from tests.plan.test_cost import sized

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
    return parts, with_vocabulary(parts.config, WIDTH)


CODE = TermMask("both", "bag", 0.5, True)
LOSSES = {
    "paper": Vdr(top_k=TOP),
    "ring": Vdr(top_k=TOP, exchange="ring"),
    "code": Vdr(top_k=TOP, symmetric=True, mask=CODE),
    "wide": Vdr(top_k=WIDTH // 2),
    "splade": Contrastive(sparsity=Sparsity(query=1e-3, document=1e-3)),
}


@pytest.mark.parametrize(
    "name",
    [name if name == "code" else pytest.param(name, marks=pytest.mark.slow) for name in LOSSES],
)
def test_no_device_has_all_terms_of_a_row(name: str) -> None:
    # terms are sharded over the tensor axis; only the gate of "wide" needs all terms of a row
    parts, config = lexical(LOSSES[name], mesh__data=2, mesh__tensor=4)
    objective, batch = Objective(config), abstract_batch(config, parts.mesh)
    rows = NamedSharding(parts.mesh, P("data"))
    terms = NamedSharding(parts.mesh, P("data", None, "tensor"))
    embeddings = jax.ShapeDtypeStruct((ROWS, 1, WIDTH), jnp.float32, sharding=terms)
    bow = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32, sharding=rows)

    def value(embeddings: Any, bow: Any, batch: Any) -> Any:
        return objective(Reps(embeddings, bow), batch, objective.scalars())

    with jax.set_mesh(parts.mesh):
        step = jax.jit(jax.value_and_grad(value, has_aux=True))
        names = ("query", "document")
        program = step.lower(dict.fromkeys(names, embeddings), dict.fromkeys(names, bow), batch)
        text = program.compile().as_text() or ""
    assert bool(re.findall(rf"f32\[\d+(?:,1)?,{WIDTH}\]", text)) is (name == "wide")


def test_hard_negatives_operations() -> None:
    pairs = {"data": recipe.entry(configs.Pairs(), path="pairs.jsonl", image="")}
    _, without = lexical(LOSSES["paper"], 1, **pairs)
    parts, config = lexical(LOSSES["paper"], 1, **pairs, negatives__count=3)
    plain, found = cost.flops(without, WIDTH), cost.flops(config, WIDTH)
    assert found["loss"] == 4 * plain["loss"] == 2 * 4 * 2 * ROWS**2 * 4 * WIDTH
    assert found["towers"] == plain["towers"] * (1 + 4) / 2  # both towers are alike
    sliced = cost.flops(dataclasses.replace(config, microbatch=16), WIDTH)
    assert sliced["recomputation"] == ROWS * parts.model.forward_flops() * (1 + 4) / 2
