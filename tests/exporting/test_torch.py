"""The target `torch` without PyTorch: its folder, the module's source, imports of it.

tests/interop/export_all.py compares the values that the module computes.
"""

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from big_retrieval import config
from big_retrieval.data.images.transforms import evaluation_view
from big_retrieval.data.in_memory import read_image
from big_retrieval.data.text.tokenizer import CLEANERS
from big_retrieval.errors import UserError
from big_retrieval.exporting.certificate import (
    STORED,
    UNVERIFIED,
    VERIFIED,
    at_gate,
    difference_of,
)
from big_retrieval.exporting.export import export, verify, write_export
from big_retrieval.exporting.parts import take_apart
from big_retrieval.exporting.pytorch import images
from big_retrieval.exporting.pytorch.tokens import Tokenizer
from big_retrieval.exporting.torch_forms import TorchContext, TorchForm, torch_form
from big_retrieval.exporting.torch_module import members_of, source_of
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.inference.load import TrainedModel
from big_retrieval.interop.model import import_model
from big_retrieval.interop.read import CERTIFICATE
from big_retrieval.interop.torch_weights import CONFIG, WEIGHTS, from_torch, to_torch
from tests.exporting.test_configs import pieces, random_model, words
from tests.exporting.test_export import model_of, other, python_that
from tests.helpers import noise
from tests.interop.hard_texts import TEXTS as HARD
from tests.interop.test_clip_tokenizer import small as clip_words


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainedModel]:
    """A model with two fields, titles, gates and a logit scale, and its export."""
    model = random_model("scenes_vdr")
    titled: Any = dataclasses.replace(model.config.fields["text"], title="title")  # type: ignore
    fields = {**model.config.fields, "text": titled}
    model = dataclasses.replace(model, config=dataclasses.replace(model.config, fields=fields))
    scale = {"main": {"logit_scale": np.float32(1.25).reshape(())}}
    model = dataclasses.replace(model, weights={**model.weights, "scalars": scale})
    out = tmp_path_factory.mktemp("exports") / "out"
    write_export(model, to="torch", out=out)
    return out, model


def test_import_of_torch_export_is_the_same_model(exported: tuple[Path, TrainedModel]) -> None:
    out, model = exported
    again = import_model(str(out), batch_size=16)
    assert again.config == model.config
    assert again.tokenizer.to_json() == model.tokenizer.to_json()
    assert params_sha256(again.weights) == params_sha256(
        {name: part for name, part in model.weights.items() if part}
    )
    with np.load(out / STORED) as file:
        texts, ours = file["inputs/text"].tolist(), file["embeddings/text"]
    np.testing.assert_array_equal(again.encode_texts(texts).toarray(), ours)


