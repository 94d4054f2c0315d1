import dataclasses
from typing import Any

import pytest

from big_retrieval.plan import cost
from big_retrieval.runtime import chips
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


def test_seconds_are_arithmetic() -> None:
    config = changed(sized().config, dtype="bfloat16")
    chip, _ = chips.parse("h100-8")
    work = {"towers": 8 * 989 * 10**12, "recomputation": 0, "loss": 0}
    found = cost.seconds(config, chip, 8, work, wire=0.0)
    assert found["step"] == pytest.approx(2.0)  # at half of the peak
    assert found["mfu"] == pytest.approx(0.5)
    hidden = cost.seconds(config, chip, 8, work, wire=0.9 * 450e9)
    assert hidden["step"] == pytest.approx(2.0)
    late = cost.seconds(config, chip, 8, work, wire=3 * 450e9)
    assert (late["exposed_wire"], late["step"]) == pytest.approx((2.0, 4.0))
    float32 = cost.seconds(changed(config, dtype="float32"), chip, 8, work, wire=0.0)
    assert (float32["step"] or 0) > 10
    assert set(cost.seconds(config, chips.cpu(), 8, work, 1.0).values()) == {None}
