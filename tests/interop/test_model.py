"""Whole models of other libraries: opened, written as models of this package, evaluated."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import big_retrieval
from big_retrieval.data.text.tokenizers import load_tokenizer
from big_retrieval.errors import UserError
from big_retrieval.inference.load import TrainedModel
from big_retrieval.interop.model import import_model
from big_retrieval.interop.read import read
from big_retrieval.train.checkpoint import write_model
from tests.helpers import in_process, tiny
from tests.interop.folders import (
    DATA,
    POOLING,
    WORDS,
    change,
    minilm,
    sentence_transformer,
    with_dense,
    with_words,
)
from tests.interop.test_towers import run

TEXTS = ["a red b", "reds", "x y z a b c d e f", ""]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainedModel]:
    """A folder of open_clip, and its model."""
    folder = with_words("open_clip", tmp_path_factory.mktemp("clip"))
    return folder, import_model(str(folder))


def unit(x: Any) -> np.ndarray:
    return np.asarray(x) / np.linalg.norm(x, axis=-1, keepdims=True)


def test_text_models_have_two_fields_with_one_tower(tmp_path: Path) -> None:
    folder = with_words("bert", tmp_path)
    model = import_model(str(folder), pool="mean")
    fields = model.config.fields
    assert {name: f.tower for name, f in fields.items()} == {"text": "text", "document": "text"}
    ids, mask = load_tokenizer("auto", str(folder)).encode(TEXTS, 16)
    positions = run(read(str(folder)).parts["text"], (jnp.asarray(ids), mask), pool="none")
    share = np.asarray(mask, float)[:, :, None]
    expected = unit((np.asarray(positions, float) * share).sum(1) / share.sum(1))
    embeddings = {field: model.encode_texts(TEXTS, field) for field in fields}
    for values in embeddings.values():
        np.testing.assert_allclose(values[:, 0], expected, atol=1e-5)
    scores = model.score(embeddings["text"], embeddings["document"])
    np.testing.assert_allclose(np.diag(scores), 1, atol=1e-5)


@pytest.mark.parametrize("style", POOLING)
def test_import_reads_sentence_transformers(style: str, tmp_path: Path) -> None:
    folder = sentence_transformer(tmp_path, style, **{"2_Normalize": "Normalize"})
    model = import_model(str(folder))
    assert model.config.towers["text"].pool == "mean"
    assert model.config.topology == "sphere"
    assert model.config.fields["text"].length == 7  # type: ignore[union-attr]
    expected = import_model(str(with_words("bert", tmp_path / "bare")), pool="mean")
    short = [text for text in TEXTS if len(text.split()) < 6]
    np.testing.assert_allclose(
        model.encode_texts(short), expected.encode_texts(short), rtol=1e-5, atol=1e-6
    )


def test_import_without_normalize_scores_products_and_projects_by_dense(tmp_path: Path) -> None:
    plain = import_model(str(sentence_transformer(tmp_path / "plain", "old")))
    assert plain.config.topology == "inner"
    a = plain.encode_texts(TEXTS)
    assert not np.allclose(np.linalg.norm(a, axis=-1), 1)
    np.testing.assert_allclose(plain.score(a, a), a[:, 0] @ a[:, 0].T, rtol=1e-5)
    folder, weight = with_dense(tmp_path, "old")
    b = import_model(str(folder)).encode_texts(TEXTS)
    np.testing.assert_allclose(b[:, 0], a[:, 0] @ weight.T, rtol=1e-4, atol=1e-4)
    tanh = "torch.nn.modules.activation.Tanh"
    change(folder / "2_Dense" / "config.json", activation_function=tanh)
    with pytest.raises(UserError, match=r"2_Dense .*only one linear projection without bias"):
        import_model(str(folder))


def test_import_rejects_other_modules(tmp_path: Path) -> None:
    for modules, message in (
        ({"2_LSTM": "LSTM"}, "modules.json.*Transformer, Pooling, LSTM"),
        ({"2_Normalize": "Normalize", "3_Pooling": "Pooling"}, "modules.json.*Normalize, Pooling"),
        ({"../elsewhere": "Normalize"}, "outside of its folder"),
    ):
        folder = sentence_transformer(tmp_path / str(len(message)), "old", **modules)
        with pytest.raises(UserError, match=message):
            read(str(folder))
    folder = sentence_transformer(tmp_path, "old")
    change(folder / "1_Pooling" / "config.json", pooling_mode_max_tokens=True)
    with pytest.raises(UserError, match=r"one of cls, mean and lasttoken"):
        read(str(folder))


def test_import_reads_images_and_texts(clip: tuple[Path, TrainedModel]) -> None:
    folder, model = clip
    image_field: Any = model.config.fields["image"]
    assert (image_field.size, model.config.fields["text"].length) == (24, 6)  # type: ignore[union-attr]
    assert image_field.mean == (0.5, 0.4, 0.3)
    image = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    part = read(str(folder)).parts["image"]
    pixels = (image / 255 - np.array([0.5, 0.4, 0.3])) / np.array([0.2, 0.3, 0.4])
    token = run(part, (jnp.asarray(pixels[None], jnp.float32),))[:, 0]
    expected = unit(token @ part.head["kernel"])
    np.testing.assert_allclose(model.encode_images([image])[:, 0], expected, atol=1e-5)


def test_import_rejects_missing_and_foreign_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no tokenizer.*--tokenizer"):
        import_model(str(DATA / "bert"))
    words = tmp_path / "vocab.txt"
    words.write_text("\n".join([*WORDS, *(f"w{k}" for k in range(20))]))
    with pytest.raises(UserError, match=r"has 53 ids, the word table of .* 40 rows"):
        import_model(str(DATA / "bert"), tokenizer=str(words))


def test_import_rejects_unknown_parameters(tmp_path: Path) -> None:
    folder = with_words("bert", tmp_path)
    arrays = load_file(folder / "model.safetensors")
    save_file({**arrays, "adapter.up": np.zeros(3, np.float32)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"unknown parameters: adapter.up"):
        import_model(str(folder))


def test_imported_model_is_written_and_loaded(
    clip: tuple[Path, TrainedModel], tmp_path: Path
) -> None:
    folder, model = clip
    best = replace(model.config, best_metric="retrieval/own/R@1", final_weights="best")
    write_model(replace(model, config=best), tmp_path / "run")
    again = big_retrieval.load(tmp_path / "run")
    embeddings = model.encode_texts(TEXTS)
    np.testing.assert_array_equal(again.encode_texts(TEXTS), embeddings)
    assert again.config.towers == model.config.towers
    parts = read(str(tmp_path / "run")).parts
    for name, part in read(str(folder)).parts.items():
        for path, array in part.params.items():
            np.testing.assert_array_equal(parts[name].params[path], array)
    # An import of a run takes over data and evaluators of another config, nothing else.
    like = tiny()
    again = import_model(str(tmp_path / "run"), like=like)
    assert (again.config.evals, again.config.data) == (like.evals, like.data)
    assert (again.config.best_metric, again.config.final_weights) == ("", "last")
    assert again.config.fields == model.config.fields
    np.testing.assert_array_equal(again.encode_texts(TEXTS), embeddings)
    with pytest.raises(UserError, match=r"run.*Remove tokenizer, pool and head"):
        import_model(str(tmp_path / "run"), pool="mean")


@pytest.mark.slow
def test_import_command(tmp_path: Path) -> None:
    folder = with_words("open_clip", tmp_path)
    out = tmp_path / "ours"
    done = in_process("import", f"--from={folder}", f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert "image: open_clip's vision transformer, vit (patch " in done.stdout
    quick = "--config=configs/quickstart.py:runlocal"
    done = in_process("evaluate", f"--init={folder}", quick, f"--out={tmp_path / 'numbers'}")
    assert done.returncode == 0, done.stderr
    numbers = json.loads((tmp_path / "numbers" / "evaluation.json").read_text())
    assert 0 <= numbers["retrieval/test/image_to_text/R@10"] <= 1
    for args, message in [
        (("import",), "--from is missing"),
        (("import", f"--from={folder}"), "--out is missing"),
        (("import", f"--from={folder}", f"--out={out}"), "exists and is not empty"),
        (("evaluate", f"--init={folder}"), "--config is missing"),
        (("evaluate", f"--init={DATA / 'open_clip'}", quick), "has no tokenizer"),
        (("evaluate", f"--run={out}", "--pool=mean"), "are for --init"),
    ]:
        done = in_process(*args)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert message in done.stderr


def test_minilm_gives_its_published_similarity() -> None:
    model = import_model(minilm())
    assert model.config.towers["text"].heads == 12
    embeddings = model.encode_texts(["This is an example sentence", "Each sentence is converted"])
    score = model.score(embeddings[:1], embeddings[1:])[0, 0]
    assert score == pytest.approx(0.4046, abs=5e-5)
    assert embeddings[0, 0, :3] == pytest.approx([0.06766, 0.06350, 0.04871], abs=1e-5)


def test_minilm_computes_what_its_library_does() -> None:
    folder = minilm()
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    library = transformers.AutoModel.from_pretrained(folder).eval()
    texts = ["This is an example sentence", "", "Ünïcode 今天 😀 " * 5, "word " * 400]
    words = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = words(texts, return_tensors="pt", padding=True, truncation=True, max_length=256)
    with torch.no_grad():
        hidden = library(**inputs).last_hidden_state
    mask = inputs["attention_mask"][:, :, None]
    mean = (hidden * mask).sum(1) / mask.sum(1)
    expected = torch.nn.functional.normalize(mean).numpy()
    np.testing.assert_allclose(import_model(folder).encode_texts(texts)[:, 0], expected, atol=1e-5)
