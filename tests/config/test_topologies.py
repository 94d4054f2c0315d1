"""Topologies of users: their keys in configs, on the command line, in saved runs and indexes."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import pytest
from absl import flags
from ml_collections import config_flags

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.cli.config_file import ConfigFile
from big_retrieval.config import recipe, registry, schema
from big_retrieval.config.checks import check
from big_retrieval.config.topologies import topology_part
from big_retrieval.errors import PluginNeeded, UserError
from big_retrieval.retrieval import making
from big_retrieval.retrieval.folder import About
from big_retrieval.similarity import FlatProduct
from big_retrieval.train.build import build_model
from tests.helpers import raw_config, tiny


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


def with_flags(folder: Path, monkeypatch: pytest.MonkeyPatch, *topology: str) -> configs.Config:
    """The config of `FILE`, as the command line changes it."""
    (folder / "gated.py").write_text(FILE)
    given = [f"--config={folder / 'gated.py'}", *(f"--config.topology{x}" for x in topology)]
    monkeypatch.setattr(sys, "argv", ["train", *given])
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values)
    values["config"].parser = ConfigFile(values["config"].parser)
    values(sys.argv)
    return configs.load(values["config"].value)


def test_keys_of_a_topology_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert with_flags(tmp_path, monkeypatch).topology == Gated()
    assert with_flags(tmp_path, monkeypatch, ".temperature=2.0").topology == Gated(temperature=2.0)
    assert with_flags(tmp_path, monkeypatch, "=inner").topology == "inner"
    with pytest.raises(UserError, match=r"topology\.heat is not a key .* known keys: names"):
        with_flags(tmp_path, monkeypatch, ".heat=2.0")


def test_a_topology_has_keys_that_are_saved_and_checked() -> None:
    raw = raw_config()
    with raw.ignore_type():
        raw.topology = recipe.entry(Gated(), temperature=0.5)
    config = configs.load(raw)
    saved = json.loads(json.dumps(schema.to_plain(config)))
    assert saved["topology"] == {"type": "test_gated", "temperature": 0.5, "names": {}}
    assert config.plugins.keys() == {"topology/test_gated"}
    assert topology_part(configs.load_saved(saved).topology) == Gated(temperature=0.5)
    assert topology_part(saved["topology"]) == Gated(temperature=0.5)  # as an index has it
    older = configs.load_saved({**saved, "topology": "test_gated"})
    assert topology_part(older.topology) == Gated()
    raw.topology.temperature = -1.0
    with pytest.raises(UserError, match=r"^config\.topology\.temperature is -1\.0; it must be"):
        check(configs.load(raw))
    lost = {**saved, "topology": {"type": "gone"}}
    lost["plugins"] = {"topology/gone": {"module": "m", "file": "gone.py", "sha256": ""}}
    with pytest.raises(PluginNeeded, match=r"config\.topology is of the type 'gone', which gone"):
        configs.load_saved(lost)
    built_in = {**saved, "topology": {"type": "sphere"}}
    assert configs.load_saved(built_in).topology == "sphere"


def test_a_model_of_a_topology_with_keys_is_built() -> None:
    config = tiny(topology="test_gated")
    mesh = parallel.make_mesh(config, jax.devices()[:1])
    parts = build_model(config, mesh, vocab_size=64, total_steps=8)
    assert parts.model.forward_flops() > 0
    assert jax.jit(topology_part(config.topology).project)(jnp.ones((2, 1, 3))).shape == (2, 1, 3)


def test_an_index_prints_how_to_search_it_with_files_of_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(registry, "_imported", {})
    (tmp_path / "my parts.py").write_text("")
    registry.import_file(tmp_path / "my parts.py")
    making.log_index(tmp_path, About(kind="dense", documents=1))
    assert said[-1].endswith(f"--index={tmp_path} '--plugins={tmp_path / 'my parts.py'}'")


def test_an_index_of_a_topology_that_is_not_imported_asks_for_its_file() -> None:
    for name in ("nowhere", {"type": "nowhere", "heat": 1.0}):  # as index.json has it
        with pytest.raises(UserError, match=r"'nowhere' is unknown.* give the file .* --plugins="):
            topology_part(name)
