"""Resumed = uninterrupted, bit for bit; on other devices, to 1e-5; damage is detected."""

import contextlib
import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.data.images import decoding
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.errors import UserError
from big_retrieval.inference.saved import restore_params
from big_retrieval.io import manifest
from big_retrieval.parallel import fetch
from big_retrieval.train.data_fingerprint import _some_images
from big_retrieval.train.loop import train
from big_retrieval.train.run import set_up
from tests.examples.helpers import SHALLOW, SMALL, copied
from tests.helpers import (
    ROOT,
    command,
    ema,
    environment,
    losses,
    mesh_keys,
    results,
    rows,
    tiny,
    user_error,
)
from tests.train.runs import ONE, assert_close_run, assert_same_run, train_in_parts

pytestmark = pytest.mark.usefixtures("one_model")

SLOW = pytest.mark.slow
AVERAGED = {"optimizer__averaging": ema(0.9)}


@pytest.fixture(scope="module")
def full_run(trained: Callable[..., Path]) -> Path:
    """The uninterrupted run of 8 steps."""
    return trained(tiny())


@pytest.fixture(scope="module")
def stopped_once(trained: Callable[..., Path]) -> Path:
    """The same run stopped after step 6, with checkpoints 3 and 6."""
    workdir = trained(tiny(stop_after=6))
    assert not (workdir / "results.json").exists()
    assert manifest.complete_steps(workdir / "checkpoints") == [3, 6]
    return workdir


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run."""
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({}, (4, 5)),
        ({"log_every": 4}, (3,)),  # stopped between log lines
        pytest.param(AVERAGED, (4, 5), marks=SLOW),
    ],
)
def test_resumed_run_is_bit_identical(
    trained: Callable[..., Path], tmp_path: Path, changes: dict[str, Any], stops: tuple[int, ...]
) -> None:
    train_in_parts(lambda **more: tiny(**changes, **more), tmp_path, *stops)
    whole = trained(tiny(**changes))
    assert_same_run(tmp_path, whole)
    assert results(whole)["resumed_from"] is None


def test_finished_run_is_unchanged(full_run: Path, tmp_path: Path) -> None:
    shutil.copytree(full_run, tmp_path / "run")
    before = losses(tmp_path / "run")
    again = train(tiny(), tmp_path / "run", ONE)
    assert again["params_sha256"] == results(full_run)["params_sha256"]
    assert losses(tmp_path / "run") == before


@pytest.mark.parametrize(("first", "then"), [(8, 1), pytest.param(1, 8, marks=SLOW)])
def test_run_resumes_on_another_number_of_devices(
    full_run: Path, tmp_path: Path, first: int, then: int
) -> None:
    train(tiny(stop_after=4), tmp_path, jax.devices()[:first])
    train(tiny(), tmp_path, jax.devices()[:then])
    assert results(tmp_path)["resumed_from"] == 4
    assert [r["records"] for r in rows(tmp_path)] == [r["records"] for r in rows(full_run)]
    assert_close_run(tmp_path, full_run)


@pytest.mark.slow
def test_average_of_weights_is_equal_on_eight_devices(tmp_path: Path) -> None:
    averages = []
    for count in (1, 8):
        config = tiny(optimizer__averaging=ema(0.99), total_steps=4)
        train(config, tmp_path / str(count), jax.devices()[:count])
        averages.append(restore_params(tmp_path / str(count) / "checkpoints" / "4", "ema"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *averages)


@pytest.mark.slow
def test_run_resumes_on_another_mesh(full_run: Path, tmp_path: Path) -> None:
    train(tiny(stop_after=4, mesh__fsdp=2, mesh__tensor=2), tmp_path)
    train(tiny(mesh__fsdp=4), tmp_path)
    assert_close_run(tmp_path, full_run)


@pytest.mark.slow
def test_bfloat16_run_with_averages_is_restored_exactly_on_every_mesh(tmp_path: Path) -> None:
    """Saved with data=8; parameters, averages and optimizer state are restored bit for bit."""
    changes: dict[str, Any] = {"dtype": "bfloat16", **AVERAGED}
    train(tiny(**changes), tmp_path / "whole")
    train(tiny(stop_after=4, **changes), tmp_path / "parts")
    digests = []
    for axes in ({}, {"fsdp": 8}, {"tensor": 4}, {"fsdp": 2, "tensor": 2}):
        state, step = set_up(tiny(**changes, **mesh_keys(**axes)), tmp_path / "parts").restore()
        assert step == 4
        arrays = jax.tree.leaves((state.params, state.ema, state.opt_state))
        digests.append([np.asarray(fetch(x)).tobytes() for x in arrays])
    assert all(digest == digests[0] for digest in digests)
    train(tiny(**changes, mesh__fsdp=2, mesh__tensor=2), tmp_path / "parts")
    assert_close_run(tmp_path / "parts", tmp_path / "whole", rtol=2e-3)


def files_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def test_damage_detects_every_flipped_bit(stopped: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    original = stopped / "checkpoints" / "6"
    assert manifest.damage(original) is None
    names = [p.relative_to(original) for p in files_of(original)]
    assert len(names) > 8
    for index, name in enumerate([*names, *rng.choices(names, k=20)]):
        folder = tmp_path / str(index)
        shutil.copytree(original, folder)
        flip(folder / name, rng)
        assert manifest.damage(folder) is not None, name


@pytest.mark.parametrize("damage", ["bit flipped", "file cut", "no manifest"])
def test_run_resumes_before_a_damaged_checkpoint(
    full_run: Path, stopped: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    newest = stopped / "checkpoints" / "6"
    array = max(files_of(newest / "state"), key=lambda p: p.stat().st_size)
    if damage == "no manifest":
        (newest / "manifest.json").unlink()
    elif damage == "file cut":
        array.write_bytes(array.read_bytes()[:-1])
    else:
        flip(array, random.Random(1))
    train(tiny(), stopped, ONE)
    assert results(stopped)["resumed_from"] == 3
    assert_same_run(stopped, full_run)
    moved = damage != "no manifest"
    assert ("checkpoints/6 is damaged" in capsys.readouterr().err) == moved
    assert newest.with_name("6.damaged").is_dir() == moved


def test_metrics_are_cut_back_to_the_checkpoint(full_run: Path, stopped: Path) -> None:
    with (stopped / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "loss": 123.0}\n{"step": 8, "lo')  # killed while writing
    train(tiny(), stopped, ONE)
    assert_same_run(stopped, full_run)
    curves = (stopped / "curves.csv").read_text().splitlines()
    assert curves[0].startswith("step,")
    assert len(curves) == 9


def without_times(workdir: Path) -> list[dict[str, Any]]:
    rows = map(json.loads, (workdir / "metrics.jsonl").open())
    times = {"examples_per_second", "data_wait"}
    return [{key: x for key, x in row.items() if key not in times} for row in rows]


@pytest.mark.slow
def test_failing_evaluator_costs_no_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = recipe.entry(configs.Retrieval(), data=configs.Scenes(split="test", count=8))
    config = tiny(evals={"test": test}, eval_every=4, checkpoint_every=8)
    train(config, tmp_path / "whole", ONE)
    fails, inner = iter([True, False, True]), configs.Retrieval.run

    def run(*args: Any) -> dict[str, float]:
        if next(fails, False):
            raise ValueError("a bug")
        return inner(*args)

    monkeypatch.setattr(configs.Retrieval, "run", run)
    parts = tmp_path / "parts"
    for step in (4, 8):  # the evaluation of step 4 succeeds when the run is resumed
        with pytest.raises(ValueError, match="a bug"):
            train(config, parts, ONE)
        meta = manifest.read_meta(parts / "checkpoints" / str(step))
        assert (meta["evaluated"], meta["metrics"]) == (False, {})
        assert manifest.complete_steps(parts / "checkpoints")[-1] == step
    train(config, parts, ONE)
    assert_same_run(parts, tmp_path / "whole")
    assert without_times(parts) == without_times(tmp_path / "whole")
    assert (
        results(parts)["retrieval/test/rsum"] == results(tmp_path / "whole")["retrieval/test/rsum"]
    )
    metas = [tmp_path / "whole/checkpoints/8", *(parts / "checkpoints").iterdir()]
    assert [manifest.read_meta(folder)["evaluated"] for folder in metas] == [True] * 3
    assert all("retrieval/test/rsum" in manifest.read_meta(folder)["metrics"] for folder in metas)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 32}, "config.batch_size was 16, now 32"),
        ({"optimizer__lr": 0.5}, "config.optimizer.lr was 0.002, now 0.5"),
        ({"total_steps": 9}, "config.total_steps was 8, now 9"),
        ({"data__count": 99}, "config.data.count was 100, now 99"),
    ],
)
def test_resume_rejects_a_changed_config(stopped: Path, change: dict, words: str) -> None:
    with user_error(words, str(stopped)):
        train(tiny(**change), stopped, ONE)


def edit_meta(checkpoint: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes meta.json of a checkpoint, which stays valid."""
    meta = json.loads((checkpoint / "meta.json").read_text())
    change(meta)
    (checkpoint / "meta.json").write_bytes(manifest.to_json(meta))
    manifest.write_manifest(checkpoint)


