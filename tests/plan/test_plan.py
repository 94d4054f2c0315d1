import dataclasses
import functools
import importlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.config import Config
from big_retrieval.errors import UserError
from big_retrieval.plan import environment, fit, memory, report
from big_retrieval.plan.plan import Target, make, run, target
from big_retrieval.plan.vocabulary import vocabulary
from big_retrieval.runtime import chips
from big_retrieval.train.build import BuiltModel, build_model
from tests.helpers import ROOT, command, in_process, tiny
from tests.helpers import environment as clean
from tests.plan.test_memory import sized


def full(arg: str) -> Config:
    return configs.load(importlib.import_module("configs.oblique_b16").get_config(arg))


def at(topology: str, native: bool = False) -> Target:
    chip, count = chips.parse(topology)
    return Target(chip, jax.devices()[:count], native)


@functools.cache
def planned(arg: str, topology: str) -> Any:
    """A plan by formulas of the large model, made once; the tests only read it."""
    return make(full(arg), at(topology), compiling=False)


@pytest.fixture(scope="module", autouse=True)
def _models_are_described_once() -> Iterator[None]:
    """Plans of the same config on as many devices share its abstract arrays, which take seconds."""
    made: dict[str, BuiltModel] = {}

    def described(config: Config, mesh: Any, **how: Any) -> BuiltModel:
        key = repr((config, mesh, how))
        if key not in made:
            made[key] = build_model(config, mesh, **how)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("big_retrieval.plan.plan.build_model", described)
        yield


@pytest.mark.slow
def test_the_large_model_on_one_h200() -> None:
    plan = planned("batch=24576,microbatch=2048", "h200-1")
    assert plan["parameter_count"] == 139_368_449
    assert plan["fits"]
    assert plan["smallest_change"] is None
    assert plan["vocabulary"]["size"] == 30_522
    assert "assumed" in plan["vocabulary"]["source"]
    parts = dict(plan["per_device_bytes"])
    assert parts.pop("total") == sum(parts.values())
    assert parts["parameters"] == 4 * 139_368_449


@pytest.mark.slow
def test_without_slices_it_does_not_fit_and_the_remedy_does() -> None:
    plan = planned("batch=24576", "h200-1")
    assert plan["fits"] is False
    (flag,) = plan["smallest_change"]["flags"]
    size = int(re.fullmatch(r"--config\.microbatch=(\d+)", flag)[1])  # type: ignore[index]
    limit = 0.9 * plan["usable_bytes"]  # a tenth is left, formulas being good to about that
    for rows, fits in ((size, True), (2 * size, False)):
        changed = make(full(f"batch=24576,microbatch={rows}"), at("h200-1"), compiling=False)
        assert (changed["per_device_bytes"]["total"] <= limit) is fits
    assert plan["smallest_change"]["total"] <= limit


def test_eight_devices() -> None:
    plan = planned("", "h100-8")
    assert plan["flops_per_step"] == sum(plan["flops_by_part"].values())
    assert plan["flops_per_step"] > plan["model_flops_per_step"] > 0
    assert 0 < plan["expected"]["mfu"] < 0.5
    assert set(plan["sources"]) == set(memory.PARTS)


@pytest.mark.slow
def test_on_the_asked_devices_the_compiler_decides() -> None:
    plan = make(sized(8).config, at("cpu-8", native=True))
    found = plan["compiler"]
    expected = found["argument_bytes"] + found["temp_bytes"]
    assert plan["per_device_bytes"]["total"] == pytest.approx(expected, rel=0.01)
    assert plan["sources"]["activations"].startswith("compiler (cpu)")
    assert plan["wire_bytes"] == sum(plan["wire_bytes_by_collective"].values()) > 0
    assert plan["wire_bytes_source"] == "compiled for cpu"
    assert plan["expected"]["step_seconds"] is None
    assert plan["fits"]
    assert found["loops_of_unknown_length"] == 0


