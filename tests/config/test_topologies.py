"""Custom topologies: their keys in configs, on the command line, in saved runs and indexes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import pytest

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.cli.option_groups import ConfigOptions
from big_retrieval.config import recipe, registry, schema
from big_retrieval.config.checks import check
from big_retrieval.config.topologies import topology_part
from big_retrieval.errors import PluginNeeded
from big_retrieval.retrieval import build_index
from big_retrieval.retrieval.folder import About
from big_retrieval.similarity import FlatProduct
from big_retrieval.train.build import build_model
from tests.helpers import raw_config, tiny, user_error


@configs.register("topology")
@dataclass(frozen=True)
class Gated(FlatProduct):
    """The inner product over a temperature; it checks the config."""

    type: Literal["test_gated"] = "test_gated"
    temperature: float = 1.0
    names: dict[str, float] = field(default_factory=dict)

    def check(self, config: configs.Config, path: str) -> Iterator[str]:
        if self.temperature <= 0:
            yield f"{path}.temperature is {self.temperature}; it must be positive."

    def project(self, x: jax.Array) -> jax.Array:
        return x / self.temperature


FILE = """
from big_retrieval.config import recipe, schema

def get_config(arg=""):
    c = recipe.small()
    c.topology = "test_gated"
    return c
"""


def with_flags(folder: Path, *topology: str) -> configs.Config:
    (folder / "gated.py").write_text(FILE)
    keys = tuple(f"--config.topology{x}" for x in topology)
    return ConfigOptions(config=str(folder / "gated.py"), keys=keys).load_config()


def test_command_line_sets_keys_of_topologies(tmp_path: Path) -> None:
    assert with_flags(tmp_path).topology == Gated()
    assert with_flags(tmp_path, ".temperature=2.0").topology == Gated(temperature=2.0)
    assert with_flags(tmp_path, "=inner").topology == "inner"
    with user_error("topology.heat is not a key", "known keys: names"):
        with_flags(tmp_path, ".heat=2.0")


def test_topology_keys_are_saved_and_checked() -> None:
    raw = raw_config()
    with raw.ignore_type():
        raw.topology = recipe.entry(Gated(), temperature=0.5)
    config = configs.load(raw)
    saved = json.loads(json.dumps(schema.to_plain(config)))
    assert saved["topology"] == {"type": "test_gated", "temperature": 0.5, "names": {}}
    assert config.plugins.keys() == {"topology/test_gated"}
    assert topology_part(configs.load_saved(saved).topology) == Gated(temperature=0.5)
    assert topology_part(saved["topology"]) == Gated(temperature=0.5)  # as an index has it
    by_type = configs.load_saved({**saved, "topology": "test_gated"})
    assert topology_part(by_type.topology) == Gated()
    raw.topology.temperature = -1.0
    with user_error("config.topology.temperature is -1.0"):
        check(configs.load(raw))
    lost = {"topology/gone": {"module": "m", "file": "gone.py", "sha256": ""}}
    for topology in ("gone", {"type": "gone"}):
        with pytest.raises(PluginNeeded, match=r"config\.topology is .* 'gone', .*gone\.py"):
            configs.load_saved({**saved, "topology": topology, "plugins": lost})
    built_in = {**saved, "topology": {"type": "sphere"}}
    assert configs.load_saved(built_in).topology == "sphere"


def test_build_model_takes_topology_with_keys() -> None:
    config = tiny(topology="test_gated")
    mesh = parallel.make_mesh(config, jax.devices()[:1])
    parts = build_model(config, mesh, vocab_size=64, total_steps=8)
    assert parts.model.forward_flops() > 0
    assert jax.jit(topology_part(config.topology).project)(jnp.ones((2, 1, 3))).shape == (2, 1, 3)


def test_log_index_prints_plugin_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(registry, "_imported", {})
    (tmp_path / "my parts.py").write_text("")
    registry.import_file(tmp_path / "my parts.py")
    build_index.log_index(tmp_path, About(kind="dense", documents=1))
    assert said[-1].endswith(f"--index={tmp_path} '--plugins={tmp_path / 'my parts.py'}'")


@pytest.mark.parametrize("name", ["nowhere", {"type": "nowhere", "heat": 1.0}])  # of an index.json
def test_topology_part_rejects_unknown_type(name: Any) -> None:
    with user_error("'nowhere' is unknown", "--plugins="):
        topology_part(name)
