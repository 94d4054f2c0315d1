"""Zero-shot against numpy: averaged distances, ties, labels."""

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
from big_retrieval.data.build import make_source
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.errors import UserError
from big_retrieval.evals import class_scores as scoring
from big_retrieval.evals.class_scores import class_means, class_scores
from big_retrieval.evals.evaluators import make_evaluators
from big_retrieval.evals.rankings import read_values
from big_retrieval.inference.encoder import Encoder
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import Bound, bound
from tests.evals.preset import PresetEncoder
from tests.helpers import tiny
from tests.readers import image_reader, text_reader

CLASSES = ("red", "green", "blue", "black", "white", "grey")
PROMPTS = ("a {} thing", "{}", "{} and {}")
RECORDS, M, N = 13, 2, 5


class Preset(PresetEncoder):
    """An encoder whose embeddings are given; counts how often it is asked."""

    def __init__(self, embeddings: dict[str, np.ndarray], devices: int = 1) -> None:
        mesh = parallel.make_mesh(tiny(batch_size=8), jax.devices()[:devices])
        super().__init__(None, mesh, 8)  # type: ignore
        self.given, self.asked = embeddings, 0

    def embeddings(self, weights: Any, field: str, batches: Any) -> tuple[np.ndarray, np.ndarray]:
        self.asked += 1
        list(batches)
        return self.given[field], np.arange(len(self.given[field]))


