"""Runs on files: changed files are detected, and damage of a record changes no other record."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.data import build
from big_retrieval.data.sources import evenly_spaced
from big_retrieval.errors import UserError
from big_retrieval.evals.systems import model_system
from big_retrieval.inference.load import load
from big_retrieval.io.manifest import read_meta
from big_retrieval.train.loop import train
from big_retrieval.train.run import set_up
from tests.helpers import results, tiny
from tests.train.runs import ONE, assert_same_run, train_in_parts

pytestmark = pytest.mark.usefixtures("one_model")

COUNT = 40
TEXTS = [[f"scene {n}", f"a picture, number {n}"] for n in range(COUNT)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pairs as JSON lines."""
    folder = tmp_path_factory.mktemp("pairs")
    rng = np.random.default_rng(0)
    for n in range(COUNT):
        pixels = rng.integers(0, 256, (40, 36, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{n}.jpg", quality=90)
    lines = [{"image": f"{n}.jpg", "captions": TEXTS[n]} for n in range(COUNT)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def test_resume_and_evaluate_detect_changed_files(
    folder: Path, tmp_path: Path, said: list[str]
) -> None:
    lines = (folder / "pairs.jsonl").read_text().splitlines()
    paths = [folder / "train.jsonl", folder / "test.jsonl"]
    for path in paths:
        path.write_text("\n".join(lines))
    data, held_out = (recipe.entry(configs.Pairs(path=str(path))) for path in paths)
    evals = {"test": recipe.entry(configs.Retrieval(), data=held_out)}
    config = tiny(data=data, evals=evals, report=False, stop_after=1)
    train(config, tmp_path / "run", ONE)
    checkpoint = tmp_path / "run" / "checkpoints" / "1"

    paths[1].write_text("\n".join([lines[3], *lines]))
    model = load(checkpoint)
    model_system(model, "", "", 1, read_meta(checkpoint)["beside"])
    assert any("config.evals.test.data has changed since the checkpoint" in x for x in said)
    with pytest.MonkeyPatch.context() as patch:  # like a later version of the readers
        patch.setattr(build, "VERSION", build.VERSION + 1)
        model_system(model, "", "", 1, read_meta(checkpoint)["beside"])
    assert any("config.evals.test.data is read by other rules" in x for x in said)

    (index,) = sorted({*range(COUNT)} - {*evenly_spaced(COUNT, 32)})[:1]  # not in the sample
    for changed, words in (
        ([*lines[:index], lines[0], *lines[index + 1 :]], "trained with other rows"),
        ([lines[3], *lines], "with other records: config.data had 40, now 41"),
    ):
        paths[0].write_text("\n".join(changed))
        with pytest.raises(UserError, match=words):
            train(config, tmp_path / "run", ONE)


@pytest.mark.slow
def test_resumed_run_with_damage_is_bit_identical(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "pairs.jsonl").read_text().splitlines()
    lines[3] = json.dumps({"image": "lost.jpg", "captions": "a"})
    lines[7] = json.dumps({"image": "7.jpg", "captions": ""})
    broken = folder / "broken.jsonl"
    broken.write_text("\n".join(lines))
    keys: Any = {"data": recipe.entry(configs.Pairs(path=str(broken))), "report": False}
    train(tiny(**keys), tmp_path / "whole", ONE)
    train_in_parts(lambda **more: tiny(**keys, **more), tmp_path / "cut", 5)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")
    for run in ("whole", "cut"):
        assert results(tmp_path / run)["damaged"] == 2
        named = (tmp_path / run / "damaged.jsonl").read_text().splitlines()
        assert sorted(json.loads(line)["record"] for line in named) == [3, 7]


def test_reading_fails_above_max_damaged(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "pairs.jsonl").read_text().splitlines()
    for number in range(0, COUNT, 3):
        lines[number] = "{"
    (folder / "bad.jsonl").write_text("\n".join(lines))
    data = recipe.entry(configs.Pairs(path=str(folder / "bad.jsonl")))
    words = r"config\.loader\.max_damaged 0\.01 allows.*not JSON"
    reading = closing(set_up(tiny(data=data), tmp_path, ONE).batches(0, 8))
    with reading as batches, pytest.raises(UserError, match=words):
        list(batches)


@pytest.mark.slow
def test_evaluation_skips_and_lists_a_damaged_record(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "pairs.jsonl").read_text().splitlines()
    lines[3] = json.dumps({"image": "lost.jpg", "captions": "a"})
    (folder / "test.jsonl").write_text("\n".join(lines))
    data = recipe.entry(configs.Pairs(path=str(folder / "pairs.jsonl")))
    test = recipe.entry(configs.Retrieval(), data=configs.Pairs(path=str(folder / "test.jsonl")))
    train(tiny(data=data, evals={"test": test}, report=False, total_steps=2), tmp_path, ONE)
    assert "retrieval/test/image_to_text/R@1" in results(tmp_path)
    assert "lost.jpg" in (tmp_path / "damaged.jsonl").read_text()


@pytest.mark.slow
def test_mixture_logs_its_shares_and_resumes_bit_identical(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    data = recipe.entry(configs.Mixture())
    for name, weight in (("often", 3.0), ("rarely", 1.0)):
        part = configs.MixturePart(configs.Pairs(path=str(folder / "pairs.jsonl")), weight)
        data.parts[name] = recipe.entry(part)
    keys: Any = {"data": data, "report": False}
    train(tiny(**keys), tmp_path / "whole", ONE)
    output = capsys.readouterr().out
    assert "often 75.0% (1.5 passes an epoch), rarely 25.0% (0.5 passes an epoch)" in output
    train_in_parts(lambda **more: tiny(**keys, **more), tmp_path / "cut", 3)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")
