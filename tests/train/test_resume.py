"""Resumed = uninterrupted, bit for bit; on other devices, to 1e-5; damage is noticed."""

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
from tests.train.runs import ONE, assert_close_run, assert_same_run

pytestmark = pytest.mark.usefixtures("one_model")

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run of 8 steps."""
    workdir = tmp_path_factory.mktemp("whole")
    train(tiny(), workdir, ONE)
    return workdir


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run stopped behind step 6, with checkpoints 3 and 6."""
    workdir = tmp_path_factory.mktemp("stopped")
    assert train(tiny(stop_after=6), workdir, ONE) == {}
    assert not (workdir / "results.json").exists()
    assert manifest.complete_steps(workdir / "checkpoints") == [3, 6]
    return workdir


@pytest.mark.parametrize(
    "extra", [{}, pytest.param({"optimizer__averaging": ema(0.9)}, marks=pytest.mark.slow)]
)
def test_stop_and_go_on_is_bit_identical(
    whole: Path, tmp_path: Path, extra: dict[str, float]
) -> None:
    if extra:
        whole = tmp_path / "whole"
        train(tiny(**extra), whole, ONE)
    train(tiny(stop_after=4, **extra), tmp_path / "parts", ONE)
    train(tiny(stop_after=5, **extra), tmp_path / "parts", ONE)
    train(tiny(**extra), tmp_path / "parts", ONE)
    assert_same_run(tmp_path / "parts", whole)
    assert results(tmp_path / "parts")["resumed_from"] == 5
    assert results(whole)["resumed_from"] is None


