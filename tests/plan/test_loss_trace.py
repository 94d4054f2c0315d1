"""What is traced of losses."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.losses.function import Context
from big_retrieval.plan import loss_cost
from big_retrieval.plan.loss_trace import _abstract_reps, peak_bytes, traced_cost
from big_retrieval.train.step import abstract_batch
from tests.examples.helpers import example
from tests.helpers import lexical_texts, tiny


def sized(loss: Any, **changes: Any) -> configs.Config:
    return tiny(batch_size=64, losses__main=recipe.entry(loss), **changes)


def operations(config: configs.Config) -> int:
    return traced_cost(config, "main", 128).operations


def test_operations_by_hand() -> None:
    """Of a contrastive loss: 4 products of all rows, of 2 class tokens of 4 numbers."""
    assert operations(sized(configs.Contrastive(block=16))) == 4 * 2 * 64**2 * 2 * 4


def test_a_wrapped_loss_costs_its_prefixes() -> None:
    config = sized(example("matryoshka").Matryoshka(dims=(4, 2), factors=(1.0, 1.0)))
    assert config.losses["main"].cost(config, 1) is None
    assert operations(config) == 1.5 * operations(sized(configs.Contrastive()))
    assert loss_cost.loss(config, 1, "cpu") > 0


def test_hard_negatives_are_there_as_in_a_step() -> None:
    """Of other numbers of them in one process, too."""
    fields = {
        name: recipe.entry(
            configs.TextField(), side=name, tower="text", length=20, head=configs.Projection(dim=4)
        )
        for name in ("query", "document")
    }
    for count in (0, 3):
        changes = {"fields": fields, "negatives__count": count}
        config = sized(configs.Contrastive(block=16), **changes)
        assert operations(config) == 4 * 2 * 64**2 * (1 + count) * 2 * 4, count


def test_a_decoder_is_counted_with_its_loss() -> None:
    latent = configs.LatentTarget(hidden=8)
    target = recipe.entry(configs.ArrayField(), shape=(6,), generated=True)
    config = sized(latent, fields__target=target)
    found, kept, _ = traced_cost(config, "main", 128)
    inputs = 2 * 4  # class tokens x dimensions of a text
    products = inputs * 8 + 8 * 8 + 8 * 6
    assert found == 64 * 2 * (3 * products)
    assert kept >= 64 * 4 * (8 + 8 + 6)
    words = configs.InputTarget(words=5)  # a GRU of the width of the inputs, and the words
    products = 20 * (3 * inputs * 5 + 3 * inputs * inputs + inputs * 128)
    found, kept, _ = traced_cost(sized(words), "main", 128)
    assert found == 64 * 2 * (3 * products)
    assert kept >= 64 * 4 * 20 * 128


def test_a_decoder_of_a_lexical_field_reads_its_tower() -> None:
    target = recipe.entry(configs.ArrayField(), shape=(6,), generated=True)
    changes = lexical_texts() | {"fields__target": target, "batch_size": 64}
    latent = recipe.entry(configs.LatentTarget(), hidden=8, field="query")
    found = traced_cost(tiny(**changes, losses__latent=latent), "latent", 128).operations
    pooled = 3 * (16 * 8 + 8 * 8 + 8 * 6) + 2 * 20 * 16  # and the mean over 20 positions, twice
    assert found == pytest.approx(64 * 2 * pooled, rel=0.05)


def test_the_fullest_moment_by_hand() -> None:
    def chain(x: Any) -> Any:
        a = x * 2.0  # 400 bytes
        b = jnp.outer(a, a)  # 40,000 beside a
        return b.sum() + a.sum()

    assert peak_bytes(chain, jnp.zeros(100)) == pytest.approx(40_400, rel=0.02)

    def loop(x: Any) -> Any:
        return jax.lax.scan(lambda total, y: (total + jnp.outer(x, x).sum() * y, None), 0.0, x)[0]

    assert peak_bytes(loop, jnp.zeros(100)) == pytest.approx(40_000, rel=0.02)


@pytest.mark.parametrize("rows", [512, 2048])
def test_tiles_of_a_wrapped_loss_are_counted_as_the_compiler_does(rows: int) -> None:
    """What is kept alone would be less than a third of it."""
    matryoshka = example("matryoshka").Matryoshka(dims=(4, 2), factors=(1.0, 1.0))
    config = tiny(batch_size=rows, losses__main=recipe.entry(matryoshka))
    function, reps = config.losses["main"].build(config, "main"), _abstract_reps(config, 128)
    scalars = {key: jax.ShapeDtypeStruct((), jnp.float32) for key in function.scalars()}

    def loss(learned: Any, batch: Any) -> Any:
        embeddings, scalars = learned
        found: Any = reps.replace(embeddings=embeddings, raw=embeddings)  # type: ignore
        return function(Context(found, batch, scalars, 0))[0]

    inputs = (reps.embeddings, scalars), abstract_batch(config, None)
    compiled = jax.jit(jax.value_and_grad(loss)).lower(*inputs).compile().memory_analysis()
    assert compiled is not None
    taken = compiled.temp_size_in_bytes
    assert 0.7 * taken < loss_cost.loss(config, 1, "cpu") < 1.6 * taken
    assert traced_cost(config, "main", 128).kept < taken / 3
