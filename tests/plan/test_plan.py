import dataclasses
import importlib
import importlib.util
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jax
import pytest

from big_retrieval import config as configs
from big_retrieval.config import Config, registry
from big_retrieval.errors import UserError
from big_retrieval.plan import compiling, cost, report
from big_retrieval.plan.plan import Target, make, run, target
from big_retrieval.plan.vocabulary import vocabulary
from big_retrieval.runtime import chips
from tests.helpers import ROOT, command, in_process, tiny
from tests.helpers import environment as clean
from tests.plan.test_cost import sized
from tests.plan.test_plan_targets import install


def full(arg: str) -> Config:
    return configs.load(importlib.import_module("configs.oblique_b16").get_config(arg))


def at(topology: str, missing: str = "") -> Target:
    chip, count = chips.parse(topology)
    return Target(chip, jax.devices()[:count], missing)


@pytest.fixture(scope="module")
def planned() -> Any:
    """A plan of a small model that was compiled for eight CPU devices; the tests only read it."""
    return make(sized(8).config, at("cpu-8"))


def test_plan_without_a_compiler() -> None:
    plan = make(full("batch=24576"), at("h100-8", f"{'Reasons. ' * 9} Install the extra plan-gpu."))
    assert plan["parameter_count"] == 139_368_449
    assert plan["per_device_bytes"]["parameters"] == 4 * 139_368_449
    assert plan["per_device_bytes"]["total"] is plan["fits"] is plan["wire_bytes"] is None
    assert plan["flops_per_step"] == sum(plan["flops_by_part"].values())
    assert plan["flops_per_step"] > plan["model_flops_per_step"] > 0
    assert plan["expected"]["step_seconds"] is None
    assert plan["expected"]["bound_seconds"] > 0
    assert plan["vocabulary"]["size"] == 30_522
    assert "assumed" in plan["vocabulary"]["source"]
    text = report.text(plan)
    assert "not compiled: Reasons. " in text
    assert "Install the extra plan-gpu." in text
    assert "fit" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_plan_takes_the_compilers_figures(planned: Any) -> None:
    found, sizes = planned["compiler"], dict(planned["per_device_bytes"])
    assert sizes.pop("total") == found["total_bytes"]
    assert sum(sizes.values()) == pytest.approx(found["total_bytes"], abs=64)  # unused scalars
    assert sizes["temporaries"] == found["temp_bytes"] > 0
    assert planned["wire_bytes"] == sum(found["wire_bytes_by_collective"].values()) > 0
    assert found["exposed_wire_bytes"] <= found["wire_bytes"]
    assert found["cycles"] is planned["expected"]["step_seconds"] is None  # only TPUs have them
    assert planned["fits"]
    assert planned["suggestions"] == []
    assert found["loops_of_unknown_length"] == 0


def test_report_fits_a_line(planned: Any) -> None:
    text = report.text(planned)
    assert max(map(len, text.splitlines())) <= 100
    for name in (*cost.PARTS, "temporaries", "total"):
        assert re.search(rf"^  {name} .*(GiB|MiB)", text, re.MULTILINE)
    assert "nothing was measured" in text


def test_report_prints_cycles_and_time(planned: Any) -> None:
    compiler = {
        **planned["compiler"], "cycles": 1000, "cycles_by_part": {"image/mlp": 750, "text": 250},
        "kernel_cycles": 500, "kernel_calls": 12, "unestimated_cycles": 100,
        "unestimated": [{"kind": "sort", "type": "f32[8,99]", "calls": 3, "cycles": 100}],
    }  # fmt: skip
    expected = {
        **planned["expected"], "step_seconds": 2.0, "compute_seconds": 1.5, "mfu": 0.25,
        "compute_mfu": 0.3, "exposed_wire_seconds": 0.5, "pairs_per_second": 32.0,
    }  # fmt: skip
    text = report.text({**planned, "compiler": compiler, "expected": expected})
    assert "75.0%    image/mlp" in text
    assert "500  in 12 calls of kernels" in text
    assert "100    sort of f32[8,99] x 3" in text
    assert "about 2 s, 32 pairs/s; 1.5 s of cycles, 0.5 s of waiting" in text
    assert "MFU 25%" in text


def test_report_names_the_memory_fraction(planned: Any) -> None:
    gpu = {**planned, "platform": "gpu"}
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in report.text(gpu)
    large = {**planned["per_device_bytes"], "total": 0.8 * planned["device_memory_bytes"]}
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in report.text({**gpu, "per_device_bytes": large})


