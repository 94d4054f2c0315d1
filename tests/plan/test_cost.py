import dataclasses
from typing import Any

import pytest

from big_retrieval.plan import cost
from big_retrieval.runtime import chips
from big_retrieval.train.step_figures import step_times
from tests.helpers import lexical_texts
from tests.plan.test_memory import VOCAB, sized


def changed(config: Any, **changes: Any) -> Any:
    return dataclasses.replace(config, **changes)


def test_operations_of_the_towers_are_three_forward_passes() -> None:
    parts = sized()
    found = cost.flops(parts.config, VOCAB)
    assert found["towers"] == 3 * 64 * parts.model.forward_flops()
    assert found["recomputation"] == 0
    assert found["loss"] == 4 * 2 * 64**2 * 2 * 4  # two class tokens of four dimensions


@pytest.mark.slow
def test_what_is_computed_again() -> None:
    parts = sized(tower={"remat": "block"})
    forward = parts.model.forward_flops()
    image, text = parts.config.fields["image"], parts.config.fields["text"]
    patches = (getattr(image, "size") // 8) ** 2  # noqa: B009
    lengths = (patches + 2, getattr(text, "length") + 1)  # noqa: B009
    # Nothing needs the last product of a pre-LN layer again.
    layers = sum(2 * (2 * n * 64 * (4 * 64 + 256) + 4 * n * n * 64) for n in lengths)
    assert cost.flops(parts.config, VOCAB)["recomputation"] == 64 * layers
    sliced = changed(parts.config, microbatch=16)
    assert cost.flops(sliced, VOCAB)["recomputation"] == 64 * (layers + forward)
    whole = changed(parts.config, microbatch=64)
    assert cost.flops(whole, VOCAB) == cost.flops(parts.config, VOCAB)
    dots = sized(tower={"remat": "dots"}).config
    attention = sum(2 * 4 * n * n * 64 for n in lengths)
    assert cost.flops(dots, VOCAB)["recomputation"] == 64 * attention


def test_lexical_heads_are_counted() -> None:
    parts = sized(**lexical_texts())
    layer = 8 * 20 * 16 * 16 + 4 * 20 * 20 * 16 + 4 * 20 * 16 * 32
    head = 2 * 20 * 16 * (16 + VOCAB)
    assert parts.model.forward_flops() == 2 * (layer + head)
    found = cost.flops(parts.config, VOCAB)
    assert found["towers"] == 3 * 64 * 2 * (layer + head)
    assert found["loss"] == 4 * 2 * 64**2 * VOCAB


OPERATIONS = {"towers": 8 * 197 * 10**12, "recomputation": 0, "loss": 0}
PROGRAM = {
    "cycles": 8 * 10**8, "kernel_cycles": 5 * 10**8, "unestimated_cycles": 2 * 10**8,
    "wire_bytes": 4e11, "exposed_wire_bytes": 2e11,
}  # fmt: skip


def test_time_of_tpus_is_cycles_and_exposed_traffic() -> None:
    chip, _ = chips.parse("v5e-8")
    found = step_times(chip, 8, OPERATIONS, PROGRAM)
    assert (found["compute"], found["exposed_wire"], found["step"]) == (1.0, 1.0, 2.0)
    assert (found["mfu"], found["compute_mfu"]) == pytest.approx((0.5, 1.0))
    assert found["wire"] == found["bound"] == pytest.approx(2.0)
    slow = step_times(chip, 8, OPERATIONS, {**PROGRAM, "wire_bytes": 2e12})
    assert slow["step"] == pytest.approx(10.0)  # more traffic than the computation can hide


def test_time_without_cycles_is_only_bounded() -> None:
    chip, _ = chips.parse("h100-8")
    program = {**PROGRAM, "cycles": None, "kernel_cycles": None, "wire_bytes": 9e11}
    found = step_times(chip, 8, OPERATIONS, program)
    assert found["step"] is found["mfu"] is None
    assert found["bound"] == pytest.approx(2.0)
    alone = step_times(chip, 8, OPERATIONS, None)
    assert alone["bound"] == pytest.approx(197 / 989)
    assert set(step_times(chips.cpu(), 8, OPERATIONS, PROGRAM).values()) == {None}
