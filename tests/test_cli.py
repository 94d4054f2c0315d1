"""Bad input, end to end: an error with the key or file, status 2, nothing spoiled."""

import gc
import json
import pickle
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import jax
import pytest

from big_retrieval.cli.option_groups import RunOptions
from big_retrieval.cli.options import parse
from big_retrieval.cli.overrides import parse_overrides
from big_retrieval.config import registry
from big_retrieval.errors import UserError
from big_retrieval.runtime.sigterm import unwinding_on_sigterm
from big_retrieval.train import loop
from tests.helpers import ROOT, command, environment, in_process, tiny

QUICK = "--config=configs/quickstart.py:runlocal"
SMALL = ["--config.total_steps=2", "--config.batch_size=8"]


def run(*args: str, command: str = "main") -> tuple[int, str]:
    """Returns the exit status and the output of a command in this process."""
    done = in_process(command, *args)
    text = done.stdout + done.stderr
    assert "Traceback" not in text
    return done.returncode, text


def options(*args: str) -> RunOptions:
    return parse(RunOptions, args)


def refused(answer: tuple[int, str], *words: str) -> str:
    status, text = answer
    assert status == 2
    error = text.strip().splitlines()[-1]
    assert error.startswith("error: ")
    for word in words:
        assert word in error
    return error


# ---- The command line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--config=configs/nope.py"], "configs/nope.py"),
        ([QUICK, "--config.mesh.data=3"], "config.mesh (data 3"),
    ],
)
def test_rejected_train_makes_no_run_folder(
    args: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    refused(run(*args), words)
    assert not (tmp_path / "runs").exists()


def test_overrides_set_none() -> None:
    config: Any = options(
        QUICK, "--config.losses.main.logit_scale.max=None", "--config.optimizer.clip_norm", "None",
        "--config.total_epochs=2",
    ).load_config()  # fmt: skip
    assert config.losses["main"].logit_scale.max is None
    assert config.optimizer.clip_norm is None
    assert (config.total_steps, config.total_epochs) == (None, 2.0)


def test_overrides_drop_evaluators() -> None:
    for drop in ("--config.evals.colours=", "--config.evals.colours=None"):
        assert sorted(options(QUICK, drop).load_config().evals) == ["test"]
    best = ("--config.best_metric=retrieval/test/R-mean", "--config.final_weights=best")
    for drop, left in (("colours", best), ("test", ("", "last"))):
        config = options(QUICK, *best, f"--config.evals.{drop}=").load_config()
        kept = (config.best_metric, config.final_weights)
        assert kept == tuple(key.rpartition("=")[2] for key in left)
    with pytest.raises(UserError, match="colours"):
        options(QUICK, "--config.evals.colors=").load_config()


def test_overrides_are_parsed() -> None:
    found = parse_overrides(["--config.a.b=None", "--config.c", "-3", "--noconfig.d", "-config.e"])
    assert [(x.key, x.text, x.is_negated) for x in found] == [
        ("a.b", "None", False), ("c", "-3", False), ("d", None, True), ("e", None, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "key", "value"),
    [
        (["--config.seed=0x10"], "seed", 16),
        (["--config.seed", "7"], "seed", 7),
        (["--config.seed=7", "--config.seed=8"], "seed", 8),
        (["--config.report", "False"], "report", False),
        (["--noconfig.report"], "report", False),
        (["--config.report"], "report", True),
        (["--config.evals.test.recall_at=(1,2)"], "evals.test.recall_at", (1, 2)),
        (["--config.evals.test.recall_at=3"], "evals.test.recall_at", (3,)),
        (
            ["--config.evals.test.recall_at=1", "--config.evals.test.recall_at=(2,3)"],
            "evals.test.recall_at",
            (1, 2, 3),
        ),
        (["--config.data.path=a=b c"], "data.path", "a=b c"),
        (["--config.microbatch=8"], "microbatch", 8),
        (["--config.optimizer.clip_norm=1"], "optimizer.clip_norm", 1.0),
    ],
)
def test_overrides_set_keys(args: list[str], key: str, value: object) -> None:
    extra = ["--config.data.type=pairs"] if key == "data.path" else []
    found: object = options(QUICK, *extra, *args).load_config()
    for name in key.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_default_run_folder() -> None:
    assert options(f"{QUICK},steps=3").run_folder == Path("runs/quickstart-runlocal-steps=3")
    assert options("--config=configs/quickstart.py").run_folder == Path("runs/quickstart")


SOURCE = """
from dataclasses import dataclass
from typing import Literal
from big_retrieval import config

@config.register("source")
@dataclass(frozen=True)
class Mine(config.Scenes):
    type: Literal["of_a_plugin"] = "of_a_plugin"
"""


def test_unused_plugin_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "empty.py").touch()
    used = "--config.data.type=of_a_plugin"
    for name, keys, told in (("mine", [used], False), ("mine", [], True), ("empty", [], True)):
        monkeypatch.setattr(registry, "_imported", {})
        plugin = f"--plugins={tmp_path / name}.py"
        said.clear()
        registry.import_file(tmp_path / f"{name}.py")
        options(plugin, QUICK, *keys).load_config()
        assert any(f"{plugin} defines no part that this config uses" in x for x in said) == told