def test_resume_rejects_a_checkpoint_of_another_run_and_loses_nothing(
    full_run: Path, stopped: Path
) -> None:
    """Other keys, records and tokenizers: test_checkpoints."""
    alien = stopped / "checkpoints" / "7"
    shutil.copytree(alien.with_name("6"), alien)
    config = json.loads((alien / "config.json").read_text())
    (alien / "config.json").write_bytes(manifest.to_json({**config, "seed": 7}))
    edit_meta(alien, lambda meta: meta.update(step=7))
    with user_error(f"Cannot resume {alien}: config.seed was 7, now "):
        train(tiny(), stopped, ONE)
    shutil.rmtree(alien)
    train(tiny(), stopped, ONE)
    assert_same_run(stopped, full_run)


def test_resume_accepts_changed_intervals_and_loader(full_run: Path, stopped: Path) -> None:
    config = tiny(checkpoint_every=100, eval_every=5, loader__prefetch=1, loader__threads=1)
    train(config, stopped, ONE)
    assert_same_run(stopped, full_run)


def test_fingerprint_changes_with_a_row_of_a_file_of_arrays(tmp_path: Path) -> None:
    rows = np.zeros((100, 2), np.float32)
    goal = recipe.entry(configs.ArrayField(), shape=(2,), file=str(tmp_path / "goal.npy"))
    prints = []
    for value in (0, 1):
        rows[7] = value
        np.save(tmp_path / "goal.npy", rows)
        prints.append(set_up(tiny(fields__goal=goal), tmp_path / str(value), ONE).fingerprints)
    assert {k for k, x in prints[0].items() if prints[1][k] != x} == {"goal"}