def draw(topology: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Random embeddings [*shape, M, N]."""
    raw = np.random.default_rng(seed).normal(size=(*shape, M, N)).astype(np.float32)
    return np.asarray(TOPOLOGIES[topology].project(jax.numpy.asarray(raw)))


def plain_score(topology: str, a: np.ndarray, b: np.ndarray) -> float:
    """The score of two embeddings [M, N], as the paper's Table 1 has it."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if topology == "euclidean":
        return -float(np.linalg.norm(a - b))
    cosines = [float(u @ v) for u, v in zip(a, b, strict=True)]
    if topology == "geodesic":
        return -float(np.sqrt(sum(np.arccos(np.clip(c, -1, 1)) ** 2 for c in cosines)))
    return sum(cosines)  # the whole vectors of the sphere have norm 1


def plain_class_scores(topology: str, images: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """[n, classes], by loops."""
    return np.array(
        [
            [np.mean([plain_score(topology, image, p) for p in own]) for own in prompts]
            for image in images
        ]
    )


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
def test_class_scores_average_distances(
    topology: str, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "CHUNK", 8)  # the last chunk is not full
    images = draw(topology, RECORDS)
    prompts = draw(topology, len(CLASSES), len(PROMPTS), seed=1)
    blocks = class_scores(
        images,
        prompts.reshape(-1, *prompts.shape[2:]),
        len(CLASSES),
        topology=TOPOLOGIES[topology],
        encoder=Preset({}, devices),
    )
    rows, found = zip(*blocks, strict=True)
    assert rows == (slice(0, 8), slice(8, RECORDS))
    expected = plain_class_scores(topology, images, prompts)
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
def test_class_means_are_on_the_topology(topology: str) -> None:
    """CLIP's ensemble: the mean of embeddings, every sub-sphere or the whole to norm 1."""
    prompts = draw(topology, len(CLASSES), len(PROMPTS))
    flat = prompts.reshape(-1, M, N)
    found = class_means(flat, len(CLASSES), topology=TOPOLOGIES[topology])
    wanted = prompts.mean(axis=1)  # [classes, M, N]
    axes: Any = {"sphere": (1, 2), "oblique": 2, "geodesic": 2}.get(topology)
    if axes is not None:
        wanted = wanted / np.sqrt((wanted**2).sum(axis=axes, keepdims=True))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(RECORDS):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"{number}.png")
    return tmp_path


def labelled(folder: Path, labels: list[Any]) -> RecordSource:
    """Images with a label and no text."""
    lines = [json.dumps({"image": f"{i}.png", "label": label}) for i, label in enumerate(labels)]
    (folder / "labels.jsonl").write_text("\n".join(lines))
    return make_source(configs.Pairs(path=str(folder / "labels.jsonl"), text=""))


def labels(task: Any, classes: Any) -> np.ndarray:
    return task.part.labels(task.context, classes)


def names(task: Any) -> Any:
    """The class names and the prompts."""
    return task.part.names_and_prompts(task.context)


def evaluator(source: RecordSource, encoder: Encoder, **changes: Any) -> Bound:
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    specs = {
        "image": image_reader("image", size=4),
        "text": text_reader("captions", length=6, tokenizer=wordpiece_tokenizer(vocab)),
    }
    keys = {"label": "label", "classes": CLASSES, "prompts": PROMPTS, **changes}
    config = configs.ZeroShot(data=configs.Pairs(), **keys)
    return bound(config, source, specs, TOPOLOGIES["geodesic"], encoder)


def test_accuracy_is_that_of_numpy(folder: Path) -> None:
    labels = [i % len(CLASSES) for i in range(RECORDS)]
    images = draw("geodesic", RECORDS)
    prompts = draw("geodesic", len(CLASSES) * len(PROMPTS), seed=1)
    encoder = Preset({"image": images, "text": prompts})
    by_class = prompts.reshape(len(CLASSES), len(PROMPTS), M, N)
    means = class_means(prompts, len(CLASSES), topology=TOPOLOGIES["geodesic"])[:, None]
    for ensemble, own in (("scores", by_class), ("embeddings", means)):
        task = evaluator(labelled(folder, labels), encoder, ensemble=ensemble)
        found = task.run({}, rankings=folder / "values")
        order = np.argsort(-plain_class_scores("geodesic", images, own), axis=1)
        values = {
            "accuracy": [order[i, 0] == label for i, label in enumerate(labels)],
            "top5_accuracy": [label in order[i, :5] for i, label in enumerate(labels)],
        }
        assert found == {name: np.mean(each) for name, each in values.items()}
        assert 0 < found["accuracy"] < found["top5_accuracy"] < 1
        written = read_values(folder / "values" / "queries.csv")
        assert written[0] == [str(i) for i in range(RECORDS)]
        np.testing.assert_array_equal([*written[1].values()], [*values.values()])


@pytest.mark.parametrize("value", [1.0, np.nan])
def test_ties_and_nan_count_against_the_model(folder: Path, value: float) -> None:
    embeddings = {"image": np.full((RECORDS, M, N), value, np.float32)}
    embeddings["text"] = np.full((len(CLASSES) * len(PROMPTS), M, N), value, np.float32)
    source = labelled(folder, [0] * RECORDS)
    found = evaluator(source, Preset(embeddings)).run({})
    assert found == {"accuracy": 0.0, "top5_accuracy": 0.0}
    embeddings["text"] = embeddings["text"][: 5 * len(PROMPTS)]
    five = evaluator(source, Preset(embeddings), classes=CLASSES[:5]).run({})
    assert five == {"accuracy": 0.0}


def test_of_classes_with_the_same_names_the_first_is_taken(folder: Path, said: list[str]) -> None:
    """As by CLIP's argmax: images of the first are right, those of the second wrong."""
    names = ("red", "green", "blue", "RED ", "white", "grey")
    images, prompts = draw("geodesic", RECORDS), draw("geodesic", 6, seed=1)[[0, 1, 2, 0, 4, 5]]
    scores = plain_class_scores("geodesic", images, prompts[:, None])
    for label in range(6):
        encoder = Preset({"image": images, "text": prompts})
        source = labelled(folder, [label] * RECORDS)
        found = evaluator(source, encoder, classes=names, prompts=("{}",)).run({})
        assert found["accuracy"] == np.mean(scores.argmax(axis=1) == label)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :5]
        assert found["top5_accuracy"] == np.mean((order == label).any(axis=1))
    assert scores.argmax(axis=1).tolist().count(0)
    assert "classes have the same names: 'RED ' (0 and 3); where scores are equal" in " ".join(said)


