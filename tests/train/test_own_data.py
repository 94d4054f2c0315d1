"""Runs on own data: the kind of file changes nothing, and damage moves nothing else."""

import csv
import io
import json
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.data import build
from big_retrieval.data.formats.shards import convert
from big_retrieval.data.sources import evenly_spaced
from big_retrieval.errors import UserError
from big_retrieval.evals.systems import model_system
from big_retrieval.inference.load import load
from big_retrieval.io.manifest import read_meta, to_json, write_manifest
from big_retrieval.train.data_fingerprint import ROWS, check_content
from big_retrieval.train.loop import train
from big_retrieval.train.run import set_up
from tests.helpers import losses, results, tiny
from tests.train.runs import ONE

pytestmark = pytest.mark.usefixtures("one_model")

COUNT = 40
TEXTS = [[f"scene {n}", f"a picture, number {n}"] for n in range(COUNT)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pairs in every form."""
    place = tmp_path_factory.mktemp("pairs")
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        pixels = rng.integers(0, 256, (40, 36, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.jpg", quality=90)
    files = [(place / f"{number}.jpg").read_bytes() for number in range(COUNT)]
    lines = [{"image": f"{n}.jpg", "captions": TEXTS[n]} for n in range(COUNT)]
    (place / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with (place / "pairs.csv").open("w", newline="") as file:
        cells = csv.writer(file)
        cells.writerow(["path", "title"])
        cells.writerows([f"{n}.jpg", "|".join(TEXTS[n])] for n in range(COUNT))
    table = pa.table({"jpg": files, "texts": TEXTS})
    pq.write_table(table, place / "pairs.parquet", row_group_size=7)
    for part in range(2):
        with tarfile.open(place / f"{part:03d}.tar", "w") as shard:
            for n in range(part * 20, part * 20 + 20):
                for ending, data in (
                    ("jpg", files[n]),
                    ("json", json.dumps({"texts": TEXTS[n]}).encode()),
                ):
                    info = tarfile.TarInfo(f"{n:05d}.{ending}")
                    info.size = len(data)
                    shard.addfile(info, io.BytesIO(data))
    source = build.make_source(configs.Pairs(path=str(place / "pairs.jsonl")))
    convert(source, place / "shards", shard_records=9, origin={}, max_damaged=0.0)
    return place


def forms(folder: Path) -> dict[str, recipe.Editable]:
    """The same pairs from every kind of file."""
    own = configs.Pairs()
    return {
        "jsonl": recipe.entry(own, path=str(folder / "pairs.jsonl")),
        "csv": recipe.entry(
            own, path=str(folder / "pairs.csv"), image="path", text="title", separator="|"
        ),
        "parquet": recipe.entry(own, path=str(folder / "pairs.parquet"), image="jpg", text="texts"),
        "tar": recipe.entry(configs.Tar(path=str(folder / "{000..001}.tar"), text="json:texts")),
        "array_record": recipe.entry(own, path=str(folder / "shards")),
    }


@pytest.mark.slow
def test_every_kind_of_file_trains_alike(folder: Path, tmp_path: Path) -> None:
    found = {}
    for name, data in forms(folder).items():
        train(tiny(data=data, total_steps=4, report=False), tmp_path / name, ONE)
        found[name] = (losses(tmp_path / name), results(tmp_path / name)["params_sha256"])
        logged = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        found[name] += ([json.loads(row)["records"] for row in logged],)
    assert len(found["jsonl"][0]) == 4
    for name, run in found.items():
        assert run == found["jsonl"], name


def test_resume_and_evaluate_notice_changed_files(
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
    with pytest.MonkeyPatch.context() as patch:  # as a later version of the readers
        patch.setattr(build, "VERSION", build.VERSION + 1)
        model_system(model, "", "", 1, read_meta(checkpoint)["beside"])
        with pytest.raises(UserError, match=r"this version reads files by other rules: resume wi"):
            check_content(checkpoint, config, read_meta(checkpoint)["beside"], {ROWS: ""})
    assert any("config.evals.test.data is read by other rules" in x for x in said)

    (index,) = sorted({*range(COUNT)} - {*evenly_spaced(COUNT, 32)})[:1]  # its text is no sample
    paths[0].write_text("\n".join([*lines[:index], lines[0], *lines[index + 1 :]]))
    with pytest.raises(UserError, match=r"trained with other rows .*: restore \S+train\.jsonl, or"):
        train(config, tmp_path / "run", ONE)
    meta = json.loads((checkpoint / "meta.json").read_text())
    del meta["beside"][ROWS]  # of an older version
    (checkpoint / "meta.json").write_bytes(to_json(meta))
    write_manifest(checkpoint)
    train(config, tmp_path / "run", ONE)

    paths[0].write_text("\n".join([lines[3], *lines]))
    with pytest.raises(UserError, match=r"goes on with other records .* restore \S+train\.jsonl"):
        train(config, tmp_path / "run", ONE)


@pytest.mark.slow
def test_a_run_with_damage_resumes_as_it_was(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "pairs.jsonl").read_text().splitlines()
    lines[3] = json.dumps({"image": "lost.jpg", "captions": "a"})
    lines[7] = json.dumps({"image": "7.jpg", "captions": ""})
    broken = folder / "broken.jsonl"
    broken.write_text("\n".join(lines))
    keys = {"data": recipe.entry(configs.Pairs(path=str(broken))), "report": False}
    train(tiny(**keys), tmp_path / "whole", ONE)
    train(tiny(**keys, stop_after=5), tmp_path / "cut", ONE)
    train(tiny(**keys), tmp_path / "cut", ONE)
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")
    for run in ("whole", "cut"):
        assert results(tmp_path / run)["damaged"] == 2
        named = (tmp_path / run / "damaged.jsonl").read_text().splitlines()
        assert sorted(json.loads(line)["record"] for line in named) == [3, 7]


def test_too_much_damage_ends_the_run(folder: Path, tmp_path: Path) -> None:
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
def test_evaluation_counts_damage_and_goes_on(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "pairs.jsonl").read_text().splitlines()
    lines[3] = json.dumps({"image": "lost.jpg", "captions": "a"})
    (folder / "test.jsonl").write_text("\n".join(lines))
    data = recipe.entry(configs.Pairs(path=str(folder / "pairs.jsonl")))
    test = recipe.entry(configs.Retrieval(), data=configs.Pairs(path=str(folder / "test.jsonl")))
    train(tiny(data=data, evals={"test": test}, report=False, total_steps=2), tmp_path, ONE)
    assert "retrieval/test/image_to_text/R@1" in results(tmp_path)
    assert "lost.jpg" in (tmp_path / "damaged.jsonl").read_text()


def mixture(folder: Path) -> recipe.Editable:
    """Three parts of one source, one of another."""
    data = recipe.entry(configs.Mixture())
    for name, weight in (("jsonl", 3.0), ("tar", 1.0)):
        data.parts[name] = recipe.entry(configs.MixturePart(), weight=weight)
        data.parts[name].source = forms(folder)[name]
    return data


@pytest.mark.slow
def test_a_mixture_says_its_shares(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    train(tiny(data=mixture(folder), report=False, total_steps=2), tmp_path, ONE)
    said = capsys.readouterr().out
    assert "jsonl 75.0% (1.5 passes an epoch)" in said
    assert "tar 25.0% (0.5 passes an epoch)" in said


@pytest.mark.slow
def test_a_mixture_goes_on_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    data = mixture(folder)
    train(tiny(data=data, report=False), tmp_path / "whole", ONE)
    train(tiny(data=data, report=False, stop_after=3), tmp_path / "cut", ONE)
    train(tiny(data=data, report=False), tmp_path / "cut", ONE)
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")
