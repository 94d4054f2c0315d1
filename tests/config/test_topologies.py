"""Custom topologies in configs, saved runs and indexes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import pytest

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.cli.option_groups import ConfigOptions
from big_retrieval.config import registry, schema
from big_retrieval.config.topologies import topology_part
from big_retrieval.errors import PluginNeeded
from big_retrieval.retrieval import making
from big_retrieval.retrieval.folder import About
from big_retrieval.similarity import FlatProduct
from big_retrieval.train.build import build_model
from tests.helpers import tiny, user_error


@configs.register("topology")
@dataclass(frozen=True)
class Halved(FlatProduct):
    type: Literal["test_halved"] = "test_halved"

    def project(self, x: jax.Array) -> jax.Array:
        return x / 2


def test_command_line_sets_topology() -> None:
    config = ConfigOptions(config="quickstart", keys=("--config.topology=test_halved",))
    assert config.load_config().topology == "test_halved"


def test_load_saved_reads_custom_topologies() -> None:
    config = tiny(topology="test_halved")
    assert config.plugins.keys() == {"topology/test_halved"}
    saved = json.loads(json.dumps(schema.to_plain(config)))
    assert configs.load_saved(saved) == config
    lost = {"topology/gone": {"module": "m", "file": "gone.py", "sha256": ""}}
    with pytest.raises(PluginNeeded, match=r"config\.topology is .* 'gone', .*gone\.py"):
        configs.load_saved({**saved, "topology": "gone", "plugins": lost})


def test_build_model_takes_custom_topology() -> None:
    config = tiny(topology="test_halved")
    mesh = parallel.make_mesh(config, jax.devices()[:1])
    parts = build_model(config, mesh, vocab_size=64, total_steps=8)
    assert parts.model.forward_flops() > 0


def test_log_index_prints_plugin_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(registry, "_imported", {})
    (tmp_path / "my parts.py").write_text("")
    registry.import_file(tmp_path / "my parts.py")
    making.log_index(tmp_path, About(kind="dense", documents=1))
    assert said[-1].endswith(f"--index={tmp_path} '--plugins={tmp_path / 'my parts.py'}'")


def test_topology_part_rejects_unknown_type() -> None:
    with user_error("'nowhere' is unknown", "--plugins="):
        topology_part("nowhere")