@pytest.mark.parametrize("label", [6, -1, "purple", "6", "1.0", 1.0, True, None])
def test_a_label_without_a_class_is_named_before_anything_is_encoded(
    folder: Path, label: Any
) -> None:
    encoder = Preset({})
    task = evaluator(labelled(folder, [0, 5, label]), encoder)
    for call in (task.check, lambda: task.run({})):
        with pytest.raises(UserError) as problem:
            call()
        for word in ("labels, record 2", "label column 'label'", repr(label), "6 classes"):
            assert word in str(problem.value)
    assert encoder.asked == 0


def test_labels_may_be_names_or_numbers_written_as_text(folder: Path) -> None:
    given = ["blue", "red", "blue"]
    task = evaluator(labelled(folder, given), Preset({}))
    assert labels(task, CLASSES).tolist() == [2, 0, 2]
    task = evaluator(labelled(folder, given), Preset({}), classes=())
    assert names(task)[0] == ("blue", "red")
    assert labels(task, ("blue", "red")).tolist() == [0, 1, 0]
    found = ["5", "0\n", "red"]
    assert labels(evaluator(labelled(folder, found), Preset({})), CLASSES).tolist() == [5, 0, 0]
    task = evaluator(labelled(folder, ["1"]), Preset({}))
    assert labels(task, ("1", "0")).tolist() == [0]  # a name, where one is called so
    cranes, task = (("crane", "bird"), ("crane", "machine")), labelled(folder, ["crane"])
    with pytest.raises(UserError, match="label' is 'crane'; it must be the name of one class"):
        labels(evaluator(task, Preset({})), cranes)
    with pytest.raises(UserError, match="has no classes and prompts"):
        names(evaluator(labelled(folder, ["6"]), Preset({}), classes=()))


def test_classes_of_several_names_in_a_file(folder: Path) -> None:
    content = {"classes": ["red", ["green", "lime"]], "prompts": ["{}"]}
    (folder / "names.json").write_text(json.dumps(content))
    own = {"classes": (), "prompts": (), "file": str(folder / "names.json")}
    images, embeddings = draw("geodesic", 2), draw("geodesic", 4, seed=1)
    encoder = Preset({"image": images, "text": embeddings})
    task = evaluator(labelled(folder, ["lime", "red"]), encoder, **own)
    found, shown = task.examples({})
    assert labels(task, names(task)[0]).tolist() == [1, 0]
    scores = plain_class_scores("geodesic", images, embeddings.reshape(2, 2, M, N))
    assert found["accuracy"] == np.mean(scores.argmax(axis=1) == [1, 0])
    assert "green" in json.dumps(shown)
    assert "lime" not in json.dumps(shown)


def test_a_missing_file_of_prompts_is_said_with_the_evaluators_name(folder: Path) -> None:
    config = configs.ZeroShot(data=configs.Pairs(), label="label", file="no.json#pets")
    made = make_evaluators(
        tiny(evals={"pets": recipe.entry(config)}), {"pets": labelled(folder, [0])}, {}, Preset({})
    )
    with pytest.raises(UserError, match=r"^config\.evals\.pets\.file: no\.json cannot be read"):
        names(made["zeroshot/pets"])


def test_labels_decode_no_image(folder: Path) -> None:
    source = labelled(folder, [3, 1, 2])
    for number in (1, 2):
        (folder / f"{number}.png").unlink()
    task = evaluator(source, Preset({}))
    assert labels(task, CLASSES).tolist() == [3, 1, 2]
    task.check()
    (folder / "0.png").unlink()
    with pytest.raises(UserError, match=r"line 1: the image '0\.png'"):
        task.check()