# ---- Config files

FILES: list[tuple[bytes, list[str]]] = [
    (b"def get_config(:\n", [", line 1 is not Python"]),
    (b"\xff\xfe\x00", ["is not Python"]),
    (b"", ["has no function get_config(arg)"]),
    (b"import not_there\n", [", line 1: ", "not_there"]),
    (b"def get_config(arg=''):\n    raise ValueError('boom')\n", [", line 2: ", "boom"]),
    (b"def get_config(arg=''):\n    open('nope.txt')\n", [", line 2: ", "nope.txt"]),
    (b"def get_config(arg=''):\n    return None\n", ["returned None", "return c"]),
    (b"def get_config(arg=''):\n    return {'a': 1}\n", ["returned {'a': 1}", "recipe.base()"]),
    (b"def get_config():\n    return 1\n", ["get_config(arg: str = '')"]),
    (b"C\n    c.batchsize = 3\n    return c\n", ["did you mean config.batch_size?"]),
    (b"C\n    c.batch_size = 'x'\n    return c\n", [", line 4: ", "batch_size"]),
    (b"C\n    c.optimizer = {'lr': 1.0}\n    return c\n", ["config.optimizer has lost"]),
    (b"C\n    return c.towers.imge\n", [", line 4: ", "imge"]),
    (
        b"C\n    c.losses.far.constraint.bound = 0.2\n    return c\n",
        [", line 4: ", "no key or entry 'far'", "c.losses.name = recipe.entry(...)"],
    ),
    (
        b"C\n    c.losses.far = {'type': 'farr', 'weight': 2.0}\n    return c\n",
        ["config.losses.far.type is 'farr'; it must be one of 'contrastive'"],
    ),
    (
        b"C\n    from big_retrieval import config\n    c.data = config.Graded()\n    return c\n",
        [", line 5: ", "field 'data'"],
    ),
    (b"C\n    c.topology = 3\n    return c\n", [", line 4: ", "field 'topology'"]),
    (b"C\n    c.topology = c.data\n    return c\n", [", line 4: ", "field 'topology'"]),
    (b"C\n    c.evals.test.evry = 2\n    return c\n", ["did you mean config.evals.test.every?"]),
]
BEGIN = b"""from configs import quickstart
def get_config(arg=''):
    c = quickstart.get_config('runlocal')"""