def test_a_stop_between_log_lines_leaves_no_extra_row(tmp_path: Path) -> None:
    train(tiny(log_every=4), tmp_path / "whole", ONE)
    train(tiny(log_every=4, stop_after=3), tmp_path / "parts", ONE)
    train(tiny(log_every=4), tmp_path / "parts", ONE)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_finished_run_is_left_as_it_is(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    before = losses(tmp_path / "run")
    again = train(tiny(), tmp_path / "run", ONE)
    assert again["params_sha256"] == results(whole)["params_sha256"]
    assert losses(tmp_path / "run") == before


@pytest.mark.parametrize(("first", "then"), [(8, 1), pytest.param(1, 8, marks=SLOW)])
def test_other_number_of_devices(whole: Path, tmp_path: Path, first: int, then: int) -> None:
    train(tiny(stop_after=4), tmp_path, jax.devices()[:first])
    train(tiny(), tmp_path, jax.devices()[:then])
    assert results(tmp_path)["resumed_from"] == 4
    assert [r["records"] for r in rows(tmp_path)] == [r["records"] for r in rows(whole)]
    assert_close_run(tmp_path, whole)


@pytest.mark.slow
def test_the_average_of_weights_is_the_same_on_eight_devices(tmp_path: Path) -> None:
    averages = []
    for count in (1, 8):
        config = tiny(optimizer__averaging=ema(0.99), total_steps=4)
        train(config, tmp_path / str(count), jax.devices()[:count])
        averages.append(restore_params(tmp_path / str(count) / "checkpoints" / "4", "ema"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *averages)


@pytest.mark.slow
def test_onto_another_mesh(whole: Path, tmp_path: Path) -> None:
    train(tiny(stop_after=4, mesh__fsdp=2, mesh__tensor=2), tmp_path)
    train(tiny(mesh__fsdp=4), tmp_path)
    assert_close_run(tmp_path, whole)


@pytest.mark.slow
def test_a_bfloat16_run_with_averages_is_restored_exactly_on_every_mesh(tmp_path: Path) -> None:
    """Saved with data=8; parameters, averages and optimizer state come back bit for bit."""
    extra: dict[str, Any] = {"dtype": "bfloat16", "optimizer__averaging": ema(0.9)}
    train(tiny(**extra), tmp_path / "whole")
    train(tiny(stop_after=4, **extra), tmp_path / "parts")
    digests = {}
    meshes = [{}, {"fsdp": 8}, {"tensor": 4}, {"fsdp": 2, "tensor": 2}]
    for axes in meshes:
        found = set_up(tiny(**extra, **mesh_keys(**axes)), tmp_path / "parts")
        state, step = found.restore()
        assert step == 4
        arrays = jax.tree.leaves((state.params, state.ema, state.opt_state))
        digests[str(axes)] = [np.asarray(fetch(x)).tobytes() for x in arrays]
    assert len(digests) == len(meshes)
    assert all(each == digests["{}"] for each in digests.values())
    train(tiny(**extra, mesh__fsdp=2, mesh__tensor=2), tmp_path / "parts")
    assert_close_run(tmp_path / "parts", tmp_path / "whole", rtol=2e-3)


def files_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def test_every_flipped_bit_is_noticed(stopped: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    original = stopped / "checkpoints" / "6"
    assert manifest.damage(original) is None
    names = [p.relative_to(original) for p in files_of(original)]
    assert len(names) > 8
    for place, name in enumerate([*names, *rng.choices(names, k=20)]):
        folder = tmp_path / str(place)
        shutil.copytree(original, folder)
        flip(folder / name, rng)
        assert manifest.damage(folder) is not None, name


def test_damaged_checkpoint_is_named_moved_aside_and_replaced(
    whole: Path, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "6"
    array = max(files_of(newest / "state"), key=lambda p: p.stat().st_size)
    flip(array, random.Random(1))
    train(tiny(), tmp_path / "run", ONE)
    assert "checkpoints/6 is damaged" in capsys.readouterr().err
    assert results(tmp_path / "run")["resumed_from"] == 3
    assert (tmp_path / "run" / "checkpoints" / "6.damaged").is_dir()
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize("how", ["no manifest", "file cut"])
def test_half_written_checkpoints(whole: Path, stopped: Path, tmp_path: Path, how: str) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "6"
    if how == "no manifest":
        (newest / "manifest.json").unlink()
    else:
        array = max(files_of(newest / "state"), key=lambda p: p.stat().st_size)
        array.write_bytes(array.read_bytes()[:-1])
    train(tiny(), tmp_path / "run", ONE)
    assert results(tmp_path / "run")["resumed_from"] == 3
    assert_same_run(tmp_path / "run", whole)


def test_metrics_are_cut_back_to_the_checkpoint(whole: Path, stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "loss": 123.0}\n{"step": 8, "lo')  # killed while writing
    train(tiny(), tmp_path / "run", ONE)
    assert_same_run(tmp_path / "run", whole)
    curves = (tmp_path / "run" / "curves.csv").read_text().splitlines()
    assert curves[0].startswith("step,")
    assert len(curves) == 9


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), [("text_to_image/mean_rank", "min"), ("rsum", "max")])
def test_the_two_newest_and_the_best_are_kept(tmp_path: Path, name: str, mode: str) -> None:
    test = recipe.entry(configs.Retrieval(), data=configs.Scenes(split="test", count=20), every=1)
    metric = f"retrieval/test/{name}"
    config = tiny(
        evals={"test": test}, checkpoint_every=1, total_steps=4, best_metric=metric, best_mode=mode
    )
    train(config, tmp_path, ONE)
    kept = manifest.complete_steps(tmp_path / "checkpoints")
    scores = {
        row["step"]: row[metric]
        for row in map(json.loads, (tmp_path / "metrics.jsonl").open())
        if metric in row
    }
    assert len(scores) == 4
    sign = 1 if mode == "min" else -1
    best = min(scores, key=lambda step: (sign * scores[step], -step))
    assert kept == sorted({3, 4, best})


def without_times(workdir: Path) -> list[dict[str, Any]]:
    rows = map(json.loads, (workdir / "metrics.jsonl").open())
    times = {"examples_per_second", "data_wait"}
    return [{key: x for key, x in row.items() if key not in times} for row in rows]


@pytest.mark.slow
def test_an_evaluator_that_fails_costs_no_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = recipe.entry(configs.Retrieval(), data=configs.Scenes(split="test", count=8))
    config = tiny(evals={"test": test}, eval_every=4, checkpoint_every=8)
    train(config, tmp_path / "whole", ONE)
    fails, inner = iter([True, False, True]), configs.Retrieval.run

    def run(*args: Any) -> dict[str, float]:
        if next(fails, False):
            raise ValueError("a mistake")
        return inner(*args)

    monkeypatch.setattr(configs.Retrieval, "run", run)
    for step in (4, 8):  # that of 4 succeeds when the run is resumed
        with pytest.raises(ValueError, match="a mistake"):
            train(config, tmp_path / "parts", ONE)
        meta = manifest.read_meta(tmp_path / "parts" / "checkpoints" / str(step))
        assert (meta["evaluated"], meta["metrics"]) == (False, {})
        assert manifest.complete_steps(tmp_path / "parts" / "checkpoints")[-1] == step
    train(config, tmp_path / "parts", ONE)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    assert without_times(tmp_path / "parts") == without_times(tmp_path / "whole")
    found = [results(tmp_path / name)["retrieval/test/rsum"] for name in ("whole", "parts")]
    assert found[0] == found[1]
    metas = [tmp_path / "whole/checkpoints/8", *(tmp_path / "parts/checkpoints").iterdir()]
    assert [manifest.read_meta(folder)["evaluated"] for folder in metas] == [True] * 3
    assert all("retrieval/test/rsum" in manifest.read_meta(folder)["metrics"] for folder in metas)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 32}, ["config.batch_size", "16", "32"]),
        ({"optimizer__lr": 0.5}, ["config.optimizer.lr", "0.002", "0.5"]),
        ({"total_steps": 9}, ["config.total_steps", "8", "9"]),
        ({"data__count": 99}, ["config.data.count", "100", "99"]),
    ],
)
def test_another_config_in_the_folder_is_refused(
    stopped: Path, tmp_path: Path, change: dict, words: list[str]
) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    with user_error(*words):
        train(tiny(**change), tmp_path / "run", ONE)


