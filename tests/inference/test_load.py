"""Out of a checkpoint: the same numbers as in training, from one folder, on any devices."""

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
from big_retrieval.errors import UserError
from big_retrieval.evals.encoding import SourceEncoder
from big_retrieval.inference import load as load_module
from big_retrieval.inference.load import TrainedModel
from big_retrieval.inference.saved import restore_params
from big_retrieval.io import manifest
from big_retrieval.train.build import untrained
from big_retrieval.train.checkpoint import write_model
from big_retrieval.train.loop import train
from big_retrieval.train.optimizer import names_of
from tests.helpers import ema, lexical_texts, results, tiny

TEST, COLOURS = SceneRecords("test", count=20), SceneRecords("colours", count=16)
CAPTIONS = list(TEST.captions())


def evals() -> dict[str, recipe.Editable]:
    """Both kinds of evaluators on few records."""
    few: dict[Any, int] = {"test": 20, "colours": 16}
    data = {name: configs.Scenes(split=name, count=count) for name, count in few.items()}
    return {
        "test": recipe.entry(configs.Retrieval(), data=data["test"], chunk=16),
        "colours": recipe.entry(configs.ZeroShot(), data=data["colours"]),
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with averaged weights, evaluators and checkpoints 3, 4 on eight devices."""
    workdir = tmp_path_factory.mktemp("finished")
    train(tiny(total_steps=4, evals=evals(), optimizer__averaging=ema(0.5)), workdir)
    return workdir


@pytest.fixture(scope="module")
def trained(finished: Path) -> TrainedModel:
    return big_retrieval.load(finished, batch_size=16)


def test_newest_step_and_the_average_are_taken(finished: Path, trained: TrainedModel) -> None:
    assert trained.folder == finished / "checkpoints" / "4"
    ema, params = (restore_params(trained.folder, name) for name in ("ema", "params"))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(trained.weights), ema)
    last = names_of(params)
    moved = [not np.array_equal(x, last[name]) for name, x in names_of(ema).items()]
    assert sum(moved) > len(moved) / 2


def test_features_lead_to_the_embeddings(trained: TrainedModel) -> None:
    texts = CAPTIONS[:3]
    layers = [trained.features(texts, "text", layer) for layer in ("embedding", 0, -1, "final")]
    assert {found.shape for found in layers} == {(3, 21, 16)}
    np.testing.assert_array_equal(layers[1], layers[2])  # there is one layer
    kernel = jax.device_get(trained.weights)["text_head"]["kernel"]
    raw = jnp.asarray(layers[3][:, :2] @ kernel)  # the class tokens are the first positions
    embeddings = topology_part(trained.config.topology).project(raw)
    np.testing.assert_allclose(trained.encode(texts, "text"), embeddings, atol=1e-5)
    words = "The tower of 'image' has no layer 5. It has: 'embedding', 'final', 0 to 0."
    with pytest.raises(UserError, match=words):
        trained.features([TEST[0]["image"]], "image", 5)


def test_embeddings_are_those_of_the_evaluators(trained: TrainedModel) -> None:
    specs = make_readers(trained.config, trained.tokenizer)
    encoder = SourceEncoder(trained.encoder, trained.weights)
    texts, _ = encoder.encode(TEST, "text", specs["text"])
    images, _ = encoder.encode(TEST, "image", specs["image"])
    # Texts of like length share a batch, images are eight at a time: that moves the last digit, of
    # images in jax 0.11.
    np.testing.assert_allclose(trained.encode_texts(CAPTIONS), texts, atol=1e-6)
    found = trained.encode_images([TEST[i]["image"] for i in range(len(TEST))])
    np.testing.assert_allclose(found, images, atol=1e-6)
    assert texts.shape == (100, 2, 4)
    assert images.shape == (20, 2, 4)
    scores = topology_part(trained.config.topology).score(texts, images)
    np.testing.assert_array_equal(trained.score(texts, images), scores)


def test_an_empty_text_has_an_embedding_too(trained: TrainedModel) -> None:
    texts = [CAPTIONS[0], "", CAPTIONS[1], "\ud800"]
    embeddings = trained.encode_texts(texts)
    assert embeddings.shape[0] == 4
    np.testing.assert_allclose(embeddings[[0, 2]], trained.encode_texts(CAPTIONS[:2]), atol=1e-6)


def test_a_model_says_what_it_is_in_a_line(trained: TrainedModel) -> None:
    assert re.fullmatch(
        r"<model of \S+: image \(image, document\), text \(text, query\); [\d,]+ parameters>",
        repr(trained),
    )


def test_every_value_has_a_row(trained: TrainedModel) -> None:
    texts = ["a red circle", "", "a blue star"]
    np.testing.assert_array_equal(trained.encode(texts, "text"), trained.encode_texts(texts))
    np.testing.assert_array_equal(trained.encode(texts[0], "text"), trained.encode_texts(texts[:1]))
    for wrong, words in (
        (["a", None], "Value 1 for field 'text' is None"),
        ([3], "Value 0 for"),
    ):
        with pytest.raises(UserError, match=words):
            trained.encode(wrong, "text")


def test_padding_that_is_pooled_does_not_depend_on_other_texts(tmp_path: Path) -> None:
    changes = lexical_texts(pool_padding=True)
    changes["fields"]["query"].length = 64
    write_model(untrained(tiny(**changes), batch_size=8), tmp_path / "model")
    model = big_retrieval.load(tmp_path / "model")
    alone = model.encode_texts(["a red circle"], "query")
    beside = model.encode_texts(["a red circle", "a large blue star " * 12], "query")
    np.testing.assert_array_equal(alone.toarray()[0], beside.toarray()[0])


def test_images_as_arrays_files_and_pictures(trained: TrainedModel, tmp_path: Path) -> None:
    array = TEST[3]["image"]
    picture: Any = Image.fromarray(array)
    picture.save(tmp_path / "scene.png")
    embeddings = trained.encode_images(
        [array, picture, tmp_path / "scene.png", str(tmp_path / "scene.png"), TEST[4]["image"]]
    )
    for other in embeddings[1:4]:
        np.testing.assert_array_equal(other, embeddings[0])
    assert not np.array_equal(embeddings[4], embeddings[0])
    content = (tmp_path / "scene.png").read_bytes()
    for alone in (array, picture, tmp_path / "scene.png", str(tmp_path / "scene.png"), content):
        np.testing.assert_array_equal(trained.encode_images(alone), embeddings[:1])
    several = np.stack([array, TEST[4]["image"]])  # [2, H, W, 3]
    np.testing.assert_array_equal(trained.encode_images(several), embeddings[[0, 4]])
    np.testing.assert_array_equal(trained.encode(picture, "image"), embeddings[:1])
    assert trained.encode_images(array[..., 0]).shape == embeddings[:1].shape  # grey
    drawn = trained.encode_images(each for each in several)
    np.testing.assert_array_equal(drawn, embeddings[[0, 4]])
    text = trained.encode_texts(CAPTIONS[0])
    np.testing.assert_array_equal(text, trained.encode_texts(CAPTIONS[:1]))
    assert trained.score(text, embeddings).shape == (1, 5)


def test_what_cannot_be_encoded_is_named(trained: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    text = trained.encode_texts("a")
    for call, words in (
        (lambda: trained.encode_texts(["a"], "title"), ["no field 'title'", "image, text"]),
        (lambda: trained.encode_images([], "image"), ["Nothing to encode", "image"]),
        (lambda: trained.encode_images(5), ["Not an image: 5", "uint8 arrays"]),
        (lambda: trained.encode_texts(None), ["field 'text': None"]),  # type: ignore
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
        with pytest.raises(UserError) as problem:
            call()
        assert all(word in str(problem.value) for word in words), problem.value


def test_one_checkpoint_folder_is_all_it_takes(
    finished: Path, trained: TrainedModel, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    shutil.copytree(tmp_path / "run" / "checkpoints" / "4", tmp_path / "model")
    shutil.rmtree(tmp_path / "run")
    alone = big_retrieval.load(tmp_path / "model", batch_size=16)
    np.testing.assert_array_equal(
        alone.encode_texts(CAPTIONS[:8]), trained.encode_texts(CAPTIONS[:8])
    )


def test_the_folder_of_checkpoints_and_a_step(finished: Path, trained: TrainedModel) -> None:
    assert big_retrieval.load(finished / "checkpoints").folder == trained.folder
    third = big_retrieval.load(finished, step=3, batch_size=16)
    assert third.folder.name == "3"
    difference = third.encode_texts(CAPTIONS[:8]) - trained.encode_texts(CAPTIONS[:8])
    assert np.abs(difference).max() > 1e-4
    with pytest.raises(UserError, match="no complete checkpoint of step 2"):
        big_retrieval.load(finished, step=2)


def test_one_device(finished: Path, trained: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    first = jax.local_devices()[:1]
    monkeypatch.setattr(jax, "local_devices", lambda: first)
    one = big_retrieval.load(finished, batch_size=16)
    assert one.encoder.row_multiple() == 1
    assert trained.encoder.row_multiple() == 8
    images = [TEST[i]["image"] for i in range(5)]
    for found, expected in (
        (one.encode_texts(CAPTIONS[:9]), trained.encode_texts(CAPTIONS[:9])),
        (one.encode_images(images), trained.encode_images(images)),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def evaluated(folder: Path) -> None:
    """Runs `big-retrieval evaluate --run=FOLDER` in this process."""
    evaluate.main(evaluate.EvaluateOptions(run=folder))


def test_evaluate_gives_the_numbers_of_training(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(finished)
    found = json.loads((finished / "evaluation.json").read_text())
    assert found.pop("checkpoint") == "4"
    trained = results(finished)
    assert len(found) == 2 * 8 + 2 + 2  # with rsum and R-mean
    assert found == {name: trained[name] for name in found}
    printed = capsys.readouterr().out
    assert f"written to {finished / 'evaluation.json'}" in printed
    assert all(name in printed for name in found)


def test_evaluate_writes_nothing_into_a_checkpoint(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model = Path(shutil.copytree(finished / "checkpoints" / "4", tmp_path / "model"))
    before = sorted(tmp_path.rglob("*"))
    evaluated(model)
    assert sorted(tmp_path.rglob("*")) == before
    printed = capsys.readouterr().out
    assert f"{model} is not a run folder: nothing is written" in printed
    words = printed.split()
    for name in ("retrieval/test/image_to_text/mean_rank", "zeroshot/colours/accuracy"):
        assert words[words.index(name) + 1] == f"{results(finished)[name]:.4f}"


def test_an_open_image_is_read_like_its_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (40, 20, 4), np.uint8), "RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6  # lying on its side
    picture.save(tmp_path / "a.png", exif=exif)
    with Image.open(tmp_path / "a.png") as opened:
        upright = decoding.from_pil(opened)
    np.testing.assert_array_equal(upright, decoding.decode((tmp_path / "a.png").read_bytes()))
    assert upright.shape == (20, 40, 3)


def damaged(finished: Path, folder: Path) -> Path:
    """A copy of a run, the manifest of whose newest checkpoint is cut."""
    shutil.copytree(finished, folder)
    newest = manifest.complete_steps(folder / "checkpoints")[-1]
    path = folder / "checkpoints" / str(newest) / manifest.MANIFEST
    path.write_bytes(path.read_bytes()[:-20])
    return folder


def test_an_older_checkpoint_that_stands_in_is_named(
    finished: Path, tmp_path: Path, said: list[str]
) -> None:
    run = damaged(finished, tmp_path / "run")
    older, newest = manifest.complete_steps(run / "checkpoints")[-2:]
    assert big_retrieval.load(run).folder.name == str(older)
    assert any(
        f"{newest} is damaged" in line and f"using step {older} instead" in line for line in said
    )


def test_metrics_on_a_card_are_those_of_the_exported_step(finished: Path, tmp_path: Path) -> None:
    from big_retrieval.exporting import card

    steps = manifest.complete_steps(finished / "checkpoints")
    for step in steps[-2:]:
        folder = finished / "checkpoints" / str(step)
        meta = manifest.read_meta(folder)
        shown = card._metrics(folder, meta)
        number = results(finished)["retrieval/test/rsum"]
        assert (f"rsum | {number:.6g}" in shown) == (step == steps[-1])
        assert f"tep {step}" in shown


def test_a_checkpoint_that_is_pruned_while_it_is_read_is_followed_by_the_next(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    older, newest = manifest.complete_steps(run / "checkpoints")[-2:]
    (run / "results.json").unlink()
    hidden = (run / "checkpoints" / str(newest)).rename(tmp_path / "hidden")
    inner = load_module.restore_weights

    def pruned(folder: Path, config: Any) -> Any:
        if folder.name == str(older):  # the run has saved another step, and prunes
            hidden.rename(run / "checkpoints" / str(newest))
            (folder / manifest.MANIFEST).unlink()
            shutil.rmtree(folder)
        return inner(folder, config)

    monkeypatch.setattr(load_module, "restore_weights", pruned)
    assert big_retrieval.load(run).folder.name == str(newest)