@pytest.mark.parametrize("planted", [False, True])
def test_verify_runs_only_trusted_code(
    exported: tuple[Path, TrainedModel], planted: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(exported[0], folder)
    name = "model.py"
    if planted:  # older versions of sentence-transformers run what modules.json names
        name = (folder / name).rename(folder / "pooling.py").name
        certificate = json.loads((folder / CERTIFICATE).read_text())
        del certificate["files"]["model.py"]
        certificate["to"] = certificate["request"]["to"] = "sentence-transformers"
        (folder / CERTIFICATE).write_text(json.dumps(certificate))
    python = str(python_that(tmp_path, "0.0"))
    with pytest.raises(UserError, match=rf"runs {name} of .*If you know where .*--trust-code"):
        verify(folder, python=python)
    assert json.loads((folder / CERTIFICATE).read_text())["status"] == UNVERIFIED
    assert verify(folder, python=python, trust_code=True).status == VERIFIED


def test_module_has_only_the_used_files(exported: tuple[Path, TrainedModel]) -> None:
    source = (exported[0] / "model.py").read_text()
    compile(source, "model.py", "exec")
    assert "big_retrieval." not in source.partition('"""\n')[2]
    assert "class VisionTransformer" in source
    assert "class RecurrentText" not in source


def test_export_of_one_field_has_only_its_modules(
    exported: tuple[Path, TrainedModel], tmp_path: Path
) -> None:
    whole, model = exported
    out = tmp_path / "out"
    write_export(model, to="torch", out=out, fields=("image",))
    modules = {name.split(".")[0] for name in load_file(out / WEIGHTS)}
    assert modules == {"image", "image_head", "scalars"}
    again = import_model(str(out), batch_size=16)
    assert list(again.config.encoded) == ["image"]
    with np.load(whole / STORED) as file:
        pixels, ours = file["inputs/image"], file["embeddings/image"]
    np.testing.assert_array_equal(again.encode_images(list(pixels)).toarray(), ours)


def test_from_torch_inverts_to_torch() -> None:
    rng = np.random.default_rng(0)
    shapes = {
        "image/layers_3/mlp/fc1/kernel": ((2, 3), "image.layers.3.mlp.fc1.weight", (3, 2)),
        "image/layer1_0/conv1/kernel": ((7, 5, 2, 3), "image.layer1.0.conv1.weight", (3, 2, 7, 5)),
        "text/forward/input_kernel": ((2, 6), "text.gru_forward.weight_ih_l0", (6, 2)),
        "image/ln_1/scale": ((4,), "image.ln_1.weight", (4,)),
        "batch_stats/image/bn1/var": ((4,), "image.bn1.running_var", (4,)),
        "text/position_embedding": ((4, 2), "text.position_embedding", (4, 2)),
        "scalars/main/logit_scale": ((), "scalars.main.logit_scale", ()),
    }
    ours = {path: np.float32(rng.normal(size=shape)) for path, (shape, _, _) in shapes.items()}
    theirs = to_torch(ours)
    assert {name: x.shape for name, x in theirs.items()} == {
        name: shape for _, name, shape in shapes.values()
    }
    again = from_torch({**theirs, "text_head.rows": np.arange(3)})
    assert again.keys() == ours.keys()
    assert all(np.array_equal(again[path], x) for path, x in ours.items())


def test_import_rejects_other_weights(exported: tuple[Path, TrainedModel], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(exported[0], out)
    arrays = load_file(out / WEIGHTS)
    save_file({**arrays, "scalars.main.logit_scale": np.zeros((), np.float32)}, out / WEIGHTS)
    with pytest.raises(UserError, match=r"model.safetensors differs from the exported parameters"):
        import_model(str(out))
    with pytest.raises(UserError, match=r"Remove tokenizer, pool and head"):
        import_model(str(out), pool="mean")
    (out / CONFIG).write_text('{"config": {"towers": 1}, "params_sha256": ""}')
    with pytest.raises(UserError, match=r"differs from the exported"):
        import_model(str(out))
    for name in (WEIGHTS, CERTIFICATE):  # as of the target onnx
        (out / name).unlink()
    with pytest.raises(UserError, match=r"exports for onnx"):
        import_model(str(out))


def test_import_reads_sentence_transformers_export_saved_again(tmp_path: Path) -> None:
    model, out = random_model("scenes_vdr"), tmp_path / "out"
    write_export(model, to="sentence-transformers", out=out, fields=("text",))
    ours: Any = model.encode_texts(HARD)
    saved = json.loads((out / CONFIG).read_text())
    for content in (saved, {"config": saved["config"]}):
        (out / CONFIG).write_text(json.dumps(content))
        found: Any = import_model(str(out), batch_size=16).encode_texts(HARD)
        assert (found.toarray() == ours.toarray()).all()


def test_user_defined_towers_need_a_torch_form(
    exported: tuple[Path, TrainedModel], tmp_path: Path
) -> None:
    file = tmp_path / "mine_in_torch.py"
    file.write_text(
        "from big_retrieval.exporting.pytorch.text import TextTransformer\n\n\n"
        "class MyEncoder(TextTransformer):\n"
        '    """Mine."""\n\n'
        "    def __init__(self, **keywords: int) -> None:\n"
        "        super().__init__(**keywords)\n"
    )

    @dataclass(frozen=True)
    class Mine(config.Bert):
        type: Literal["mine"] = "mine"  # type: ignore

        def build(self, vocab_size: int, fields: Any, **module: Any) -> Any:
            return super().build(vocab_size, fields, **module)

    class WithForm(Mine):
        pass

    @torch_form.register
    def _(tower: WithForm, context: TorchContext) -> TorchForm:
        inherited = torch_form.dispatch(config.Bert)(tower, context)
        return dataclasses.replace(inherited, name="MyEncoder", file=str(file))

    def with_tower(kind: type[Mine]) -> TrainedModel:
        old: Any = exported[1].config.towers["text"]
        keys = {key.name: getattr(old, key.name) for key in dataclasses.fields(old)}
        tower: Any = kind(**{**keys, "type": "mine"})
        whole = dataclasses.replace(
            exported[1].config, towers={**exported[1].config.towers, "text": tower}
        )
        return dataclasses.replace(exported[1], config=whole)

    told = r"cannot hold config.towers.text of the type 'mine' \(.*torch_form.*--field=image --to="
    with pytest.raises(UserError, match=told):
        export(with_tower(Mine), to="torch", out=tmp_path / "out")
    source = source_of(take_apart(with_tower(WithForm), apart=True))
    assert "class MyEncoder(TextTransformer):" in source
    assert "self.text = MyEncoder(\n            vocab_size=" in source


def test_field_may_have_the_name_of_a_tower_of_an_earlier_field(tmp_path: Path) -> None:
    model = model_of("BERT", tmp_path)[1]
    fields = dict(reversed(model.config.fields.items()))
    parts = take_apart(other(model, fields=fields), apart=True)
    names = [member.name for member in members_of(parts)]
    assert names == ["text", "document_head", "document", "text_head", "text", "topology"]


@pytest.mark.parametrize("resize", [0, 32])
def test_module_prepares_images_as_evaluations_do(resize: int, tmp_path: Path) -> None:
    sizes = [(24, 24), (40, 50), (51, 40), (100, 33), (17, 20)]
    other: dict[str, Any]
    given: list[Any] = [noise(rows, columns, 3) for rows, columns in sizes]
    turned = Image.fromarray(given[1])
    turned.getexif()[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=turned.getexif())
    clear = np.concatenate([given[2], given[2][:, :, :1]], axis=-1)
    Image.fromarray(clear).save(tmp_path / "clear.png")
    Image.fromarray((given[2][:, :, 0] * 257.0).astype(np.uint16)).save(tmp_path / "deep.png")
    given += [given[2][:, :, 0], clear, *sorted(tmp_path.glob("*.png"))]
    for image in given:
        value = read_image(image) if isinstance(image, Path) else image
        ours = evaluation_view(value, 24, short=resize)
        np.testing.assert_array_equal(images.read_image(image, 24, resize), ours)
        other = {"squash": True, "interpolation": "bilinear", "margin": "down"}
        ours = evaluation_view(value, 24, short=resize and 31, **other)
        np.testing.assert_array_equal(images.read_image(image, 24, resize and 31, **other), ours)


@pytest.mark.parametrize("kind", ["pieces", "words", "byte pairs"])
def test_module_tokenizes_as_the_run_does(kind: str, tmp_path: Path) -> None:
    tokenizer = {"pieces": pieces, "words": words, "byte pairs": clip_words}[kind]()
    tokenizer.save(tmp_path / "tokenizer.json")
    clean: Any = CLEANERS.get(tokenizer.clean, str)
    other = Tokenizer(tmp_path / "tokenizer.json", **tokenizer.frame(), clean=clean)
    texts = [*HARD, "two [SEP] dogs", "\ud800 broken"]
    ids, mask = other(texts, length=20, fill=True)
    ours = tokenizer.encode(texts, 20)
    np.testing.assert_array_equal(ids, ours[0])
    np.testing.assert_array_equal(mask, ours[1])
    if tokenizer.frame()["between"]:
        titles = ["title" if number % 2 else "" for number in range(len(texts))]
        prefixed = [title and f"x: {title}" for title in titles]
        bodies = [x if title else f"x: {x}" for x, title in zip(texts, titles, strict=True)]
        ids, mask = other(texts, titles, length=20, prefix="x: ", fill=True)
        np.testing.assert_array_equal(ids, tokenizer.encode(bodies, 20, prefixed)[0])


def test_at_gate_accepts_terms_that_rounding_exchanges() -> None:
    ours = np.array([[0.0, 3.0, 2.0, 1.0, 0.0], [5.0, 0.0, 4.0, 0.0, 0.0]], np.float32)
    other = ours + np.float32(1e-7) * (ours > 0)
    other[0, 2], other[0, 4] = 0.0, 2.0  # another of two equal terms
    assert difference_of(ours, other) == pytest.approx(0.4)  # by the largest value
    found = difference_of(*at_gate(ours, other, 2))
    assert found is not None
    assert found < 1e-6
    other[1, 3], other[1, 2] = 4.5, 0.0  # stronger than the kept terms
    assert difference_of(*at_gate(ours, other, 2)) == pytest.approx(0.1)