@pytest.mark.slow
def test_plan_suggests_settings_that_fit() -> None:
    where, lines = at("cpu-1"), []
    assert where.chip
    small = dataclasses.replace(where.chip, memory=30 * 2**20)
    plan = make(sized().config, dataclasses.replace(where, chip=small), say=lines.append)
    assert plan["fits"] is False
    totals = [entry["total_bytes"] for entry in plan["suggestions"]]
    assert totals
    assert max(totals) <= small.usable
    assert all(entry["flags"] for entry in plan["suggestions"])
    assert sum(line.startswith("trying --config.") for line in lines) >= len(totals)
    assert "compiled and fit, least operations first" in report.text(plan)


def test_refused_step_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(message: str) -> Any:
        def compile_step(*args: Any) -> Any:
            raise jax.errors.JaxRuntimeError(message)

        monkeypatch.setattr(compiling, "compile_step", compile_step)

    refuse("Ran out of memory in memory space hbm. Used 19.50G of 15.75G hbm.\nMore")
    found = compiling.compile_plan(sized())
    assert found["total_bytes"] == 19.5 * 2**30
    refuse("RESOURCE_EXHAUSTED: TPU TensorCore Hbm usage: 34.50G, SparseCore Hbm usage 1.0G")
    assert compiling.compile_plan(sized())["total_bytes"] == 34.5 * 2**30
    refuse("INTERNAL: Allocation (size=21474836480) would exceed memory (size=17179869184)")
    assert compiling.compile_plan(sized())["total_bytes"] == 20 * 2**30
    plan = make(sized().config, at("v5e-1"))
    assert plan["fits"] is False
    assert "made it fit: use more" in report.text(plan)
    refuse("INTERNAL: broken\nMore")
    with pytest.raises(UserError, match=r"compiler for cpu failed: INTERNAL: broken$"):
        compiling.compile_plan(sized())


def test_run_writes_only_plan_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    plan = run(sized(8).config, tmp_path / "run", chips.parse("v5e-8"))
    assert "plan-tpu" in plan["not_compiled"]
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == plan
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("name", "size"), [("FacebookAI/xlm-roberta-base", 250_002), ("my/own", 8192)]
)
def test_vocabulary_assumes_published_sizes(name: str, size: int) -> None:
    found = vocabulary(tiny(tokenizer__path=name, tokenizer__vocab_size=8192))
    assert found.size == size
    assert "assumed" in found.source


def test_vocabulary_of_data_and_towers() -> None:
    learned = vocabulary(tiny())
    assert 20 < learned.size <= 128
    assert "learned" in learned.source
    tower = vocabulary(tiny(tokenizer__path="my/own", towers__text__vocab_size=777))
    assert tower.size == 777


def test_target_rejects_missing_devices() -> None:
    with pytest.raises(UserError, match="needs 16 devices"):
        target(chips.parse("cpu-16"))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--topology=h200-1"], "--topology is for --plan"),
        (["--plan", "--topology=z9-1"], "Use NAME-COUNT"),
        (["--plan", "--topology=h100-7"], "does not divide over"),
        (["--plan", "--topology=v5e-512"], "Use v5e-256."),
        (["--suggest"], "--suggest is for --plan"),
    ],
)
def test_plan_rejects_flags(
    tmp_path: Path, flags: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_imported", {})  # plugins of other tests
    where = f"--workdir={tmp_path / 'run'}"
    found = in_process("main", "--config=configs/oblique_b16.py", where, *flags)
    assert found.returncode == 2
    assert sentence in found.stderr
    assert found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs the extra plan-tpu")
def test_plan_for_a_tpu_without_a_tpu(tmp_path: Path) -> None:
    found = subprocess.run(
        command(
            "main", "--config=oblique_b16:runlocal", "--plan", "--topology=v5e-4",
            f"--workdir={tmp_path / 'run'}",
        ),
        cwd=ROOT, env=clean(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["topology"] == "v5e-4"
    assert plan["mesh"]["data"] == 4
    assert plan["compiler"]["cycles"] > 0
    assert plan["expected"]["step_seconds"] > 0
    assert "memory of one device" in found.stdout
    assert "host bounds" not in found.stderr  # libtpu has nothing to complain of
