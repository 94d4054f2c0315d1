"""Bytes and operations of a step against hand counts."""

import dataclasses
from typing import Any

import jax
import pytest

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.config import recipe
from big_retrieval.plan import cost
from big_retrieval.runtime import chips
from big_retrieval.train.build import BuiltModel, build_model
from big_retrieval.train.step_figures import step_times
from tests.examples.helpers import example
from tests.helpers import ema, lexical_texts, tiny

VOCAB = 128
SIZE = {"width": 64, "depth": 2, "heads": 2, "mlp": 256}


_sized: dict[str, BuiltModel] = {}  # they take a second each, and nothing in them changes


def sized(
    devices: int = 1, vocab_size: int = VOCAB, tower: Any = None, **changes: Any
) -> BuiltModel:
    """Parts of a config whose activations outweigh its parameters."""
    towers = {
        f"towers__{name}__{key}": value
        for name in ("image", "text")
        for key, value in {**SIZE, **(tower or {})}.items()
    }
    config = tiny(**{"batch_size": 64, **towers, **changes})
    key = repr((config, devices, vocab_size))
    if key not in _sized:
        mesh = parallel.make_mesh(config, jax.devices()[:devices])
        _sized[key] = build_model(config, mesh, vocab_size=vocab_size, total_steps=10)
    return _sized[key]


def test_state_and_batch_are_exact() -> None:
    found = cost.state_bytes(sized())
    count = sum(sized().parameters.values())
    assert found["parameters"] == 4 * count
    assert found["optimizer"] == pytest.approx(8 * count, abs=64)  # two moments, counters
    config = sized().config
    pixels, length = config.fields["image"], config.fields["text"]
    row = 3 * getattr(pixels, "size") ** 2 + 5 * getattr(length, "length") + 1 + 4  # noqa: B009
    assert found["batch"] == 64 * row


def test_state_grows_with_averages_and_shrinks_with_fsdp() -> None:
    plain, averaged = sized(), sized(optimizer__averaging=ema(0.9))
    grown = cost.state_bytes(averaged)["optimizer"] - cost.state_bytes(plain)["optimizer"]
    assert grown == cost.state_bytes(plain)["parameters"]
    sharded = cost.state_bytes(sized(8, mesh__data=1, mesh__fsdp=8))
    whole = cost.state_bytes(plain)
    assert sharded["batch"] == whole["batch"] / 8
    assert whole["parameters"] / 8 <= sharded["parameters"] < whole["parameters"] / 6


def test_towers_take_three_forward_passes() -> None:
    parts = sized()
    found = cost.flops(parts.config, VOCAB)
    assert found["towers"] == 3 * 64 * parts.model.forward_flops()
    assert found["recomputation"] == 0
    assert found["loss"] == 4 * 2 * 64**2 * 2 * 4  # two class tokens of four dimensions


@pytest.mark.slow
def test_flops_count_recomputation() -> None:
    parts = sized(tower={"remat": "block"})
    forward = parts.model.forward_flops()
    image, text = parts.config.fields["image"], parts.config.fields["text"]
    patches = (getattr(image, "size") // 8) ** 2  # noqa: B009
    lengths = (patches + 2, getattr(text, "length") + 1)  # noqa: B009
    # Nothing needs the last product of a pre-LN layer again.
    layers = sum(2 * (2 * n * 64 * (4 * 64 + 256) + 4 * n * n * 64) for n in lengths)
    assert cost.flops(parts.config, VOCAB)["recomputation"] == 64 * layers
    sliced = dataclasses.replace(parts.config, microbatch=16)
    assert cost.flops(sliced, VOCAB)["recomputation"] == 64 * (layers + forward)
    whole = dataclasses.replace(parts.config, microbatch=64)
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


def test_tpu_time_is_cycles_and_exposed_traffic() -> None:
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


# ---- Losses


def lossy(loss: Any, **changes: Any) -> configs.Config:
    return tiny(batch_size=64, losses__main=recipe.entry(loss), **changes)


def operations(config: configs.Config) -> int:
    return cost.loss_flops(config, "main", 128)


def test_contrastive_operations() -> None:
    # 4 products of all rows, of 2 class tokens of 4 numbers
    assert operations(lossy(configs.Contrastive(block=16))) == 4 * 2 * 64**2 * 2 * 4


def test_wrapped_loss_operations() -> None:
    config = lossy(example("matryoshka").Matryoshka(dims=(4, 2), factors=(1.0, 1.0)))
    assert operations(config) == 1.5 * operations(lossy(configs.Contrastive()))


def test_hard_negatives_operations() -> None:
    fields = {
        name: recipe.entry(
            configs.TextField(), side=name, tower="text", length=20, head=configs.Projection(dim=4)
        )
        for name in ("query", "document")
    }
    for count in (0, 3):
        changes = {"fields": fields, "negatives__count": count}
        config = lossy(configs.Contrastive(block=16), **changes)
        assert operations(config) == 4 * 2 * 64**2 * (1 + count) * 2 * 4, count


def test_decoder_operations() -> None:
    latent = configs.LatentTarget(hidden=8)
    target = recipe.entry(configs.ArrayField(), shape=(6,), generated=True)
    config = lossy(latent, fields__target=target)
    found = cost.loss_flops(config, "main", 128)
    inputs = 2 * 4  # class tokens x dimensions of a text
    products = inputs * 8 + 8 * 8 + 8 * 6
    assert found == 64 * 2 * (3 * products)
    words = configs.InputTarget(words=5)  # a GRU of the width of the inputs, and the words
    products = 20 * (3 * inputs * 5 + 3 * inputs * inputs + inputs * 128)
    found = cost.loss_flops(lossy(words), "main", 128)
    assert found == 64 * 2 * (3 * products)


def test_flops_of_decoder_of_lexical_field_read_its_tower() -> None:
    target = recipe.entry(configs.ArrayField(), shape=(6,), generated=True)
    changes = lexical_texts() | {"fields__target": target, "batch_size": 64}
    latent = recipe.entry(configs.LatentTarget(), hidden=8, field="query")
    found = cost.loss_flops(tiny(**changes, losses__latent=latent), "latent", 128)
    pooled = 3 * (16 * 8 + 8 * 8 + 8 * 6) + 2 * 20 * 16  # and the mean over 20 positions, twice
    assert found == pytest.approx(64 * 2 * pooled, rel=0.05)
