"""State and batch against hand counts."""

from typing import Any

import jax
import pytest

from big_retrieval import parallel
from big_retrieval.plan import memory
from big_retrieval.train.build import BuiltModel, build_model
from tests.helpers import ema, tiny

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
    found = memory.state_bytes(sized())
    count = sum(sized().parameters.values())
    assert found["parameters"] == 4 * count
    assert found["optimizer"] == pytest.approx(8 * count, abs=64)  # two moments, counters
    config = sized().config
    pixels, length = config.fields["image"], config.fields["text"]
    row = 3 * getattr(pixels, "size") ** 2 + 5 * getattr(length, "length") + 1 + 4  # noqa: B009
    assert found["batch"] == 64 * row


def test_averages_and_fsdp_change_the_state() -> None:
    plain, averaged = sized(), sized(optimizer__averaging=ema(0.9))
    grown = memory.state_bytes(averaged)["optimizer"] - memory.state_bytes(plain)["optimizer"]
    assert grown == memory.state_bytes(plain)["parameters"]
    sharded = memory.state_bytes(sized(8, mesh__data=1, mesh__fsdp=8))
    whole = memory.state_bytes(plain)
    assert sharded["batch"] == whole["batch"] / 8
    assert whole["parameters"] / 8 <= sharded["parameters"] < whole["parameters"] / 6