@pytest.mark.slow
def test_elsewhere_the_formulas_decide_and_the_compiler_is_noted(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("old")
    plan = run(sized(8).config, tmp_path / "run", chips.parse("h100-8"))
    assert plan["per_device_bytes"] == plan["formula_bytes"]
    assert plan["compiler"]["platform"] == "cpu"
    assert plan["compiler"]["temp_bytes"] > 0
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == plan
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["plan.json"]


@pytest.mark.parametrize("topology", ["h200-1", "h100-8", "v5e-8", "cpu-8", "l4-1"])
def test_the_table_fits_a_terminal(topology: str) -> None:
    text = report.text(planned("batch=24576", topology))
    assert max(map(len, text.splitlines())) <= 100
    for name in (*memory.PARTS, "total"):
        assert re.search(rf"^  {name} .*(GiB|MiB)", text, re.MULTILINE)


def test_more_than_jax_takes_by_itself_is_said() -> None:
    plan = planned("batch=24576,microbatch=2048", "h200-1")
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in report.text(plan)
    large = {**plan["per_device_bytes"], "total": 0.8 * plan["device_memory_bytes"]}
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in report.text({**plan, "per_device_bytes": large})


def rebuild(config: Config, devices: int = 8) -> BuiltModel:
    mesh = parallel.make_mesh(config, jax.devices()[:devices])
    return build_model(config, mesh, vocab_size=128, total_steps=10)


def changed_total(parts: BuiltModel, **changes: Any) -> int:
    model = rebuild(dataclasses.replace(parts.config, **changes))
    return memory.per_device(model, "gpu")["total"]


def test_changes_are_tried_in_order() -> None:
    parts = sized(8, batch_size=512)
    found = fit.smallest_change(parts, rebuild, "gpu", changed_total(parts, microbatch=64))
    assert found
    assert found.flags == ["--config.microbatch=64"]
    towers = {n: dataclasses.replace(t, remat="block") for n, t in parts.config.towers.items()}
    # One row a device: no slices to be had.
    parts = sized(8, batch_size=8)
    found = fit.smallest_change(parts, rebuild, "gpu", changed_total(parts, towers=towers))
    assert found
    assert found.flags == [f"--config.towers.{name}.remat=block" for name in parts.config.towers]


@pytest.mark.slow
def test_on_cpus_remat_needs_a_scan() -> None:
    parts = sized(8, batch_size=8, tower={"depth": 8})
    change = {"remat": "block", "scan": True}
    towers = {n: dataclasses.replace(t, **change) for n, t in parts.config.towers.items()}
    model = rebuild(dataclasses.replace(parts.config, towers=towers))
    limit = memory.per_device(model, "cpu")["total"]
    found = fit.smallest_change(parts, rebuild, "cpu", limit)
    assert found
    assert "--config.towers.image.scan=True" in found.flags


@pytest.mark.slow
def test_parameters_are_sharded_where_they_are_the_trouble() -> None:
    parts = sized(8, batch_size=8, vocab_size=4096, tower={"remat": "block", "scan": True})

    def again(config: Config) -> BuiltModel:
        mesh = parallel.make_mesh(config)
        return build_model(config, mesh, vocab_size=4096, total_steps=10)

    limit = 0.8 * memory.per_device(parts, "gpu")["total"]
    found = fit.smallest_change(parts, again, "gpu", limit)
    assert found
    assert found.flags == ["--config.mesh.data=1", "--config.mesh.fsdp=8"]


def test_nothing_helps_against_no_memory() -> None:
    assert fit.smallest_change(sized(8), rebuild, "gpu", limit=1000) is None


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("bert-base-uncased", 30_522),
        ("bert-base-cased", 28_996),
        ("google-bert/bert-base-multilingual-cased", 119_547),
        ("FacebookAI/xlm-roberta-base", 250_002),
        ("roberta-large", 50_265),
        ("openai/clip-vit-base-patch32", 49_408),
        ("my/own", 8192),
    ],
)
def test_published_vocabularies(name: str, size: int) -> None:
    found = vocabulary(tiny(tokenizer__path=name, tokenizer__vocab_size=8192))
    assert found.size == size
    assert "assumed" in found.source


def test_vocabularies_that_are_here() -> None:
    learned = vocabulary(tiny())
    assert 20 < learned.size <= 128
    assert "learned" in learned.source
    tower = vocabulary(tiny(tokenizer__path="my/own", towers__text__vocab_size=777))
    assert tower.size == 777


def test_virtual_devices_replace_a_number_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "--xla_a=1 --xla_force_host_platform_device_count=8 --xla_b=2"
    monkeypatch.setenv("XLA_FLAGS", old)
    monkeypatch.setenv("NPROC", "4")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    environment.prepare(*chips.parse("v5e-32"))
    flags = os.environ["XLA_FLAGS"].split()
    assert sorted(flags) == ["--xla_a=1", "--xla_b=2", "--xla_force_host_platform_device_count=32"]
    assert os.environ["NPROC"] == "32"


def test_fewer_devices_than_asked_for() -> None:
    with pytest.raises(UserError, match="asks for 16 devices"):
        target(chips.parse("cpu-16"))


def cli(tmp_path: Path, *flags: str, config: str = "configs/oblique_b16.py") -> Any:
    return subprocess.run(
        command("main", f"--config={config}", f"--workdir={tmp_path / 'run'}", *flags),
        cwd=ROOT, env=clean(), capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--topology=h200-1"], "--topology is for --plan"),
        (["--plan", "--topology=z9-1"], "it must be NAME-COUNT"),
        (["--plan", "--topology=h100-7"], "does not divide over"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, flags: list[str], sentence: str) -> None:
    where = f"--workdir={tmp_path / 'run'}"
    found = in_process("main", "--config=configs/oblique_b16.py", where, *flags)
    assert found.returncode == 2
    assert sentence in found.stderr
    assert found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    flags = ("--plan", "--topology=v5e-4")
    found = cli(tmp_path, *flags, config="configs/oblique_b16.py:runlocal")
    assert found.returncode == 0, found.stderr
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["topology"] == "v5e-4"
    assert plan["mesh"]["data"] == 4
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["plan.json"]
    assert "memory per device" in found.stdout
