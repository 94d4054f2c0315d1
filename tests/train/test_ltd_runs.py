"""LTD's configs with the real readers on small files: resumed in both phases, and regions."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.data.build import make_source
from big_retrieval.data.fields.stores import save_store
from big_retrieval.train.loop import train
from configs import ltd_f30k, ltd_tern, ltd_vsrn
from tests.helpers import losses, results, rows
from tests.train.runs import ONE, assert_same_run, train_in_parts

NOUNS = ("dog", "cat", "bird", "horse")
COLORS = ("red", "green", "blue", "grey")
WIDTH = 6  # of word vectors and targets


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Karpathy's file with 24 images in a folder, regions, word vectors, and targets."""
    folder = tmp_path_factory.mktemp("flickr")
    rng, images = np.random.default_rng(0), []
    for number in range(24):
        noun, color = NOUNS[number % 4], COLORS[number // 4 % 4]
        pixels = rng.integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
        words = ("a", "the", "one", "my")
        texts = [f"{word} {color} {noun} isn't here, {number}." for word in words]
        split = ("train", "train", "val", "test")[number % 4] if number > 11 else "train"
        sentences = [{"raw": text} for text in [*texts, f"{color} {noun}!"]]
        images.append({"filename": f"{number}.jpg", "split": split, "sentences": sentences})
    (folder / "dataset_flickr30k.json").write_text(json.dumps({"images": images}))
    words = [*NOUNS, *COLORS, "a", "the", "is", "here", "."]
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


def shrunk(c: recipe.Editable) -> recipe.Editable:
    """The config with smaller sizes."""
    c.unlock()
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


def arguments(folder: Path) -> str:
    files = f"data={folder},glove={folder}/glove.txt,targets={folder}/targets.npy"
    return f"{files},size={WIDTH}"


def test_argument_none_disables_a_file() -> None:
    texts = configs.load(ltd_f30k.get_config("glove=none")).towers["text"]
    assert isinstance(texts, configs.Gru)
    assert texts.glove == ""
    c = configs.load(ltd_tern.get_config("bert=none"))
    assert c.tokenizer.learned
    assert not c.init


@pytest.mark.slow
def test_run_resumed_in_both_phases_is_bit_identical(tmp_path: Path, folder: Path) -> None:
    """Killed processes: test_resume."""

    def config(stop_after: int | None = None) -> configs.Config:
        c = shrunk(ltd_f30k.get_config(arguments(folder)))
        c.stop_after = stop_after
        return configs.load(c)

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(config(), whole, ONE)
    count = len(make_source(configs.Karpathy(path=str(folder / "dataset_flickr30k.json"))))
    steps = 4 * count * 5 // 8
    train_in_parts(config, cut, steps // 4 + 3, 3 * steps // 4 + 2)
    assert_same_run(cut, whole)
    assert len(losses(cut)) == steps
    for name in ("evaluated_step", "retrieval/test/rsum"):
        assert results(cut)[name] == results(whole)[name] > 0, name
    names = ("decoder/multiplier_raw", "decoder/violated_for", "learning_rate", "swa_count")
    values = [[[row.get(name) for name in names] for row in rows(run)] for run in (cut, whole)]
    assert values[0] == values[1]
    rates = {row["learning_rate"] for row in rows(cut) if "learning_rate" in row}
    assert max(rates) == pytest.approx(2e-4)
    assert min(rates) <= 2e-5


@pytest.mark.slow
def test_vsrn_on_regions_of_a_split_file(tmp_path: Path, folder: Path) -> None:
    given = f"name=flickr30k,regions={folder}/regions,{arguments(folder)}"
    c = shrunk(ltd_vsrn.get_config(given))
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
