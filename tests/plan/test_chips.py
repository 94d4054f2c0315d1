import re

import pytest

from big_retrieval.errors import UserError
from big_retrieval.runtime import chips


@pytest.mark.parametrize("chip", chips.CHIPS, ids=lambda chip: chip.name)
def test_parse_finds_every_chip(chip: chips.Chip) -> None:
    assert chips.parse(f"{chip.name}-256") == (chip, 256)
    assert chip.memory is not None
    assert 0.8 * chip.memory < chip.usable < chip.memory
    assert (chip.link or 0) > (chip.network or 0)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA L4", "l4"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("cpu", "cpu"),
        ("NVIDIA L40S", None),
        ("abacus", None),
    ],
)
def test_of_kind_returns_chip_of_device_kind(kind: str, name: str | None) -> None:
    found = chips.of_kind(kind)
    assert (found and found.name) == name


@pytest.mark.parametrize(
    "text", ["h200", "h200-0", "h200--1", "h200-x", "z9-4", "", "-", "h200-1-"]
)
def test_parse_lists_names(text: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"--topology is {text!r}")) as problem:
        chips.parse(text)
    assert all(chip.name in str(problem.value) for chip in chips.CHIPS)


def test_virtual_devices_share_memory() -> None:
    one, eight = chips.parse("cpu-1")[0], chips.parse("cpu-8")[0]
    assert eight.memory == pytest.approx(one.memory / 8)
    assert one.bfloat16 is None


def test_speed_between_nodes_is_slower() -> None:
    chip, _ = chips.parse("h100-8")
    assert chip.speed(8) == chip.link
    assert chip.speed(9) == chip.network


def test_peak_flops() -> None:
    class Device:
        device_kind = "NVIDIA H200"

    assert chips.peak_flops(Device()) == 989e12
    Device.device_kind = "cpu"
    assert chips.peak_flops(Device()) is None
