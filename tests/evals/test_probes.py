"""Probes: logistic regression against scikit-learn, ridge regression against numpy."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.config.checks import check
from big_retrieval.data.build import make_source
from big_retrieval.errors import UserError
from big_retrieval.evals import logistic
from big_retrieval.evals.ridge import Ridge
from big_retrieval.similarity import TOPOLOGIES
from big_retrieval.train.loop import train
from tests.evals.bound import PresetEncoder, bound
from tests.evals.make_logistic import CLASSES, FEATURES, FILE, PENALTIES, TRAIN, drawn
from tests.helpers import tiny
from tests.readers import image_reader

NAMES = ("ant", "bee", "cat")


class PixelEncoder(PresetEncoder):
    """An encoder whose features are colors of pixels: [n, 2, 3] of two "class tokens"."""

    def terms(self, field: str) -> None:
        return None

    def features(self, weights: Any, field: str, batches: Any, layer: Any = "final") -> Any:
        rows, records = [], []
        for batch in batches:
            pixels = batch[field]["pixels"].astype(np.float32)  # [b, S, S, 3]
            rows.append(np.stack([pixels[:, 0, 0], pixels[:, -1, -1]], axis=1)[batch["valid"]])
            records.append(batch["record"][batch["valid"]])
        return np.concatenate(rows) / 255, np.concatenate(records)


@pytest.mark.parametrize(("devices", "penalties"), [(1, PENALTIES), (2, (1.0,))])
def test_logistic_regression_equals_scikit_learn(
    devices: int, penalties: tuple[float, ...]
) -> None:
    encoder, expected = PixelEncoder(devices), json.loads(FILE.read_text())
    x, labels = drawn()
    counts = {"train": TRAIN, "test": len(x) - TRAIN}
    parts = {"train": slice(TRAIN), "test": slice(TRAIN, None)}
    rows = {
        name: logistic.put(encoder, x[part], labels[part], np.ones(counts[name]))
        for name, part in parts.items()
    }
    classifier = logistic.zeros(FEATURES, CLASSES)
    for l2 in sorted(penalties, reverse=True):
        classifier = logistic.fit(encoder, rows["train"], l2, classifier, steps=2000)
        metrics = {}
        for name, count in counts.items():
            predicted = logistic.predict(encoder, classifier, rows[name], count)
            metrics[f"{name}_accuracy"] = float(np.mean(predicted.places <= 1))
            metrics[f"{name}_loss"] = float(np.mean(predicted.losses))
        assert metrics == pytest.approx(expected[f"{l2:g}"], abs=1e-4)


@pytest.mark.parametrize("count", [9, 60])  # fewer and more rows than features
def test_ridge_regression_equals_numpy(count: int) -> None:
    x, labels = drawn()
    ridge = Ridge(x[:count], labels[:count], CLASSES)
    training = x[:count].astype(np.float64)
    whitened = (x - training.mean(axis=0)) / (training.std(axis=0) + 1e-5)
    whitened = np.concatenate([whitened, np.full((len(x), 1), 100.0)], axis=1)
    for l2 in (0.01, 16.0):
        rows = whitened[:count]
        targets = np.where(np.arange(CLASSES) == labels[:count, None], 1.0, -1.0)
        kernel = np.linalg.solve(rows.T @ rows + l2 * np.eye(rows.shape[1]), rows.T @ targets)
        np.testing.assert_allclose(ridge.scores(x, l2), whitened @ kernel, atol=1e-6)


def labelled(folder: Path, name: str, labels: list[Any]) -> configs.Pairs:
    """Images with the noisy color of their class, and a label column."""
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
    return bound(part, source, readers, topology, PixelEncoder(), name="probe")


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
    drawn, validation = built.part._draw(built.context)
    assert [len(records) for records in drawn] == [7, 7, 7]
    assert len(validation) == 9
    assert not set(np.concatenate(drawn)) & set(validation)
    found = built.run({})
    assert found.keys() == {f"{k}_shot_{name}" for k in (1, 7) for name in ("accuracy", "l2")}
    assert found["7_shot_accuracy"] == 1.0


@pytest.mark.parametrize(
    ("kind", "labels", "test", "message"),
    [
        (configs.LinearProbe, ["ant", "bee"], "cow", r"'cow', .* config\.evals\.probe\.train"),
        (configs.LinearProbe, ["ant", "ant"], "ant", "has 1 values"),
        (configs.LinearProbe, ["ant", 1], "ant", "has names and numbers"),
        (configs.LinearProbe, ["ant", None], "ant", "label column 'label' is None"),
        (configs.FewShotProbe, [*NAMES * 2], "ant", r"only 2 images\. .*probe\.shots=10 needs 11"),
    ],
)
def test_check_data_rejects(
    tmp_path: Path, kind: Any, labels: list[Any], test: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        evaluator(kind, tmp_path, labels, [test]).check()


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        (configs.LinearProbe(), {"image": "text"}, "evals.probe.image is 'text'"),
        (configs.LinearProbe(), {"l2": ()}, "evals.probe.l2 is empty"),
        (configs.FewShotProbe(), {"shots": ()}, "evals.probe.shots is empty"),
    ],
)
def test_check_rejects_keys(part: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check(tiny(evals={"probe": recipe.entry(part, **changes)}))


@pytest.mark.slow
def test_training_on_two_devices_with_probes(tmp_path: Path) -> None:
    """Through the loop and the real encoder, of towers with two class tokens of width 16."""
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