def edit_meta(checkpoint: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes meta.json of a checkpoint, which stays valid."""
    meta = json.loads((checkpoint / "meta.json").read_text())
    change(meta)
    (checkpoint / "meta.json").write_bytes(manifest.to_json(meta))
    manifest.write_manifest(checkpoint)


def test_a_checkpoint_of_another_run_is_refused_and_nothing_is_lost(
    whole: Path, stopped: Path, tmp_path: Path
) -> None:
    """Other keys, records and tokenizers: test_checkpoints."""
    shutil.copytree(stopped, tmp_path / "run")
    alien = tmp_path / "run" / "checkpoints" / "7"
    shutil.copytree(alien.with_name("6"), alien)
    config = json.loads((alien / "config.json").read_text())
    (alien / "config.json").write_bytes(manifest.to_json({**config, "seed": 7}))
    edit_meta(alien, lambda meta: meta.update(step=7))
    words = f"{alien} was trained with config.seed = 7, this run has "
    with user_error(words, "remove the checkpoint"):
        train(tiny(), tmp_path / "run", ONE)
    shutil.rmtree(alien)
    train(tiny(), tmp_path / "run", ONE)
    assert_same_run(tmp_path / "run", whole)


def test_what_may_change_on_resume(whole: Path, stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    config = tiny(checkpoint_every=100, eval_every=5, loader__prefetch=1, loader__threads=1)
    train(config, tmp_path / "run", ONE)
    assert_same_run(tmp_path / "run", whole)


def test_other_rows_of_a_file_of_arrays_are_noticed(tmp_path: Path) -> None:
    """By a fingerprint, which a checkpoint keeps: test_checkpoints."""
    rows = np.zeros((100, 2), np.float32)
    goal = recipe.entry(configs.ArrayField(), shape=(2,), file=str(tmp_path / "goal.npy"))
    found = []
    for value in (0, 1):
        rows[7] = value
        np.save(tmp_path / "goal.npy", rows)
        found.append(set_up(tiny(fields__goal=goal), tmp_path / str(value), ONE).fingerprints)
    assert {k for k, x in found[0].items() if found[1][k] != x} == {"goal"}


def test_other_data_is_noticed_by_the_next_records(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    edit_meta(tmp_path / "run/checkpoints/6", lambda meta: meta.update(records=101))
    with pytest.raises(UserError, match="other records"):
        train(tiny(), tmp_path / "run", ONE)


def run(python: list[str], config: Path, workdir: Path, *flags: str) -> list[str]:
    of = [f"--config={config}:runlocal", f"--workdir={workdir}"]
    return [
        *command("main", *of, *SMALL, python=python),
        *["--config.total_steps=12", "--config.log_every=1", "--config.checkpoint_every=3"],
        *["--config.data.count=200", "--config.report=True"],
        *[SHALLOW, *flags],
    ]


def launch(args: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        args, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(args: list[str]) -> str:
    done = subprocess.run(args, cwd=ROOT, env=environment(), capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def process_whole(
    warm_python: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, float]:
    """A config with a loss of its own, an uninterrupted run of it, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("processes")
    config, workdir, begin = (
        copied("matryoshka", folder, "matryoshka"),
        folder / "whole",
        time.monotonic(),
    )
    finish(run(warm_python, config, workdir))
    return config, workdir, time.monotonic() - begin


@pytest.mark.slow
def test_killed_at_six_random_moments(
    tmp_path: Path, warm_python: list[str], process_whole: tuple[Path, Path, float]
) -> None:
    """One in each sixth of a run's time; a run is killed again as long as it is not finished."""
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
def test_signal_saves_and_exits_cleanly(
    tmp_path: Path,
    warm_python: list[str],
    process_whole: tuple[Path, Path, float],
    number: signal.Signals,
) -> None:
    config, whole, _ = process_whole
    again = run(warm_python, config, tmp_path / "cut", "--config.checkpoint_every=1000")
    process = launch(again)
    while not ((tmp_path / "cut" / "metrics.jsonl").exists() and losses(tmp_path / "cut")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    output = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 0, output
    if "finished" not in output:
        assert "to go on, repeat the same command" in output
        assert manifest.complete_steps(tmp_path / "cut" / "checkpoints")
    finish(again)
    assert_same_run(tmp_path / "cut", whole)


def test_edited_texts_are_noticed(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of as many records with other texts is not gone on with."""
    shutil.copytree(stopped, tmp_path / "run")
    captions = SceneRecords.texts

    def edited(self: Any, index: int, column: str) -> tuple[str, ...]:
        return captions(self, len(self) - 1 - index, column)

    monkeypatch.setattr(SceneRecords, "texts", edited)
    with pytest.raises(UserError, match=r"other texts than config\.data gives now, in as many"):
        train(tiny(), tmp_path / "run", ONE)


def test_results_of_a_finished_run_do_not_depend_on_its_metrics_file(
    whole: Path, tmp_path: Path, said: list[str]
) -> None:
    """With a shortened metrics.jsonl the results had the loss of an earlier step."""
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    train(tiny(), tmp_path / "run", ONE)
    changing = {"seconds", "resumed_from"}
    expected, found = (
        {k: v for k, v in results(x).items() if k not in changing}
        for x in (whole, tmp_path / "run")
    )
    assert found == expected
    assert any("lacks values of step 8" in line for line in said)


def test_changed_versions_are_named(stopped: Path, tmp_path: Path, said: list[str]) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    edit_meta(tmp_path / "run/checkpoints/6", lambda meta: meta["versions"].update(jax="0.1"))
    train(tiny(stop_after=7), tmp_path / "run", ONE)
    assert any(f"jax 0.1 -> {jax.__version__}" in line for line in said)


def test_replaced_image_files_are_noticed(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Field:
        modality, column = "image", "image"

    class Reader:
        field = Field()

    class Files(list):
        name = "files"

        def place(self, index: int) -> str:
            return f"files, record {index}"

    files = Files({"image": decoding.Encoded(bytes([i]))} for i in range(5))
    before = _some_images({"image": Reader()}, files)  # type: ignore
    files[3] = {"image": decoding.Encoded(b"other")}
    assert before != _some_images({"image": Reader()}, files)  # type: ignore
    shutil.copytree(stopped, tmp_path / "run")
    edit_meta(
        tmp_path / "run/checkpoints/6",
        lambda meta: meta["beside"].update({"config.data.images": before}),
    )
    monkeypatch.setattr(
        "big_retrieval.train.data_fingerprint._some_images", lambda *_: "another digest"
    )
    with pytest.raises(UserError, match=r"other image files than config\.data gives now"):
        train(tiny(), tmp_path / "run", ONE)
