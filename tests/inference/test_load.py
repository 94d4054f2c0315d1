"""Models loaded from checkpoints: the numbers of training, from one folder, on any devices."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from scipy.sparse import csr_array

import big_retrieval
from big_retrieval import config as configs
from big_retrieval.commands import evaluate
from big_retrieval.config import recipe
from big_retrieval.config.topologies import topology_part
from big_retrieval.data.build import make_readers
from big_retrieval.data.images import decoding
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.evals.encoding import SourceEncoder
from big_retrieval.inference import load as load_module
from big_retrieval.inference.load import TrainedModel
from big_retrieval.inference.saved import restore_params
from big_retrieval.io import manifest
from big_retrieval.train.build import untrained
from big_retrieval.train.checkpoint import write_model
from big_retrieval.train.loop import train
from big_retrieval.train.optimizer import names_of
from tests.helpers import ema, lexical_texts, results, tiny, user_error

TEST = SceneRecords("test", count=20)
CAPTIONS = list(TEST.captions())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with averaged weights, evaluators and checkpoints 3, 4 on eight devices."""
    scenes, colors = (
        configs.Scenes(split="test", count=20),
        configs.Scenes(split="colours", count=16),
    )
    evals = {
        "test": recipe.entry(configs.Retrieval(), data=scenes, chunk=16),
        "colours": recipe.entry(configs.ZeroShot(), data=colors),
    }
    workdir = tmp_path_factory.mktemp("finished")
    train(tiny(total_steps=4, evals=evals, optimizer__averaging=ema(0.5)), workdir)
    return workdir


@pytest.fixture(scope="module")
def trained(finished: Path) -> TrainedModel:
    return big_retrieval.load(finished, batch_size=16)


def test_load_takes_newest_step_and_average(finished: Path, trained: TrainedModel) -> None:
    assert trained.folder == finished / "checkpoints" / "4"
    ema, params = (restore_params(trained.folder, name) for name in ("ema", "params"))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(trained.weights), ema)
    last = names_of(params)
    moved = [not np.array_equal(x, last[name]) for name, x in names_of(ema).items()]
    assert sum(moved) > len(moved) / 2


def test_features_lead_to_embeddings(trained: TrainedModel) -> None:
    texts = CAPTIONS[:3]
    layers = [trained.features(texts, "text", layer) for layer in ("embedding", 0, -1, "final")]
    assert {x.shape for x in layers} == {(3, 21, 16)}
    np.testing.assert_array_equal(layers[1], layers[2])  # there is one layer
    kernel = jax.device_get(trained.weights)["text_head"]["kernel"]
    raw = jnp.asarray(layers[3][:, :2] @ kernel)  # the class tokens are the first positions
    embeddings = topology_part(trained.config.topology).project(raw)
    np.testing.assert_allclose(trained.encode(texts, "text"), embeddings, atol=1e-5)
    with user_error("no layer 5", "'embedding', 'final', 0 to 0"):
        trained.features([TEST[0]["image"]], "image", 5)


def test_embeddings_equal_evaluators(trained: TrainedModel) -> None:
    readers = make_readers(trained.config, trained.tokenizer)
    encoder = SourceEncoder(trained.encoder, trained.weights)
    texts, _ = encoder.encode(TEST, "text", readers["text"])
    images, _ = encoder.encode(TEST, "image", readers["image"])
    # Other batches (texts of similar length; eight images) change the last digit.
    np.testing.assert_allclose(trained.encode_texts(CAPTIONS), texts, atol=1e-6)
    encoded = trained.encode_images([TEST[i]["image"] for i in range(len(TEST))])
    np.testing.assert_allclose(encoded, images, atol=1e-6)
    assert texts.shape == (100, 2, 4)
    assert images.shape == (20, 2, 4)
    scores = topology_part(trained.config.topology).score(texts, images)
    np.testing.assert_array_equal(trained.score(texts, images), scores)


def test_every_text_has_an_embedding(trained: TrainedModel) -> None:
    texts = [CAPTIONS[0], "", CAPTIONS[1], "\ud800"]
    embeddings = trained.encode_texts(texts)
    assert embeddings.shape[0] == 4
    np.testing.assert_allclose(embeddings[[0, 2]], trained.encode_texts(CAPTIONS[:2]), atol=1e-6)
    np.testing.assert_array_equal(trained.encode(texts, "text"), embeddings)
    np.testing.assert_array_equal(trained.encode(texts[0], "text"), trained.encode_texts(texts[:1]))


