"""Probes: logistic regression as scikit-learn's, ridge regression against numpy, the evaluators."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.config import recipe
from big_retrieval.config.checks import check
from big_retrieval.data.build import make_source
from big_retrieval.errors import UserError
from big_retrieval.evals import logistic
from big_retrieval.evals.ridge import Ridge
from big_retrieval.inference.encoder import Encoder
from big_retrieval.similarity import TOPOLOGIES
from big_retrieval.train.loop import train
from tests.evals.bound import bound
from tests.evals.make_logistic import CLASSES, FEATURES, FILE, PENALTIES, TRAIN, drawn
from tests.helpers import tiny
from tests.readers import image_reader

NAMES = ("ant", "bee", "cat")


class OfPixels(Encoder):
    """An encoder whose features are the pixels' colours: [n, 2, 3] of two "class tokens"."""

    def __init__(self, devices: int = 1) -> None:
        mesh = parallel.make_mesh(tiny(batch_size=8), jax.devices()[:devices])
        super().__init__(None, mesh, 8)  # type: ignore

    def terms(self, field: str) -> None:
        return None

    def features(self, weights: Any, field: str, batches: Any, layer: Any = "final") -> Any:
        found, records = [], []
        for batch in batches:
            pixels = batch[field]["pixels"].astype(np.float32)  # [b, S, S, 3]
            found.append(np.stack([pixels[:, 0, 0], pixels[:, -1, -1]], axis=1)[batch["valid"]])
            records.append(batch["record"][batch["valid"]])
        return np.concatenate(found) / 255, np.concatenate(records)


@pytest.mark.parametrize(("devices", "penalties"), [(1, PENALTIES), (2, (1.0,))])
def test_logistic_regression_is_that_of_scikit_learn(
    devices: int, penalties: tuple[float, ...]
) -> None:
    encoder, expected = OfPixels(devices), json.loads(FILE.read_text())
    x, labels = drawn()
    train = logistic.put(encoder, x[:TRAIN], labels[:TRAIN], np.ones(TRAIN))
    test = logistic.put(encoder, x[TRAIN:], labels[TRAIN:], np.ones(len(x) - TRAIN))
    found = logistic.zeros(FEATURES, CLASSES)
    for l2 in sorted(penalties, reverse=True):
        found = logistic.fit(encoder, train, l2, found, steps=2000)
        numbers = {}
        for name, rows, own in (("train", train, labels[:TRAIN]), ("test", test, labels[TRAIN:])):
            said = logistic.predict(encoder, found, rows, len(own))
            numbers[f"{name}_accuracy"] = float(np.mean(said.places <= 1))
            numbers[f"{name}_loss"] = float(np.mean(said.losses))
        assert numbers == pytest.approx(expected[f"{l2:g}"], abs=1e-4)


@pytest.mark.parametrize("count", [9, 60])  # fewer and more rows than features
def test_ridge_regression_is_that_of_numpy(count: int) -> None:
    x, labels = drawn()
    ridge = Ridge(x[:count], labels[:count], CLASSES)
    own = x[:count].astype(np.float64)
    whitened = (x - own.mean(axis=0)) / (own.std(axis=0) + 1e-5)
    whitened = np.concatenate([whitened, np.full((len(x), 1), 100.0)], axis=1)
    for l2 in (0.01, 16.0):
        rows = whitened[:count]
        targets = np.where(np.arange(CLASSES) == labels[:count, None], 1.0, -1.0)
        kernel = np.linalg.solve(rows.T @ rows + l2 * np.eye(rows.shape[1]), rows.T @ targets)
        np.testing.assert_allclose(ridge.scores(x, l2), whitened @ kernel, atol=1e-6)


def labelled(folder: Path, name: str, labels: list[Any]) -> configs.Pairs:
    """Images of one colour that tells their class, with some noise, and a label column."""
    rng, lines = np.random.default_rng(len(labels)), []
    for number, label in enumerate(labels):
        colour = rng.integers(60, size=3)
        colour[NAMES.index(label) if label in NAMES else 0] += 100
        Image.new("RGB", (4, 4), tuple(colour.tolist())).save(folder / f"{name}{number}.png")
        lines.append(json.dumps({"image": f"{name}{number}.png", "label": label}))
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return configs.Pairs(path=str(folder / f"{name}.jsonl"), text="")