def test_classes_and_prompts_must_come_from_somewhere(folder: Path) -> None:
    task = evaluator(labelled(folder, [0]), Preset({}), classes=())
    with pytest.raises(UserError, match=r"set config\.evals\.<name>\.classes and \.prompts"):
        task.check()


class OfWords(PresetEncoder):
    """An encoder of images by their number and of texts by their words, out of two tables."""

    def __init__(self, images: np.ndarray, words: np.ndarray) -> None:
        super().__init__(None, parallel.make_mesh(tiny(batch_size=8), jax.devices()[:1]), 64)  # type: ignore
        self._images, self._words = images, words

    def embeddings(self, weights: Any, field: str, batches: Any) -> tuple[np.ndarray, np.ndarray]:
        found, records = [], []
        for batch in batches:
            kept = batch["valid"]
            records.append(batch["record"][kept])
            if field == "image":
                found.append(self._images[records[-1]])
                continue
            ids = batch[field]["ids"][kept].astype(int)  # [CLS] word ([UNK] or [SEP]) ...
            found.append(self._words[ids[:, 1] - 4] + 0.3 * (ids[:, 2:3, None] == 1))
        return np.concatenate(found), np.concatenate(records)


def test_folders_of_200_classes_are_scored_among_these_200_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    names, ids = [f"w{i}" for i in range(1000)], [f"n{i:08d}" for i in range(1000)]
    chosen = np.sort(rng.permutation(1000)[:200])
    for number, i in enumerate(chosen):
        folder = tmp_path / "images" / ids[i]
        folder.mkdir(parents=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(folder / "one.PNG")
    (tmp_path / "images" / "README.txt").write_text("no class")
    listed = {"imagenet": {"classes": names, "ids": ids, "prompts": ["{}", "{} thing"]}}
    (tmp_path / "prompts.json").write_text(json.dumps(listed))
    words = rng.normal(size=(1000, 1, 6)).astype(np.float32)
    images = words[chosen] + 0.6 * rng.normal(size=(200, 1, 6)).astype(np.float32)
    source = make_source(configs.ClassFolders(path=str(tmp_path / "images")))
    assert (len(source), source[7]["label"]) == (200, ids[chosen[7]])
    prompts = [words[:, 0], words[:, 0] + 0.3]
    scores = -np.mean(
        [np.linalg.norm(images - each[None], axis=2) for each in prompts], axis=0
    )  # [200, 1000]
    specs = {
        "image": image_reader("image", size=4),
        "text": text_reader(
            "captions",
            length=6,
            tokenizer=wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *names]),
        ),
    }
    found = {}
    for present in (False, True):
        part = configs.ZeroShot(
            label="label", file=f"{tmp_path}/prompts.json#imagenet", present=present
        )
        rest = specs, TOPOLOGIES["euclidean"], OfWords(images, words)
        task = bound(part, source, *rest)
        task.check()
        found[present] = task.run({})
        columns = chosen if present else np.arange(1000)
        order = columns[np.argsort(-scores[:, columns], axis=1)]
        assert found[present]["accuracy"] == np.mean(order[:, 0] == chosen)
        assert found[present]["top5_accuracy"] == np.mean(
            [i in row[:5] for i, row in zip(chosen, order, strict=True)]
        )
    assert 0 < found[False]["accuracy"] < found[True]["accuracy"] < 1


def test_folders_of_numbers_and_folders_without_images(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no must be a folder .*: fetch it"):
        make_source(configs.ClassFolders(path=str(tmp_path / "no"), how_to_get="fetch it"))
    (tmp_path / "10").mkdir()
    with pytest.raises(UserError, match="has no images in folders, such as <class>/<image>"):
        make_source(configs.ClassFolders(path=str(tmp_path)))
    Image.new("RGB", (4, 4)).save(tmp_path / "10" / "a.jpeg")
    assert make_source(configs.ClassFolders(path=str(tmp_path)))[0]["label"] == 10