def test_repr_names_fields(trained: TrainedModel) -> None:
    assert re.fullmatch(
        r"<model of \S+: image \(image, document\), text \(text, query\); [\d,]+ parameters>",
        repr(trained),
    )


def test_pooled_padding_does_not_depend_on_other_texts(tmp_path: Path) -> None:
    changes = lexical_texts(pool_padding=True)
    changes["fields"]["query"].length = 64
    write_model(untrained(tiny(**changes), batch_size=8), tmp_path / "model")
    model = big_retrieval.load(tmp_path / "model")
    alone = model.encode_texts(["a red circle"], "query")
    pair = model.encode_texts(["a red circle", "a large blue star " * 12], "query")
    np.testing.assert_array_equal(alone.toarray()[0], pair.toarray()[0])


def test_images_may_be_arrays_files_and_pictures(trained: TrainedModel, tmp_path: Path) -> None:
    array, file = TEST[3]["image"], tmp_path / "scene.png"
    picture: Any = Image.fromarray(array)
    picture.save(file)
    forms = [array, picture, file, str(file), file.read_bytes()]
    embeddings = trained.encode_images([*forms, TEST[4]["image"]])
    for index, form in enumerate(forms):
        np.testing.assert_array_equal(embeddings[index], embeddings[0])
        np.testing.assert_array_equal(trained.encode_images(form), embeddings[:1])
    assert not np.array_equal(embeddings[-1], embeddings[0])
    several = np.stack([array, TEST[4]["image"]])  # [2, H, W, 3]
    for images in (several, (image for image in several)):
        np.testing.assert_array_equal(trained.encode_images(images), embeddings[[0, -1]])
    np.testing.assert_array_equal(trained.encode(picture, "image"), embeddings[:1])
    assert trained.encode_images(array[..., 0]).shape == embeddings[:1].shape  # gray
    text = trained.encode_texts(CAPTIONS[0])
    np.testing.assert_array_equal(text, trained.encode_texts(CAPTIONS[:1]))
    assert trained.score(text, embeddings).shape == (1, len(embeddings))


