"""Plans of residual networks."""

import dataclasses
from typing import Any

import jax

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.config import recipe
from big_retrieval.plan import cost, fit
from big_retrieval.train.build import BuiltModel, build_model
from tests.helpers import tiny


def parts_of(tower: Any = None, devices: int = 1, **changes: Any) -> BuiltModel:
    image = recipe.entry(configs.ResNet(), **{"stem": 16, "blocks": (2, 1), **(tower or {})})
    config = tiny(
        **{"batch_size": 64, "towers__image": image, "towers__text__class_tokens": 1, **changes}
    )
    mesh = parallel.make_mesh(config, jax.devices()[:devices])
    return build_model(config, mesh, vocab_size=128, total_steps=10)


def test_resnet_operations() -> None:
    parts = parts_of()
    found = cost.flops(parts.config, 128)
    assert found["towers"] == 3 * 64 * parts.model.forward_flops()
    assert found["recomputation"] == 0
    again = cost.flops(parts_of({"remat": "block"}).config, 128)["recomputation"]
    stem, head = 2 * 16 * 16 * 7 * 7 * 3 * 16, 2 * 128 * 4
    assert again == 64 * (parts.model.field_flops("image") - stem - head)


def full(batch: int, **changes: Any) -> configs.Config:
    config = tiny(
        batch_size=batch,
        dtype="bfloat16",
        towers__image=recipe.resnet(50),
        towers__text__class_tokens=1,
        fields__image__size=224,
    )
    image: Any = config.towers["image"]
    towers = {**config.towers, "image": dataclasses.replace(image, **changes)}
    return dataclasses.replace(config, towers=towers)


def test_micro_batches_train_the_same() -> None:
    assert list(fit.micro_batches(full(64), 16)) == [64]
    assert list(fit.micro_batches(full(64, batch_stats="slice"), 16)) == [64]
    assert list(fit.micro_batches(full(64, frozen_stats=True), 16)) == [64, 32, 16]
