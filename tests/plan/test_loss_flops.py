"""Operations of losses, by tracing."""

from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.plan.loss_flops import loss_flops
from tests.examples.helpers import example
from tests.helpers import lexical_texts, tiny


def sized(loss: Any, **changes: Any) -> configs.Config:
    return tiny(batch_size=64, losses__main=recipe.entry(loss), **changes)


def operations(config: configs.Config) -> int:
    return loss_flops(config, "main", 128)


def test_operations_by_hand() -> None:
    """Of a contrastive loss: 4 products of all rows, of 2 class tokens of 4 numbers."""
    assert operations(sized(configs.Contrastive(block=16))) == 4 * 2 * 64**2 * 2 * 4


def test_a_wrapped_loss_costs_its_prefixes() -> None:
    config = sized(example("matryoshka").Matryoshka(dims=(4, 2), factors=(1.0, 1.0)))
    assert operations(config) == 1.5 * operations(sized(configs.Contrastive()))


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
    found = loss_flops(config, "main", 128)
    inputs = 2 * 4  # class tokens x dimensions of a text
    products = inputs * 8 + 8 * 8 + 8 * 6
    assert found == 64 * 2 * (3 * products)
    words = configs.InputTarget(words=5)  # a GRU of the width of the inputs, and the words
    products = 20 * (3 * inputs * 5 + 3 * inputs * inputs + inputs * 128)
    found = loss_flops(sized(words), "main", 128)
    assert found == 64 * 2 * (3 * products)


def test_a_decoder_of_a_lexical_field_reads_its_tower() -> None:
    target = recipe.entry(configs.ArrayField(), shape=(6,), generated=True)
    changes = lexical_texts() | {"fields__target": target, "batch_size": 64}
    latent = recipe.entry(configs.LatentTarget(), hidden=8, field="query")
    found = loss_flops(tiny(**changes, losses__latent=latent), "latent", 128)
    pooled = 3 * (16 * 8 + 8 * 8 + 8 * 6) + 2 * 20 * 16  # and the mean over 20 positions, twice
    assert found == pytest.approx(64 * 2 * pooled, rel=0.05)
