"""Exports of models from tests/interop/data, imported again bit for bit.

Nothing here needs PyTorch: tests/interop/export_all.py runs the libraries.
"""

import dataclasses
import json
import stat
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import big_retrieval
from big_retrieval.config import ImageField
from big_retrieval.data.images.transforms import evaluation_view
from big_retrieval.data.text.tokenizer import clip_text
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.errors import UserError
from big_retrieval.exporting import certificate as certificates
from big_retrieval.exporting.certificate import FAILED, UNVERIFIED, VERIFIED
from big_retrieval.exporting.export import TARGETS, export, verify, write_export
from big_retrieval.exporting.library import Job, ask
from big_retrieval.exporting.parts import take_apart
from big_retrieval.exporting.target import write_preprocessor, write_tokenizer
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.inference.load import TrainedModel
from big_retrieval.interop.model import import_model
from big_retrieval.train.checkpoint import write_model
from tests.helpers import in_process, noise
from tests.interop.folders import with_dense, with_words
from tests.interop.hard_texts import TEXTS
from tests.interop.test_clip_tokenizer import small as clip_words

LEXICAL = {"head": "lexical"}


@dataclasses.dataclass(frozen=True)
class Case:
    """An export.

    Attributes:
      source: a folder of tests/interop/data.
      to: the target.
      how: keys of the import of the source.
      back: keys of the import of the export.
      fields: see `export`.
    """

    source: str
    to: str = "transformers"
    how: dict[str, Any] = dataclasses.field(default_factory=dict)
    back: dict[str, Any] = dataclasses.field(default_factory=dict)
    fields: tuple[str, ...] = ()


CASES = {
    "BERT": Case("bert", how={"pool": "mean"}),
    "masked": Case("masked_bert_tanh", how=LEXICAL, back=LEXICAL),
    "masked, own table": Case("masked_bert_untied", how=LEXICAL, back=LEXICAL),
    "ViT": Case("hf_vit"),
    "ResNet": Case("resnet_bottleneck"),
    "CLIP": Case("hf_clip_quick"),
    "CLIP's images": Case("hf_clip", fields=("image",)),
    "CLIP's texts": Case("hf_clip", fields=("text",)),
    "dense": Case("dense", "sentence-transformers"),
    "norm": Case("bert", "sentence-transformers"),
    "SPLADE": Case("masked_bert", "sentence-transformers", how=LEXICAL),
    "open_clip": Case("open_clip", "open_clip"),
}
# The library wrote these sources: the export must have the same arrays.
OWN_FILES = ("BERT", "masked", "masked, own table", "ViT", "CLIP", "SPLADE", "open_clip")
QUICK = ("BERT", "CLIP", "SPLADE", "dense")
WEIGHTS = ("model.safetensors", "open_clip_model.safetensors")


def model_of(case: str, folder: Path) -> tuple[Path, TrainedModel]:
    """A folder that a library wrote, and its model."""
    name = CASES[case].source
    if name == "dense":
        folder, _ = with_dense(folder)
    else:
        folder = with_words(name, folder)
    model = import_model(str(folder), **CASES[case].how)
    if case == "ViT":
        changed: Any = model.config.fields.items()
        wider = {name: dataclasses.replace(field, eval_resize=32) for name, field in changed}
        model = other(model, fields=wider)
    return folder, with_final_norm(model) if case == "norm" else model


def with_final_norm(model: TrainedModel) -> TrainedModel:
    """A BERT with a norm after the last layer, whose documents begin with a prompt."""
    fields: dict[str, Any] = dict(model.config.fields)
    fields["document"] = dataclasses.replace(fields["document"], prefix="x red: ")
    rng = np.random.default_rng(0)
    drawn = {name: jnp.asarray(rng.normal(size=32), jnp.float32) for name in ("scale", "bias")}
    weights = {**model.weights, "text": {**model.weights["text"], "ln_final": drawn}}
    changed = other(model, text__final_norm=True, text__epsilon=1e-5, fields=fields)
    return dataclasses.replace(changed, weights=weights)


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(next(folder / name for name in WEIGHTS if (folder / name).is_file()))


