"""examples/my_data.py: a source of a user's own, from the config file to a foreign folder."""

import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe, registry, schema
from big_retrieval.config.foreign import Foreign
from big_retrieval.data.build import make_source
from big_retrieval.errors import Damaged, UserError
from big_retrieval.inference.load import load
from big_retrieval.train.resume import difference
from tests.examples.helpers import assert_evaluated_alike, copied, example, ran, without_own_parts
from tests.helpers import results, tiny

pytestmark = pytest.mark.slow

TRAIN, TEST = 40, 8
SMALL = [
    *["--config.batch_size=8", "--config.total_steps=4", "--config.report=False"],
    *["--config.towers.image.width=16", "--config.towers.image.depth=1"],
    *["--config.towers.text.width=16", "--config.towers.text.depth=1"],
    "--config.checkpoint_every=2",
]


def go(folder: Path, *flags: str, status: int = 0) -> Any:
    return ran(
        "main", f"--config={folder / 'own_my_data.py'}:data={folder / 'pics'},runlocal",
        f"--workdir={folder / 'run'}", *SMALL, *flags, status=status,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a copy of the example that ended half-way and was resumed."""
    folder = tmp_path_factory.mktemp("own")
    copied("my_data", folder, "json_folder")
    example("my_data").main(str(folder / "pics"), TRAIN, TEST)
    (folder / "pics" / "train_0003.json").write_text("{")
    for flags in (["--config.stop_after=2"], []):
        done = go(folder, *flags, "--config.loader.max_damaged=0.5")
    assert f"data         pics, {TRAIN} records" in done.stdout
    return folder


def test_custom_source_trains_resumes_and_is_noted(run: Path) -> None:
    found = results(run / "run")
    assert found["steps"] == 4
    assert 0 <= found["retrieval/test/image_to_text/R@1"] <= 1
    saved = json.loads((run / "run" / "config.json").read_text())
    assert saved["data"]["type"] == saved["evals"]["test"]["data"]["type"] == "own_json_folder"
    noted = saved["plugins"]["source/own_json_folder"]
    assert noted["file"] == str((run / "own_my_data.py").resolve())


def test_custom_source_names_damaged_file(run: Path) -> None:
    body = (run / "run" / "damaged.jsonl").read_text()
    assert "train_0003.json" in body


def test_load_needs_no_file_of_custom_source_but_evaluate_does(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_own_parts(monkeypatch, "source")
    model = load(run / "run")
    assert isinstance(model.config.data, Foreign)
    assert model.encode_texts(["a red circle"]).shape[0] == 1
    done = ran("evaluate", f"--run={run / 'run'}", status=2)
    words = "is of the type 'own_json_folder', which "
    assert words in done.stderr
    assert f"{run / 'own_my_data.py'} defines: give this file as --plugins=FILE" in done.stderr
    done = ran("evaluate", f"--run={run / 'run'}", f"--plugins={run / 'own_my_data.py'}")
    assert_evaluated_alike(run / "run", run / "run")


def json_folder(folder: Path, split: str) -> Any:
    return example("my_data").JsonFolder(folder=str(folder / "pics"), split=split)


def test_custom_source_works_in_mixtures_evaluators_and_saved_configs(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = configs.MixturePart(source=json_folder(run, "train_"))
    mixture = configs.Mixture(
        parts={"own": part, "made": configs.MixturePart(configs.Scenes(count=10))}
    )
    source = make_source(mixture)
    assert len(source) == TRAIN + 10
    assert set(source[0]) == {"image", "captions", "id"}
    with pytest.raises(Damaged, match=r"train_0003.json.*not JSON"):
        source[3]
    raw = schema.to_config_dict(tiny())
    raw.unlock()
    raw.data = recipe.entry(mixture)
    raw.evals = {"test": recipe.entry(configs.Retrieval(), data=json_folder(run, "test_"))}
    config = configs.load(raw)
    assert list(config.plugins) == ["source/json_folder"]
    saved = json.loads(json.dumps(schema.to_plain(config)))
    known = {n: x for n, x in registry._parts["source"].items() if n != "json_folder"}
    monkeypatch.setitem(registry._parts, "source", known)
    again = configs.load_saved(saved)
    assert isinstance(again.evals["test"].data, Foreign)
    assert json.loads(json.dumps(schema.to_plain(again))) == saved
    with pytest.raises(UserError, match="--plugins=FILE"):
        make_source(again.data)


def test_resume_accepts_changed_source_of_evaluator(run: Path) -> None:
    raw = schema.to_config_dict(tiny())
    raw.unlock()
    before = json.loads(json.dumps(schema.to_plain(configs.load(raw))))
    raw.evals = {"test": recipe.entry(configs.Retrieval(), data=json_folder(run, "test_"))}
    after = configs.load(raw)
    assert difference(before, after) is None
    saved = json.loads(json.dumps(schema.to_plain(after)))
    saved["plugins"]["source/json_folder"]["sha256"] = "0"
    assert difference(saved, after) is None
    raw.data = recipe.entry(json_folder(run, "train_"))
    trained_on = configs.load(raw)
    saved = json.loads(json.dumps(schema.to_plain(trained_on)))
    saved["plugins"]["source/json_folder"]["file"] = "/elsewhere.py"
    assert difference(saved, trained_on) is None
    saved["plugins"]["source/json_folder"]["sha256"] = "0"
    found = difference(saved, trained_on)
    assert found is not None
    assert found[0] == "config.plugins.source/json_folder.sha256"


def test_data_workers_find_the_file(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another process nothing leads from the name of a config file's module to the file."""
    content = pickle.dumps(make_source(json_folder(run, "train_")))
    modules = registry.modules()
    assert modules["my_data"].endswith("my_data.py")
    monkeypatch.delitem(sys.modules, "my_data")
    without_own_parts(monkeypatch, "source")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    registry.make_importable(modules)
    assert len(pickle.loads(content)) == TRAIN


def test_worker_processes_read_custom_source(run: Path) -> None:
    ran(
        "main", f"--config={run / 'own_my_data.py'}:data={run / 'pics'},runlocal",
        f"--workdir={run / 'workers'}", *SMALL, "--config.loader.workers=1",
        "--config.loader.max_damaged=0.5",
    )  # fmt: skip
    mine, theirs = results(run / "workers"), results(run / "run")
    assert mine["params_sha256"] == theirs["params_sha256"]


def test_runlocal_needs_no_folder() -> None:
    config = configs.load(example("my_data").get_config("runlocal"))
    assert config.data.type == "scenes"
    assert set(config.evals) == {"test", "colours"}


MISTAKES = [
    ("--config.data.folder=", "config.data.folder is empty; name your folder."),
    ("--config.data.folder=/nowhere/pics", "there is no folder /nowhere/pics; give one with"),
    ("--config.data.split=x_", "pics has no file x_*.json; give each image one."),
]


@pytest.mark.parametrize(("flag", "words"), MISTAKES)
def test_mistakes_are_one_sentence(run: Path, tmp_path: Path, flag: str, words: str) -> None:
    done = go(run, f"--workdir={tmp_path}", flag, status=2)
    assert words in done.stderr


def test_make_source_rejects_wrong_build_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs.Scenes, "build", lambda self: [1, 2])
    words = "the source of the type 'scenes' built [1, 2], not a `RecordSource`"
    with pytest.raises(UserError, match=re.escape(words)):
        make_source(configs.Scenes())
