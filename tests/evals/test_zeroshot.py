"""Zero-shot classification against numpy: averaged distances, ties, labels."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.data.build import make_source
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.errors import UserError
from big_retrieval.evals import class_scores as scoring
from big_retrieval.evals.class_scores import class_means, class_scores
from big_retrieval.evals.evaluators import make_evaluators
from big_retrieval.evals.rankings import read_values
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import TOKENIZER, Bound, PresetEncoder, bound
from tests.helpers import tiny
from tests.readers import image_reader, text_reader

CLASSES = ("red", "green", "blue", "black", "white", "grey")
PROMPTS = ("a {} thing", "{}", "{} and {}")
RECORDS, M, N = 13, 2, 5


def draw(topology: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Random embeddings [*shape, M, N]."""
    raw = np.random.default_rng(seed).normal(size=(*shape, M, N)).astype(np.float32)
    return np.asarray(TOPOLOGIES[topology].project(jax.numpy.asarray(raw)))


def plain_score(topology: str, a: np.ndarray, b: np.ndarray) -> float:
    """The score of two embeddings [M, N], as in Table 1 of the paper."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if topology == "euclidean":
        return -float(np.linalg.norm(a - b))
    cosines = [float(u @ v) for u, v in zip(a, b, strict=True)]
    if topology == "geodesic":
        return -float(np.sqrt(sum(np.arccos(np.clip(c, -1, 1)) ** 2 for c in cosines)))
    return sum(cosines)  # the concatenated vectors of the sphere have norm 1


def plain_class_scores(topology: str, images: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """Scores [n, classes] of images with prompts [classes, P, M, N], by loops."""
    return np.array(
        [
            [np.mean([plain_score(topology, image, p) for p in of_class]) for of_class in prompts]
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
        encoder=PresetEncoder(devices),
    )
    rows, found = zip(*blocks, strict=True)
    assert rows == (slice(0, 8), slice(8, RECORDS))
    expected = plain_class_scores(topology, images, prompts)
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
def test_class_means_are_on_the_topology(topology: str) -> None:
    prompts = draw(topology, len(CLASSES), len(PROMPTS))
    flat = prompts.reshape(-1, M, N)
    found = class_means(flat, len(CLASSES), topology=TOPOLOGIES[topology])
    expected = prompts.mean(axis=1)  # [classes, M, N]
    axes: Any = {"sphere": (1, 2), "oblique": 2, "geodesic": 2}.get(topology)
    if axes is not None:
        expected = expected / np.sqrt((expected**2).sum(axis=axes, keepdims=True))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


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


def readers(tokenizer: Any = TOKENIZER) -> dict[str, Any]:
    text = text_reader("captions", length=6, tokenizer=tokenizer)
    return {"image": image_reader("image", size=4), "text": text}


def evaluator(source: RecordSource, encoder: PresetEncoder | None = None, **changes: Any) -> Bound:
    keys = {"label": "label", "classes": CLASSES, "prompts": PROMPTS, **changes}
    config, encoder = configs.ZeroShot(data=configs.Pairs(), **keys), encoder or PresetEncoder()
    return bound(config, source, readers(), TOPOLOGIES["geodesic"], encoder)


def test_accuracy_equals_numpy(folder: Path) -> None:
    labels = [i % len(CLASSES) for i in range(RECORDS)]
    images = draw("geodesic", RECORDS)
    prompts = draw("geodesic", len(CLASSES) * len(PROMPTS), seed=1)
    encoder = PresetEncoder(image=images, text=prompts)
    by_class = prompts.reshape(len(CLASSES), len(PROMPTS), M, N)
    means = class_means(prompts, len(CLASSES), topology=TOPOLOGIES["geodesic"])[:, None]
    for ensemble, of_classes in (("scores", by_class), ("embeddings", means)):
        task = evaluator(labelled(folder, labels), encoder, ensemble=ensemble)
        found = task.run({}, rankings=folder / "values")
        order = np.argsort(-plain_class_scores("geodesic", images, of_classes), axis=1)
        values = {
            "accuracy": [order[i, 0] == label for i, label in enumerate(labels)],
            "top5_accuracy": [label in order[i, :5] for i, label in enumerate(labels)],
        }
        assert found == {name: np.mean(is_hit) for name, is_hit in values.items()}
        assert 0 < found["accuracy"] < found["top5_accuracy"] < 1
        written = read_values(folder / "values" / "queries.csv")
        assert written[0] == [str(i) for i in range(RECORDS)]
        np.testing.assert_array_equal([*written[1].values()], [*values.values()])


@pytest.mark.parametrize("value", [1.0, np.nan])
def test_ties_and_nan_count_against_the_model(folder: Path, value: float) -> None:
    image = np.full((RECORDS, M, N), value, np.float32)
    text = np.full((len(CLASSES) * len(PROMPTS), M, N), value, np.float32)
    source, encoder = labelled(folder, [0] * RECORDS), PresetEncoder(image=image, text=text)
    assert evaluator(source, encoder).run({}) == {"accuracy": 0.0, "top5_accuracy": 0.0}
    assert evaluator(source, encoder, classes=CLASSES[:5]).run({}) == {"accuracy": 0.0}


def test_first_of_classes_with_the_same_names_wins(folder: Path, said: list[str]) -> None:
    names = ("red", "green", "blue", "RED ", "white", "grey")
    images, prompts = draw("geodesic", RECORDS), draw("geodesic", 6, seed=1)[[0, 1, 2, 0, 4, 5]]
    scores = plain_class_scores("geodesic", images, prompts[:, None])
    encoder = PresetEncoder(image=images, text=prompts)
    for label in range(6):
        source = labelled(folder, [label] * RECORDS)
        found = evaluator(source, encoder, classes=names, prompts=("{}",)).run({})
        assert found["accuracy"] == np.mean(scores.argmax(axis=1) == label)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :5]
        assert found["top5_accuracy"] == np.mean((order == label).any(axis=1))
    assert scores.argmax(axis=1).tolist().count(0)
    assert "classes have the same names: 'RED ' (0 and 3)" in " ".join(said)


@pytest.mark.parametrize("label", [6, -1, "purple", "6", "1.0", 1.0, True, None])
def test_label_without_a_class_is_rejected_before_encoding(folder: Path, label: Any) -> None:
    task: Any = evaluator(labelled(folder, [0, 5, label]))
    for call in (task.check, lambda: task.run({})):
        with pytest.raises(UserError) as caught:
            call()
        for word in ("labels, record 2", "label column 'label'", repr(label), "6 classes"):
            assert word in str(caught.value)
    assert task.context.encoder.encoded == {}


@pytest.mark.parametrize(
    ("values", "classes", "expected"),
    [
        (["blue", "red", "blue"], CLASSES, [2, 0, 2]),
        (["5", "0\n", "red"], CLASSES, [5, 0, 0]),
        (["1"], ("1", "0"), [0]),  # the name of a class comes before an index
    ],
)
def test_labels_are_names_or_indices(
    folder: Path, values: list[str], classes: tuple[str, ...], expected: list[int]
) -> None:
    assert labels(evaluator(labelled(folder, values)), classes).tolist() == expected


def test_names_of_labels_are_the_classes(folder: Path) -> None:
    task = evaluator(labelled(folder, ["blue", "red", "blue"]), classes=())
    assert names(task)[0] == ("blue", "red")
    for numbers in (["6"], [0]):
        task = evaluator(labelled(folder, numbers), classes=())
        with pytest.raises(UserError, match=r"no classes .*config\.evals\.<name>\.classes"):
            task.check()
    cranes = (("crane", "bird"), ("crane", "machine"))
    with pytest.raises(UserError, match="label' is 'crane'"):
        labels(evaluator(labelled(folder, ["crane"])), cranes)


def test_classes_of_several_names_in_a_file(folder: Path) -> None:
    content = {"classes": ["red", ["green", "lime"]], "prompts": ["{}"]}
    (folder / "names.json").write_text(json.dumps(content))
    keys = {"classes": (), "prompts": (), "file": str(folder / "names.json")}
    images, embeddings = draw("geodesic", 2), draw("geodesic", 4, seed=1)
    encoder = PresetEncoder(image=images, text=embeddings)
    task = evaluator(labelled(folder, ["lime", "red"]), encoder, **keys)
    found, shown = task.examples({})
    assert labels(task, names(task)[0]).tolist() == [1, 0]
    scores = plain_class_scores("geodesic", images, embeddings.reshape(2, 2, M, N))
    assert found["accuracy"] == np.mean(scores.argmax(axis=1) == [1, 0])
    assert "green" in json.dumps(shown)
    assert "lime" not in json.dumps(shown)


def test_missing_file_is_an_error_with_the_evaluators_key(folder: Path) -> None:
    config = configs.ZeroShot(data=configs.Pairs(), label="label", file="no.json#pets")
    sources, encoder = {"pets": labelled(folder, [0])}, PresetEncoder()
    made = make_evaluators(tiny(evals={"pets": recipe.entry(config)}), sources, {}, encoder)
    with pytest.raises(UserError, match=r"^config\.evals\.pets\.file: no\.json"):
        names(made["zeroshot/pets"])


def test_labels_decode_no_image(folder: Path) -> None:
    task = evaluator(labelled(folder, [3, 1, 2]))
    for index in (1, 2):
        (folder / f"{index}.png").unlink()
    assert labels(task, CLASSES).tolist() == [3, 1, 2]
    task.check()
    (folder / "0.png").unlink()
    with pytest.raises(UserError, match=r"line 1: the image '0\.png'"):
        task.check()


class WordEncoder(PresetEncoder):
    """An encoder with a table of images, and texts by their first word and a second word."""

    def take_rows(self, field: str, records: np.ndarray, batches: list[Any]) -> np.ndarray:
        if field == "image":
            return self.tables[field][records]
        ids = np.concatenate([batch[field]["ids"][batch["valid"]] for batch in batches]).astype(int)
        # [CLS] word ([UNK] or [SEP]) ...
        return self.tables["word"][ids[:, 1] - 4] + 0.3 * (ids[:, 2:3, None] == 1)


def test_present_scores_only_the_200_classes_of_the_folders(tmp_path: Path) -> None:
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
    distances = [np.linalg.norm(images - prompt[None], axis=2) for prompt in prompts]
    scores = -np.mean(distances, axis=0)  # [200, 1000]
    specs = readers(wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *names]))
    encoder, found = WordEncoder(image=images, word=words), {}
    for present in (False, True):
        part = configs.ZeroShot(
            label="label", file=f"{tmp_path}/prompts.json#imagenet", present=present
        )
        task = bound(part, source, specs, TOPOLOGIES["euclidean"], encoder)
        task.check()
        found[present] = task.run({})
        columns = chosen if present else np.arange(1000)
        order = columns[np.argsort(-scores[:, columns], axis=1)]
        assert found[present]["accuracy"] == np.mean(order[:, 0] == chosen)
        assert found[present]["top5_accuracy"] == np.mean(
            [i in row[:5] for i, row in zip(chosen, order, strict=True)]
        )
    assert 0 < found[False]["accuracy"] < found[True]["accuracy"] < 1


def test_class_folders_of_numbers_and_without_images(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no.* fetch it"):
        make_source(configs.ClassFolders(path=str(tmp_path / "no"), how_to_get="fetch it"))
    (tmp_path / "10").mkdir()
    with pytest.raises(UserError, match="no images in folders"):
        make_source(configs.ClassFolders(path=str(tmp_path)))
    Image.new("RGB", (4, 4)).save(tmp_path / "10" / "a.jpeg")
    assert make_source(configs.ClassFolders(path=str(tmp_path)))[0]["label"] == 10
