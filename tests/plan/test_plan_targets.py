"""Devices that exist only for a compiler."""

import importlib.util
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.errors import UserError
from big_retrieval.plan import environment, targets
from big_retrieval.runtime import chips


def install(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Makes these packages look installed, and no other compiler."""
    find = importlib.util.find_spec
    compilers = {name for names in targets._PACKAGES.values() for name in names}

    def found(name: str) -> Any:
        return name in packages if name in compilers else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", found)


@pytest.mark.parametrize(
    ("topology", "name", "bounds"),
    [
        ("v5e-1", "v5e:1x1", (1, 1, 1)),
        ("v6e-2", "v6e:1x2", (1, 2, 1)),
        ("v5e-4", "v5e:2x2", None),
        ("v5e-256", "v5e:16x16", None),
        ("v5p-1", "v5p:1x1x1", (1, 1, 1)),
        ("v5p-4", "v5p:2x2x1", None),
        ("v5p-16", "v5p:2x2x4", None),
        ("v5p-256", "v5p:4x8x8", None),
    ],
)
def test_tpu_options(topology: str, name: str, bounds: Any) -> None:
    options = targets.tpu_options(*chips.parse(topology))
    assert options["topology_name"] == name
    assert options.get("chips_per_host_bounds") == bounds


def test_gpu_options_have_hosts_of_eight() -> None:
    shapes = [targets.gpu_options(*chips.parse(f"h100-{n}"))["topology"] for n in (1, 8, 64)]
    assert shapes == ["1x1x1", "1x1x8", "1x8x8"]


@pytest.mark.parametrize("chip", [chip for chip in chips.CHIPS if chip.platform == "gpu"])
def test_gpu_description(chip: chips.Chip) -> None:
    text = targets.gpu_description(chip)
    found = re.search(r'device_description_str: "(.+)"', text)
    assert found
    assert chips.of_kind(found[1]) == chip
    memory = re.search(r"device_memory_size: (\d+)", text)
    assert memory
    assert 0.95 * chip.memory < int(memory[1]) < 1.08 * chip.memory


@pytest.mark.parametrize(
    ("topology", "advice"),
    [("v5e-24", "Use v5e-16."), ("v5e-512", "Use v5e-256."), ("h100-12", "Use h100-8.")],
)
def test_check_count_suggests_a_count(topology: str, advice: str) -> None:
    with pytest.raises(UserError, match=re.escape(advice)):
        targets.check_count(*chips.parse(topology))


def test_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    tpu, gpu = chips.parse("v5e-4")[0], chips.parse("h100-8")[0]
    assert "install the extra plan-tpu" in targets.missing(tpu)
    assert "install the extra plan-gpu" in targets.missing(gpu)
    assert not targets.missing(chips.cpu())
    install(monkeypatch, "libtpu", "jax_cuda13_plugin")
    assert not targets.missing(tpu)
    assert not targets.missing(gpu)
    assert "v4" in targets.missing(chips.parse("v4-8")[0])


def test_prepare_sets_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = "--xla_a=1 --xla_force_host_platform_device_count=8 --xla_b=2"
    monkeypatch.setattr(os, "environ", {**os.environ, "XLA_FLAGS": old, "JAX_PLATFORMS": "cpu"})
    install(monkeypatch)
    environment.prepare(*chips.parse("v5e-32"))  # virtual CPUs in the chips' place
    flags = os.environ["XLA_FLAGS"].split()
    assert sorted(flags) == ["--xla_a=1", "--xla_b=2", "--xla_force_host_platform_device_count=32"]
    assert os.environ["NPROC"] == "32"
    assert environment.schedules_folder() is None
    install(monkeypatch, "libtpu")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment.prepare(*chips.parse("v5e-64"))
    assert os.environ["XLA_FLAGS"].split() == flags
    assert os.environ["TPU_SKIP_MDS_QUERY"] == "1"
    folder = environment.schedules_folder()
    assert folder is not None
    assert folder.parent == tmp_path
    environment.prepare(*chips.parse("v5e-256"))
    assert environment.schedules_folder() == folder