def test_fingerprint_changes_with_an_image_file() -> None:
    class Field:
        modality, column = "image", "image"

    class Reader:
        field = Field()

    class Files(list):
        def place(self, index: int) -> str:
            return f"files, record {index}"

    files: Any = Files({"image": decoding.Encoded(bytes([i]))} for i in range(5))
    readers: Any = {"image": Reader()}
    before = _some_images(readers, files)
    files[3] = {"image": decoding.Encoded(b"other")}
    assert before != _some_images(readers, files)


def test_resume_rejects_edited_texts(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captions = SceneRecords.texts

    def edited(self: Any, index: int, column: str) -> tuple[str, ...]:
        return captions(self, len(self) - 1 - index, column)

    monkeypatch.setattr(SceneRecords, "texts", edited)
    with pytest.raises(UserError, match=r"other texts than config\.data has now"):
        train(tiny(), stopped, ONE)


def test_results_do_not_depend_on_a_shortened_metrics_file(
    full_run: Path, tmp_path: Path, said: list[str]
) -> None:
    run = Path(shutil.copytree(full_run, tmp_path / "run"))
    (run / "results.json").unlink()
    path = run / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    train(tiny(), run, ONE)
    times = {"seconds": 0, "resumed_from": None}
    assert results(run) | times == results(full_run) | times
    assert any("lacks values of step 8" in line for line in said)


def test_resume_warns_about_changed_versions(stopped: Path, said: list[str]) -> None:
    edit_meta(stopped / "checkpoints/6", lambda meta: meta["versions"].update(jax="0.1"))
    train(tiny(stop_after=7), stopped, ONE)
    assert any(f"jax 0.1 -> {jax.__version__}" in line for line in said)


# ---- Processes


def run(python: list[str], config: Path, workdir: Path, *flags: str) -> list[str]:
    return command(
        "main", f"--config={config}:runlocal", f"--workdir={workdir}", *SMALL, SHALLOW,
        "--config.total_steps=12", "--config.log_every=1", "--config.checkpoint_every=3",
        "--config.data.count=200", "--config.report=True", *flags, python=python,
    )  # fmt: skip


def launch(args: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        args, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(args: list[str]) -> None:
    process = launch(args)
    output = process.communicate(timeout=600)[0].decode()
    assert process.returncode == 0, output


@pytest.fixture(scope="module")
def process_whole(
    warm_python: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, float]:
    """A config with a custom loss, an uninterrupted run of it, and the seconds of the run."""
    folder = tmp_path_factory.mktemp("processes")
    config, start = copied("matryoshka", folder, "matryoshka"), time.monotonic()
    finish(run(warm_python, config, folder / "whole"))
    return config, folder / "whole", time.monotonic() - start


@pytest.mark.slow
def test_run_killed_at_six_random_moments_is_bit_identical(
    tmp_path: Path, warm_python: list[str], process_whole: tuple[Path, Path, float]
) -> None:
    """One in each sixth of a run's time; an unfinished run is killed again."""
    config, whole, length = process_whole
    rng, kills, folders = random.Random(2), list(range(6)), 0
    rng.shuffle(kills)
    while kills:
        folders += 1
        workdir = tmp_path / f"cut{folders}"
        while kills and not (workdir / "results.json").exists():
            process = launch(run(warm_python, config, workdir))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=length * (kills.pop() + rng.random()) / 6)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        finish(run(warm_python, config, workdir))
        assert_same_run(workdir, whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_and_ends_the_process(
    tmp_path: Path,
    warm_python: list[str],
    process_whole: tuple[Path, Path, float],
    number: signal.Signals,
) -> None:
    config, whole, _ = process_whole
    args = run(warm_python, config, tmp_path, "--config.checkpoint_every=1000")
    process = launch(args)
    while not ((tmp_path / "metrics.jsonl").exists() and losses(tmp_path)):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    output = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 0, output
    if "finished" not in output:
        assert "to continue, repeat the same command" in output
        assert manifest.complete_steps(tmp_path / "checkpoints")
    finish(args)
    assert_same_run(tmp_path, whole)
