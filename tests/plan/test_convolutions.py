"""Plans of residual networks: operations exact, memory near to the compiler's accounting."""

import dataclasses
from typing import Any

import jax
import pytest

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.config import recipe
from big_retrieval.plan import cost, memory
from big_retrieval.plan.plan import make
from big_retrieval.train.build import BuiltModel, build_model
from tests.helpers import tiny
from tests.plan.test_memory import compiled
from tests.plan.test_plan import at


def parts_of(tower: Any = None, devices: int = 1, **changes: Any) -> BuiltModel:
    image = recipe.entry(configs.ResNet(), **{"stem": 16, "blocks": (2, 1), **(tower or {})})
    config = tiny(
        **{"batch_size": 64, "towers__image": image, "towers__text__class_tokens": 1, **changes}
    )
    mesh = parallel.make_mesh(config, jax.devices()[:devices])
    return build_model(config, mesh, vocab_size=128, total_steps=10)


def test_operations() -> None:
    parts = parts_of()
    found = cost.flops(parts.config, 128)
    assert found["towers"] == 3 * 64 * parts.model.forward_flops()
    assert found["recomputation"] == 0
    again = cost.flops(parts_of({"remat": "block"}).config, 128)["recomputation"]
    stem, head = 2 * 16 * 16 * 7 * 7 * 3 * 16, 2 * 128 * 4
    assert again == 64 * (parts.model.field_flops("image") - stem - head)


CASES = {
    "basic": {"tower": {"bottleneck": False}},
    "bottleneck": {},
    "eight devices": {"devices": 8, "batch_size": 512},
    "slices": {"tower": {"batch_stats": "slice"}, "batch_size": 256, "microbatch": 64},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_formulas_are_near_the_compiler(case: str) -> None:
    parts = parts_of(**{"batch_size": 256, **CASES[case]})
    found, analysis = memory.per_device(parts, "cpu"), compiled(parts)
    arguments = found["parameters"] + found["optimiser"] + found["batch"]
    assert arguments == pytest.approx(analysis.argument_size_in_bytes, rel=0.01)
    near = 0.15 if CASES[case].get("tower", {}).get("bottleneck", True) else 0.3
    assert found["total"] - arguments == pytest.approx(analysis.temp_size_in_bytes, rel=near)


def test_remat_keeps_less() -> None:
    plain, block = (
        memory.activations(parts_of({"remat": r}), parts_of({"remat": r}).config, "gpu")
        for r in ("none", "block")
    )
    assert block["kept"] < 0.6 * plain["kept"]


def full(batch: int, **changes: Any) -> configs.Config:
    config = tiny(
        batch_size=batch,
        dtype="bfloat16",
        towers__image=recipe.resnet(50),
        towers__text__class_tokens=1,
        fields__image__size=224,
    )
    towers = {**config.towers, "image": dataclasses.replace(config.towers["image"], **changes)}
    return dataclasses.replace(config, towers=towers)


def test_the_published_size() -> None:
    plan = make(full(256), at("h200-1"), compiling=False)
    assert plan["parameter_count"] > 23_508_032
    assert plan["fits"]
    row = plan["activations_formula"]["kept"] / 256 / 2**20
    assert 60 < row < 220  # MiB an image in bfloat16
    assert plan["model_flops_per_step"] > 3 * 256 * 2 * 4.08e9


@pytest.mark.slow
def test_slices_are_proposed_only_where_they_are_the_same_training() -> None:
    whole = make(full(8192), at("h200-1"), compiling=False)
    assert whole["fits"] is False
    change = whole["smallest_change"]
    assert change is None or not any("microbatch" in flag for flag in change["flags"])
    frozen = make(full(8192, frozen_stats=True), at("h200-1"), compiling=False)
    assert any("microbatch" in flag for flag in frozen["smallest_change"]["flags"])