def test_model_rejects_wrong_values(trained: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    text = trained.encode_texts("a")
    for call, words in (
        (lambda: trained.encode_texts(["a"], "title"), ["no field 'title'", "image, text"]),
        (lambda: trained.encode_images([], "image"), ["Nothing to encode", "image"]),
        (lambda: trained.encode_images(5), ["Not an image: 5", "uint8 arrays"]),
        (lambda: trained.encode_texts(None), ["field 'text': None"]),  # type: ignore
        (lambda: trained.encode(["a", None], "text"), ["Value 1 for field 'text' is None"]),
        (lambda: trained.encode([3], "text"), ["Value 0 for"]),
        (lambda: trained.encode_images([tmp_path / "x.png"]), ["x.png cannot be read"]),
        (lambda: trained.encode_images([tmp_path / "text.png"]), ["text.png is not an image"]),
        (lambda: trained.encode_images([b"no image"]), ["of 8 bytes is not an image"]),
        (lambda: trained.encode_images({"a": 1}), ["images are a dict; give a list"]),
        (lambda: trained.encode_images("a.png", "text"), ["'text' is a text field"]),
        (
            lambda: trained.encode_texts("a", field="image"),
            ["'image' has the type 'image', not text"],
        ),
        (lambda: trained.encode_texts({"a": 1}), ["'text' are a dict; give a list"]),  # type: ignore
        (lambda: trained.encode({"a"}, "text"), ["'text' are a set"]),  # type: ignore
        (lambda: trained.score("a dog", text), ["first argument is 'a dog'"]),
        (lambda: trained.score(text, None), ["second argument is None"]),
        (lambda: trained.score(text, csr_array(text[:, 0])), ["a lexical field and a dense field"]),
    ):
        with user_error(*words):
            call()


def test_load_needs_only_checkpoint_folder(
    finished: Path, trained: TrainedModel, tmp_path: Path
) -> None:
    shutil.copytree(finished / "checkpoints" / "4", tmp_path / "model")
    alone = big_retrieval.load(tmp_path / "model", batch_size=16)
    np.testing.assert_array_equal(
        alone.encode_texts(CAPTIONS[:8]), trained.encode_texts(CAPTIONS[:8])
    )


def test_load_takes_folder_of_checkpoints_and_step(finished: Path, trained: TrainedModel) -> None:
    assert big_retrieval.load(finished / "checkpoints").folder == trained.folder
    third = big_retrieval.load(finished, step=3, batch_size=16)
    assert third.folder.name == "3"
    difference = third.encode_texts(CAPTIONS[:8]) - trained.encode_texts(CAPTIONS[:8])
    assert np.abs(difference).max() > 1e-4
    with user_error("no complete checkpoint of step 2"):
        big_retrieval.load(finished, step=2)


def test_load_on_one_device_equals_eight(
    finished: Path, trained: TrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = jax.local_devices()[:1]
    monkeypatch.setattr(jax, "local_devices", lambda: first)
    one = big_retrieval.load(finished, batch_size=16)
    assert one.encoder.row_multiple() == 1
    assert trained.encoder.row_multiple() == 8
    images = [TEST[i]["image"] for i in range(5)]
    np.testing.assert_allclose(
        one.encode_texts(CAPTIONS[:9]), trained.encode_texts(CAPTIONS[:9]), atol=1e-5
    )
    np.testing.assert_allclose(one.encode_images(images), trained.encode_images(images), atol=1e-5)


def test_evaluate_equals_training(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.main(evaluate.EvaluateOptions(run=finished))
    metrics = json.loads((finished / "evaluation.json").read_text())
    assert metrics.pop("checkpoint") == "4"
    trained = results(finished)
    assert len(metrics) == 2 * 8 + 2 + 2  # with rsum and R-mean
    assert metrics == {name: trained[name] for name in metrics}
    printed = capsys.readouterr().out
    assert f"written to {finished / 'evaluation.json'}" in printed
    assert all(name in printed for name in metrics)


def test_evaluate_writes_nothing_into_checkpoint(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(finished / "checkpoints" / "4", tmp_path / "model"))
    files = sorted(tmp_path.rglob("*"))
    evaluate.main(evaluate.EvaluateOptions(run=model))
    assert sorted(tmp_path.rglob("*")) == files
    printed = capsys.readouterr().out
    assert f"{model} is not a run folder: nothing is written" in printed
    words = printed.split()
    for name in ("retrieval/test/image_to_text/mean_rank", "zeroshot/colours/accuracy"):
        assert words[words.index(name) + 1] == f"{results(finished)[name]:.4f}"


def test_opened_image_equals_its_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (40, 20, 4), np.uint8), "RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    picture.save(tmp_path / "a.png", exif=exif)
    with Image.open(tmp_path / "a.png") as opened:
        upright = decoding.from_pil(opened)
    np.testing.assert_array_equal(upright, decoding.decode((tmp_path / "a.png").read_bytes()))
    assert upright.shape == (20, 40, 3)


def test_load_names_damaged_checkpoint(finished: Path, tmp_path: Path, said: list[str]) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    path = run / "checkpoints" / "4" / manifest.MANIFEST
    path.write_bytes(path.read_bytes()[:-20])
    assert big_retrieval.load(run).folder.name == "3"
    assert any("4 is damaged" in line and "using step 3 instead" in line for line in said)


def test_card_has_metrics_of_exported_step(finished: Path) -> None:
    from big_retrieval.exporting import card

    rsum = results(finished)["retrieval/test/rsum"]
    for step in (3, 4):
        folder = finished / "checkpoints" / str(step)
        text = card._metrics(folder, manifest.read_meta(folder))
        assert (f"rsum | {rsum:.6g}" in text) == (step == 4)
        assert f"tep {step}" in text


def test_load_reads_next_checkpoint_after_pruning(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "results.json").unlink()
    hidden = (run / "checkpoints" / "4").rename(tmp_path / "hidden")
    restore = load_module.restore_weights

    def prune_and_restore(folder: Path, config: Any) -> Any:
        if folder.name == "3":  # the run saves step 4 and removes step 3
            hidden.rename(run / "checkpoints" / "4")
            (folder / manifest.MANIFEST).unlink()
            shutil.rmtree(folder)
        return restore(folder, config)

    monkeypatch.setattr(load_module, "restore_weights", prune_and_restore)
    assert big_retrieval.load(run).folder.name == "4"