@pytest.mark.parametrize(("content", "words"), FILES)
def test_config_file_errors_name_the_line(tmp_path: Path, content: bytes, words: list[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes(BEGIN + content[1:] if content.startswith(b"C") else content)
    status, text = run(f"--config={file}:runlocal", f"--workdir={tmp_path / 'run'}")
    assert status == 2
    assert "error: " in text
    for word in words:
        assert word in text
    assert not (tmp_path / "run").exists()


PART = """from __future__ import annotations
from dataclasses import dataclass
from typing import Literal
from big_retrieval import config
from big_retrieval.config import recipe

@config.register("source")
@dataclass(frozen=True)
class Drawn(config.Scenes):
    type: Literal["drawn"] = "drawn"

def get_config(arg=""):
    c = recipe.small()
    c.data = recipe.entry(Drawn())
    return c
"""


def test_parts_of_a_config_file_are_pickled_for_data_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.import_shipped("source")
    monkeypatch.setitem(registry._parts, "source", dict(registry._parts["source"]))
    (tmp_path / "drawn.2.py").write_text(PART)
    data = options(f"--config={tmp_path / 'drawn.2.py'}").load_config().data
    assert pickle.loads(pickle.dumps(data)) == data


# ---- Run folders


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 4 steps with checkpoints 3 and 4."""
    workdir = tmp_path_factory.mktemp("finished")
    loop.train(tiny(total_steps=4), workdir, jax.devices()[:1])
    return workdir


def every_file(folder: Path) -> dict[str, bytes]:
    """Relative name -> content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*")) if path.is_file()
    }  # fmt: skip


SPOILT: list[tuple[bytes | None, list[str]]] = [
    (None, ["no config.json"]),
    (b'{"a":', ["config.json is not readable JSON", "another --workdir"]),
    (b"\xff\xfe\x00", ["config.json is not readable JSON"]),
    (b"[" * 100_000, ["config.json is not readable JSON", "the newest checkpoint"]),
    (b'{"data": {"type": ["scenes"]}}', ["config.data.type is ['scenes']"]),
    (b"[]", ["config.json is not a config"]),
    (b'{"a": 1}', ["config.json is not a config", "config.a"]),
]


@pytest.mark.parametrize(("content", "words"), SPOILT)
def test_train_leaves_a_folder_with_a_spoilt_config(
    finished: Path, tmp_path: Path, content: bytes | None, words: list[str]
) -> None:
    file = shutil.copytree(finished, tmp_path / "run") / "config.json"
    file.unlink() if content is None else file.write_bytes(content)
    before = every_file(tmp_path / "run")
    refused(run(QUICK, *SMALL, f"--workdir={tmp_path / 'run'}"), *words)
    assert every_file(tmp_path / "run") == before


def test_train_leaves_a_folder_with_another_config(finished: Path) -> None:
    before = every_file(finished)
    answer = run(QUICK, *SMALL, f"--workdir={finished}")
    refused(answer, str(finished), "config.batch_size was 16, now 8", "another --workdir")
    assert every_file(finished) == before


def test_train_rejects_files_as_folders(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    refused(run(QUICK, *SMALL, f"--workdir={file}"), f"{file} is a file")
    refused(run(QUICK, *SMALL, f"--workdir={file}/run"), f"Cannot write --workdir {file}/run")
    refused(run(QUICK, *SMALL, "--workdir=/proc/run"), "Cannot write --workdir /proc/run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("mine")
    refused(run(QUICK, *SMALL, f"--workdir={tmp_path / 'run'}"), "checkpoints is a file")
    assert file.read_text() == "mine"
    assert (tmp_path / "run" / "checkpoints").read_text() == "mine"


def test_failed_start_can_be_repeated(tmp_path: Path) -> None:
    words = [QUICK, *SMALL, f"--workdir={tmp_path}"]
    key = "config.optimizer.groups.a.pattern"
    refused(run(*words, f"--{key}=nope"), key)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["optimizer"]["groups"]["a"]["pattern"] == "nope"
    refused(run(*words, f"--{key}=none"), "'none'")


# ---- Evaluating


def test_evaluate_rejects_runs(finished: Path, tmp_path: Path) -> None:
    def tried(*args: str) -> tuple[int, str]:
        return run(*args, command="evaluate")

    refused(tried(), "--run is missing")
    refused(tried(f"--run={tmp_path / 'nope'}"), f"No folder {tmp_path / 'nope'}")
    refused(tried(f"--run={tmp_path}"), f"No usable checkpoint in {tmp_path}", "manifest.json")
    refused(tried(f"--run={finished}", "--step=9"), "no complete checkpoint of step 9", "3, 4")
    refused(tried(f"--run={finished}", "--step=x"), "--step is 'x'", "whole number")
    refused(tried(f"--run={finished}", QUICK), "--config is not for evaluate")


def test_evaluate_names_damage(finished: Path, tmp_path: Path) -> None:
    root = shutil.copytree(finished, tmp_path / "run") / "checkpoints"
    (root / "4" / "meta.json").write_text("{}")
    (root / "3" / "manifest.json").unlink()
    before = every_file(tmp_path)
    answer = run(f"--run={tmp_path / 'run'}", command="evaluate")
    refused(answer, "No usable checkpoint", f"{root / '4'} is damaged (meta.json has 2 bytes")
    assert every_file(tmp_path) == before


# ---- Real processes


def test_config_imports_others_from_another_folder(tmp_path: Path) -> None:
    env = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command("main", "--config=clip_b16:runlocal", "--config.batch_size=0"), cwd=tmp_path,
        env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: config.batch_size is 0")
    assert not list(tmp_path.iterdir())


def test_cli_names_unknown_platform(tmp_path: Path) -> None:
    env = {**environment(), "JAX_PLATFORMS": "abacus"}
    done = subprocess.run(
        command("main", QUICK, f"--workdir={tmp_path}"), cwd=ROOT, env=env, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "abacus" in done.stderr
    assert "JAX_PLATFORMS" in done.stderr.strip().splitlines()[-1]


def test_sigterm_in_a_garbage_collector_callback_is_not_lost() -> None:
    asked = []

    def collected(phase: str, info: object) -> None:
        if not asked:
            asked.append(phase)
            signal.raise_signal(signal.SIGTERM)

    def work() -> None:
        with unwinding_on_sigterm():
            gc.collect()
            time.sleep(5)

    gc.callbacks.append(collected)
    try:
        with pytest.raises(SystemExit) as end:
            work()
    finally:
        gc.callbacks.remove(collected)
    assert asked
    assert end.value.code == 128 + signal.SIGTERM