@pytest.mark.parametrize(
    "case",
    [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
)
def test_import_of_export_is_the_same_model(case: str, tmp_path: Path) -> None:
    source, model = model_of(case, tmp_path)
    out = tmp_path / "out"
    certificate = write_export(model, to=CASES[case].to, out=out, fields=CASES[case].fields)
    if case in OWN_FILES:
        theirs, found = weights(source), weights(out)
        assert set(found) == set(theirs)
        # The library adds the bias of the decoder, if it has one.
        unused = {"cls.predictions.bias"} if case == "masked, own table" else set()
        for name in set(theirs) - unused:
            np.testing.assert_array_equal(found[name], theirs[name], err_msg=name)
    again = import_model(str(out), batch_size=certificates.COUNT, **CASES[case].back)
    with np.load(out / certificates.STORED) as file:
        stored = {name: file[name] for name in file.files}
    by_modality = {
        stored[f"inputs/{name}"].dtype.kind: name for name in [*certificate.fields][::-1]
    }
    for kind, name in by_modality.items():  # the first field of each encoder
        inputs = stored[f"inputs/{name}"]
        embeddings: Any = (
            again.encode_texts(inputs.tolist()) if kind == "U" else again.encode_images(inputs)
        )
        dense = embeddings.toarray() if hasattr(embeddings, "toarray") else embeddings[:, 0]
        np.testing.assert_array_equal(dense, stored[f"embeddings/{name}"])
    assert certificate.status == UNVERIFIED
    if case in ("BERT", "masked", "dense", "SPLADE"):
        settings = json.loads((out / "tokenizer_config.json").read_text())
        assert settings["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"]
    if case == "dense":
        settings = json.loads((out / "sentence_bert_config.json").read_text())
        assert settings["model_args"] == {"add_pooling_layer": False}
    if case == "ViT":
        assert again.config.fields["image"].eval_resize == 32  # type: ignore[union-attr]
    assert not (out / ".building").exists()


def test_import_rejects_an_export_without_modules_json(tmp_path: Path) -> None:
    """Without the file, only the encoder would be read."""
    out = tmp_path / "out"
    write_export(model_of("dense", tmp_path)[1], to="sentence-transformers", out=out)
    (out / "modules.json").unlink()
    with pytest.raises(UserError, match=r"out lacks modules.json"):
        import_model(str(out))


def other(model: TrainedModel, **changes: Any) -> TrainedModel:
    """A model with another config; `image__patch` is a key of the image tower."""
    keys: dict[str, Any] = {"towers": dict(model.config.towers)}
    for key, value in changes.items():
        tower, _, name = key.partition("__")
        if name:
            changed: Any = keys["towers"][tower]
            keys["towers"][tower] = dataclasses.replace(changed, **{name: value})
        else:
            keys[key] = value
    return dataclasses.replace(model, config=dataclasses.replace(model.config, **keys))


def test_export_names_keys_that_targets_cannot_hold(tmp_path: Path) -> None:
    _, clip = model_of("CLIP", tmp_path / "clip")
    _, bert = model_of("BERT", tmp_path / "bert")
    splade_like = model_of("masked", tmp_path / "masked")[1]
    out = tmp_path / "out"
    for model, to, told in (
        (other(clip, image__class_tokens=4), "transformers", "image.class_tokens 4 (only 1)"),
        (
            other(bert, topology="geodesic"),
            "transformers",
            "a BertModel; --to=torch or onnx can",
        ),
        (clip, "sentence-transformers", "cannot hold the encoders of image; text in one folder"),
        (clip, "sentence-transformers", "; --to=open_clip or transformers or torch or onnx can."),
        (other(clip, text__epsilon=1e-6), "open_clip", "epsilon 1e-06 (only 1e-05); --to=transf"),
        (other(clip, image__mlp=49, text__activation="gelu"), "open_clip", "different activations"),
        (other(clip, topology="euclidean"), "open_clip", "config.topology 'euclidean' (only"),
        (bert, "open_clip", "the encoder of text, document alone"),
        (other(bert, text__final_norm=True), "transformers", "text.final_norm True (only False)"),
        (other(splade_like, topology="sphere"), "sentence-transformers", "'sphere' (only 'inner')"),
    ):
        with pytest.raises(UserError) as problem:
            big_retrieval.export(model, to=to, out=out)
        assert told in str(problem.value)
    with pytest.raises(UserError, match=r"--to=tf\. Targets: open_clip, transformers, sent"):
        export(bert, to="tf", out=out)
    with pytest.raises(UserError, match=r"--field=title\. The model has: image, text"):
        export(clip, to="open_clip", out=out, fields=("title",))
    assert not out.exists()


def test_fields_with_one_encoder_are_exported_together(tmp_path: Path) -> None:
    _, model = model_of("BERT", tmp_path)
    assert [list(part.fields) for part in take_apart(model).encodings] == [["text", "document"]]
    fields = dict(model.config.fields)
    fields["document"] = dataclasses.replace(fields["document"], prefix="passage: ")  # type: ignore
    prompted = take_apart(other(model, fields=fields))
    assert prompted.encodings[0].prompts() == {"document": "passage: "}
    assert next(TARGETS["transformers"].problems(prompted)).endswith(".prefix 'passage: '")
    assert next(TARGETS["sentence-transformers"].problems(prompted), None) is None
    fields["document"] = dataclasses.replace(fields["document"], length=4)  # type: ignore
    with pytest.raises(UserError, match=r"length is 16 and 4.*--field=text"):
        take_apart(other(model, fields=fields))
    short = take_apart(other(model, fields=fields), ("document",)).encoding_of("text")
    assert short.positions == 4


def python_that(folder: Path, difference: str) -> Path:
    """A Python whose library gives the stored embeddings plus a difference."""
    script = folder / f"library{difference}.py"
    script.write_text(
        "import json, sys\nimport numpy as np\n(job,) = json.load(open(sys.argv[2]))\n"
        f"with np.load(job['folder'] + '/{certificates.STORED}') as file:\n"
        "    found = {k[11:]: file[k] for k in file.files if k.startswith('embeddings/')}\n"
        f"found = {{k: x + {difference} for k, x in found.items()}}\n"
        "np.savez(job['outputs'], **found)\n"
        "told = {'versions': {'library': '1.0'}}\n"
        "json.dump(told, open(job['outputs'] + '.json', 'w'))\n"
    )
    program = folder / f"python{difference}"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return program


STUBS = {
    "transformers": "class ViTModel:\n    def from_pretrained(self, **bare): {use}\n",
    "torch": (
        "class zeros:\n    def __init__(self, n): pass\n    def numpy(self): {use}\n"
        "def set_grad_enabled(on): pass\n"
    ),
}


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("files", "missing", "told"),
    [
        slow(
            {"transformers": "try:\n 1/0\nexcept Exception as e:\n raise ImportError from e"},
            True,
            "cannot import the target library (ZeroDivisionError: division by zero)",
        ),
        ({"torch": "raise OSError('libtorch.so: no such file')"}, True, "OSError: libtorch.so"),
        ({"torch": "import os\nos.abort()"}, True, "was ended by SIGABRT before it answered"),
        slow({"torch": STUBS["torch"].format(use="1/0")}, True, "library (ZeroDivisionError"),
        slow(
            {"transformers": "raise RuntimeError('operator torchvision::nms\\ndoes not exist')"},
            True,
            "(RuntimeError: operator torchvision::nms does not exist)",
        ),
        slow({"transformers": "x = 1"}, True, "cannot import the target library (AttributeError"),
        slow(
            {"transformers": STUBS["transformers"].format(use="import lazy")}, True, "KeyError: 1"
        ),
        (
            {"transformers": STUBS["transformers"].format(use="raise ValueError('a size')")},
            False,
            "could not use the folder (ValueError: a size)",
        ),
    ],
)
def test_library_tells_broken_environments_from_broken_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], missing: bool, told: str
) -> None:
    sound = {"torch": STUBS["torch"].format(use="pass"), "lazy": "raise KeyError(1)"}
    for name, text in {**sound, **files}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    request = {"to": "transformers", "architecture": "ViTModel", "packages": [], "normalise": False}
    job = Job(tmp_path, request, {"image": np.zeros((1, 8, 8, 3), np.uint8)})
    (answer,) = ask([job], sys.executable)
    assert (answer.missing, told in answer.problem) == (missing, True), answer.problem


