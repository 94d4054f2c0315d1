"""LTD's configs by the real readers on files that are made here: killed, resumed, and regions."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from big_retrieval import config as configs
from big_retrieval.data.build import make_source
from big_retrieval.data.fields.stores import save_store
from big_retrieval.train.loop import train
from configs import ltd_f30k, ltd_tern, ltd_vsrn
from tests.helpers import ROOT, command, environment, losses, results, rows

NOUNS = ("dog", "cat", "bird", "horse")
COLOURS = ("red", "green", "blue", "grey")
WIDTH = 6  # of word vectors and targets


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Karpathy's file with 24 images in a folder, regions, word vectors, and targets."""
    folder = tmp_path_factory.mktemp("flickr")
    rng, images = np.random.default_rng(0), []
    for number in range(24):
        noun, colour = NOUNS[number % 4], COLOURS[number // 4 % 4]
        pixels = rng.integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
        words = ("a", "the", "one", "my")
        texts = [f"{word} {colour} {noun} isn't here, {number}." for word in words]
        images.append(
            {
                "filename": f"{number}.jpg",
                "split": ("train", "train", "val", "test")[number % 4] if number > 11 else "train",
                "sentences": [{"raw": text} for text in [*texts, f"{colour} {noun}!"]],
            }
        )
    (folder / "dataset_flickr30k.json").write_text(json.dumps({"images": images}))
    words = [*NOUNS, *COLOURS, "a", "the", "is", "here", "."]
    lines = [" ".join([word, *map(str, rng.normal(size=WIDTH))]) for word in words]
    (folder / "glove.txt").write_text("\n".join(lines) + "\n")
    regions = folder / "regions"
    regions.mkdir()
    np.save(regions / "features.npy", rng.normal(size=(24, 36, 2048)).astype(np.float32))
    np.save(regions / "boxes.npy", np.tile(np.array([0, 0, 1, 1], np.float32), (24, 36, 1)))
    (regions / "regions.json").write_text(json.dumps({"ids": [str(n) for n in range(24)]}))
    texts = list(make_source(configs.load(ltd_f30k.get_config(f"data={folder}")).data).captions())
    save_store(str(folder / "targets.npy"), rng.normal(size=(len(texts), WIDTH)), texts)
    return folder


# A config file in a folder of its own, which changes the sizes of ours and nothing else.
SMALL = """
from configs import ltd_f30k

def get_config(arg=""):
    c = ltd_f30k.get_config(arg)
    return shrunk(c)

def shrunk(c):
    c.init = {}
    c.batch_size, c.total_epochs, c.log_every, c.checkpoint_every = 8, 4, 1, 7
    if "phases" in c.optimizer and "all" in c.optimizer.phases:
        c.optimizer.phases.all.start_epoch = 2
        c.towers.image.update(blocks=(1, 1), stem=8)
        c.fields.image.size = 32
    c.towers.text.update(width=16, words=6)
    for field in (c.fields.image, c.fields.text):
        if field.head.type == "mlp":
            field.head.dim = 16
    c.fields.text.length = 16
    c.losses.decoder.update(hidden=16)
    c.losses.decoder.constraint.bound = 0.9
    return c
"""


def arguments(folder: Path) -> str:
    """What both configs are told of the files."""
    files = f"data={folder},glove={folder}/glove.txt,targets={folder}/targets.npy"
    return f"{files},size={WIDTH}"


def test_what_none_stands_for() -> None:
    """No file is called "none"."""
    texts = configs.load(ltd_f30k.get_config("glove=none")).towers["text"]
    assert isinstance(texts, configs.Gru)
    assert texts.glove == ""
    c = configs.load(ltd_tern.get_config("bert=none"))
    assert c.tokenizer.learned
    assert not c.init


@pytest.mark.slow
def test_two_phases_killed_in_each(tmp_path: Path, folder: Path, warm_python: list[str]) -> None:
    """A run that is killed in both phases is the run that was never killed, multiplier and all."""
    (tmp_path / "small.py").write_text(SMALL)

    def start(workdir: Path) -> subprocess.Popen[bytes]:
        given = [f"--config={tmp_path / 'small.py'}:{arguments(folder)}", f"--workdir={workdir}"]
        return subprocess.Popen(
            command("main", *given, python=warm_python), cwd=ROOT, env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def finish(workdir: Path) -> None:
        process = start(workdir)
        output = process.communicate(timeout=600)[0].decode()
        assert process.returncode == 0, output

    finish(tmp_path / "whole")
    count = len(make_source(configs.Karpathy(path=str(folder / "dataset_flickr30k.json"))))
    steps = 4 * count * 5 // 8
    cut = tmp_path / "cut"
    for step in (steps // 4 + 3, 3 * steps // 4 + 2):
        process = start(cut)
        while step_of(cut) < step:
            assert process.poll() is None, process.communicate()[0].decode()
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (cut / "results.json").exists()
    finish(cut)
    assert losses(cut) == losses(tmp_path / "whole")
    assert len(losses(cut)) == steps
    found, expected = results(cut), results(tmp_path / "whole")
    for name in ("params_sha256", "evaluated_step", "retrieval/test/rsum"):
        assert found[name] == expected[name], name
    assert found["resumed_from"]
    assert found["retrieval/test/rsum"] > 0
    for row, other in zip(rows(cut), rows(tmp_path / "whole"), strict=True):
        for name in (
            "decoder/multiplier_raw",
            "decoder/violated_for",
            "learning_rate",
            "swa_count",
        ):
            assert row.get(name) == other.get(name), (row["step"], name)
    rates = {row["learning_rate"] for row in rows(cut) if "learning_rate" in row}
    assert max(rates) == pytest.approx(2e-4)
    assert min(rates) <= 2e-5


def step_of(workdir: Path) -> int:
    """The last logged step; 0 before the first."""
    try:
        return max(losses(workdir), default=0)
    except (OSError, ValueError):
        return 0


@pytest.mark.slow
def test_vsrn_on_regions_of_a_split_file(tmp_path: Path, folder: Path) -> None:
    names: dict[str, Any] = {}
    exec(SMALL, names)
    given = f"name=flickr30k,regions={folder}/regions,{arguments(folder)}"
    c = names["shrunk"](ltd_vsrn.get_config(given))
    c.optimizer.phases.second.start_epoch = 1
    c.towers.regions.update(width=16, depth=1)
    c.total_epochs, c.total_steps = None, 14
    train(configs.load(c), tmp_path / "run")
    found = rows(tmp_path / "run")
    assert found[-1]["step"] == 14
    assert np.isfinite(found[-2]["loss"])
    frozen = [row for row in found if "learning_rate" in row]
    assert frozen[0]["learning_rate"] == pytest.approx(2e-4)
    assert frozen[-1]["learning_rate"] == pytest.approx(2e-5)