def evaluator(kind: Any, folder: Path, labels: list[Any], test: list[Any], **keys: Any) -> Any:
    sources = {"train": labelled(folder, "a", labels), "data": labelled(folder, "b", test)}
    part = kind(**sources, label="label", **keys)
    readers = {"image": image_reader("image", size=4)}
    source, topology = make_source(sources["data"]), TOPOLOGIES["sphere"]
    return bound(part, source, readers, topology, OfPixels(), name="probe")


def test_linear_probe_separates_colours(tmp_path: Path) -> None:
    built = evaluator(configs.LinearProbe, tmp_path, [*NAMES * 10], [*NAMES * 3], l2=(0.1, 1.0))
    built.check()
    found = built.run({})
    assert found.keys() == {"accuracy", "loss", "l2", "validation_accuracy"}
    assert (found["accuracy"], found["validation_accuracy"]) == (1.0, 1.0)
    assert found["l2"] in built.part.l2
    assert found["loss"] < 0.2


def test_few_shot_probe_learns_from_few(tmp_path: Path) -> None:
    built = evaluator(configs.FewShotProbe, tmp_path, [*NAMES * 10], [*NAMES * 3], shots=(1, 7))
    built.check()
    drawn, others = built.part._drawn(built.context)
    assert [len(each) for each in drawn] == [7, 7, 7]
    assert len(others) == 9
    assert not set(np.concatenate(drawn)) & set(others)
    found = built.run({})
    assert found.keys() == {f"{k}_shot_{name}" for k in (1, 7) for name in ("accuracy", "l2")}
    assert found["7_shot_accuracy"] == 1.0


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    for labels, test, message in (
        (["ant", "bee"], ["cow"], r"'cow', which no image of config\.evals\.probe\.train has"),
        (["ant", "ant"], ["ant"], "has 1 values; a probe needs two classes"),
        (["ant", 1], ["ant"], "has names and numbers; write either"),
        (["ant", None], ["ant"], "is None; it must be the name or the number of a class"),
    ):
        with pytest.raises(UserError, match=message):
            evaluator(configs.LinearProbe, tmp_path, labels, test).check()
    few = evaluator(configs.FewShotProbe, tmp_path, [*NAMES * 2], ["ant"], shots=(2,))
    with pytest.raises(UserError, match=r"has 2 images of the class 'ant'; .*\.shots 2 needs one"):
        few.check()


def test_keys_are_checked() -> None:
    for part, changes, message in (
        (configs.LinearProbe(), {"image": "text"}, "text field; probes classify images"),
        (configs.LinearProbe(), {"l2": ()}, "l2 is empty"),
        (configs.FewShotProbe(), {"shots": ()}, "shots is empty"),
    ):
        with pytest.raises(UserError, match=message):
            check(tiny(evals={"probe": recipe.entry(part, **changes)}))


@pytest.mark.slow
def test_a_run_on_two_devices_is_probed_at_its_end(tmp_path: Path) -> None:
    """Through the loop and the real encoder, of towers with two class tokens of 16 numbers."""
    parts = {
        "line": configs.LinearProbe().runlocal(),
        "few": configs.FewShotProbe(shots=(2, 5), features="embedding").runlocal(),
        "place": configs.Geometry(count=40, per_sphere=True),
    }
    evals = {name: recipe.entry(part) for name, part in parts.items()}
    train(tiny(total_steps=1, evals=evals), tmp_path / "run", jax.devices()[:2])
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    for name in ("linear_probe/line/accuracy", "few_shot/few/5_shot_accuracy"):
        assert 1 / 8 < found[name] < 1, name  # eight shapes; features of random towers tell some
    spheres = [found[f"geometry/place/sphere_{j}/alignment"] for j in range(2)]
    assert np.mean(spheres) == pytest.approx(found["geometry/place/alignment"])
    assert 0 < found["geometry/place/token_correlation_image"] < 1