@pytest.mark.slow
def test_export_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(model_of("ViT", tmp_path)[1], tmp_path / "run")
    run, out = f"--run={tmp_path / 'run'}", tmp_path / "out"
    for flags, told in (
        ([run], "--to is missing"),
        (["see", str(out)], "Unknown action 'see'. Use one of: big-retrieval export verify."),
        (["verify", str(tmp_path)], "has no certificate.json"),
        ([run, "--to=open_clip", f"--out={out}"], "--to=transformers or torch or onnx can."),
        ([run, "--to=transformers", f"--out={tmp_path / 'hf_vit'}"], "is not empty"),
    ):
        done = in_process("export", *flags)
        assert done.returncode == 2
        assert told in done.stderr
    good, bad, no = (python_that(tmp_path, each) for each in ("0.0", "1e-4", "np.nan"))
    flags = [run, "--to=transformers", f"--out={out}", "--license=apache-2.0"]
    monkeypatch.chdir(tmp_path)
    done = in_process("export", *flags, f"--python=./{good.name}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "image: transformers differs by at most 0.0e+00" in done.stdout
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\nlicense: apache-2.0\n")
    assert "ViTModel.from_pretrained" in card
    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["status"] == VERIFIED
    assert certificate["versions"]["theirs"]["library"] == "1.0"
    params = big_retrieval.load(tmp_path / "run").weights
    assert certificate["run"]["params_sha256"] == params_sha256(params)
    done = in_process("export", "verify", str(out), f"--python={bad}")
    assert done.returncode == 2
    assert "differ by 0.0001 (1e-05 is allowed)" in done.stderr
    failed = json.loads((out / "certificate.json").read_text())
    assert (failed["status"], failed["reason"] in done.stderr) == (FAILED, True)
    with pytest.raises(UserError, match=r"field document cannot be compared"):
        verify(out, python=str(no))
    assert in_process("export", "verify", str(out), f"--python={good}").returncode == 0
    with pytest.raises(UserError, match=r"Cannot start --python=/nowhere"):
        verify(out, python="/nowhere")
    with pytest.raises(UserError, match=r"Not verified: .*/bin/false ended with status 1"):
        verify(out, python="/bin/false")
    (out / "model.safetensors").write_bytes(b"others")
    with pytest.raises(UserError, match=r"model.safetensors is not the exported file"):
        verify(out, python=str(good))
    (out / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks model.safetensors"):
        verify(out, python=str(good))
    for damaged in ("{}", json.dumps({**certificate, "fields": [1]})):
        (out / "certificate.json").write_text(damaged)
        with pytest.raises(UserError, match=r"Damaged certificate"):
            verify(out, python=str(good))


@pytest.mark.parametrize("kind", ["word pieces", "byte pairs"])
def test_exported_tokenizer_gives_the_same_ids(kind: str, tmp_path: Path) -> None:
    """Texts are cleaned first, which tokenizers of transformers do not do."""
    import transformers

    given = texts = [*TEXTS, "two [SEP] dogs"]
    if kind == "word pieces":
        tokenizer = wordpiece_tokenizer(learn_wordpiece(TEXTS, 400))
        titled, _ = tokenizer.encode(["dogs"], 20, ["two"])
        assert np.array_equal(tokenizer.encode(given[-1:], 20)[0], titled)
    else:
        tokenizer, texts = clip_words(), [clip_text(text) for text in given]
    model = dataclasses.replace(model_of("BERT", tmp_path)[1], tokenizer=tokenizer)
    write_tokenizer(take_apart(model), tmp_path, 20)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    found = theirs(texts, truncation=True, padding="max_length")
    ids, mask = tokenizer.encode(given, 20)
    for text, row, used, other in zip(given, ids, mask, found["input_ids"], strict=True):
        assert other[: used.sum()] == row[used].tolist(), repr(text)
    assert np.array_equal(found["attention_mask"], mask)


SIZES = [(24, 24), (40, 50), (51, 40), (100, 33), (17, 20)]  # margins that both halve alike


@pytest.mark.parametrize("resize", [0, 32])
def test_exported_preprocessor_prepares_images_alike(resize: int, tmp_path: Path) -> None:
    """If a margin is odd, transformers cuts one pixel earlier than open_clip and big_retrieval."""
    import transformers

    field = ImageField(size=24, eval_resize=resize)
    write_preprocessor(field, tmp_path)
    processor: Any = transformers.AutoImageProcessor.from_pretrained(str(tmp_path))
    for rows, columns in SIZES:
        image = noise(rows, columns, 3)
        found = np.asarray(processor(image, return_tensors="np")["pixel_values"][0])
        view = evaluation_view(image, field.size, short=resize)
        ours = np.asarray(field.normalised(view[None]))[0].transpose(2, 0, 1)
        difference = np.abs(found - ours) * np.asarray(field.std)[:, None, None]
        assert difference.max() < 1e-3 / 255, (rows, columns)
