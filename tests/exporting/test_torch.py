"""The target `torch` as far as it needs no PyTorch: its folder, the module's source, imports of it.

tests/interop/export_all.py compares what the module computes.
"""

import dataclasses
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from big_retrieval import config
from big_retrieval.config.towers import Tower
from big_retrieval.errors import UserError
from big_retrieval.exporting.certificate import STORED
from big_retrieval.exporting.export import export, write
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.inference.load import TrainedModel
from big_retrieval.interop.model import import_model
from big_retrieval.interop.torch_weights import CONFIG, WEIGHTS, to_ours, to_torch
from tests.exporting.test_configs import random_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainedModel]:
    """A model with two fields, gates and a logit scale, and its export."""
    model = random_model("scenes_vdr")
    scale = {"main": {"logit_scale": np.float32(1.25).reshape(())}}
    model = dataclasses.replace(model, weights={**model.weights, "scalars": scale})
    out = tmp_path_factory.mktemp("exports") / "out"
    write(model, to="torch", out=out)
    return out, model


def test_an_import_of_an_export_is_the_same_model(exported: tuple[Path, TrainedModel]) -> None:
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


def test_the_module_is_as_ruff_wants_it(exported: tuple[Path, TrainedModel]) -> None:
    ruff = [sys.executable, "-m", "ruff"]
    how = [f"--config={ROOT / 'pyproject.toml'}", str(exported[0] / "model.py")]
    for words in (["check", "--quiet"], ["format", "--diff"]):
        done = subprocess.run([*ruff, *words, *how], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    source = (exported[0] / "model.py").read_text()
    assert "big_retrieval." not in source.partition('"""\n')[2]
    assert "class EuclideanDistance" not in source  # nothing that the model does not need


def test_one_field_is_exported_and_imported(tmp_path: Path) -> None:
    model = random_model("dpr_msmarco")
    out = tmp_path / "out"
    write(model, to="torch", out=out, fields=("passage",))
    assert {name.split(".")[0] for name in load_file(out / WEIGHTS)} == {"passage"}
    again = import_model(str(out), batch_size=16)
    assert list(again.config.encoded) == ["passage"]
    texts = ["a red circle", "blue"]
    np.testing.assert_array_equal(
        again.encode_texts(texts, "passage"), model.encode_texts(texts, "passage")
    )


def test_names_and_layouts_return() -> None:
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
    again = to_ours({**theirs, "text_head.rows": np.arange(3)})  # whole numbers are no parameters
    assert again.keys() == ours.keys()
    assert all(np.array_equal(again[path], x) for path, x in ours.items())


def test_other_weights_are_refused(exported: tuple[Path, TrainedModel], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(exported[0], out)
    arrays = load_file(out / WEIGHTS)
    save_file({**arrays, "scalars.main.logit_scale": np.zeros((), np.float32)}, out / WEIGHTS)
    with pytest.raises(UserError, match=r"model.safetensors are not those that were exported"):
        import_model(str(out))
    with pytest.raises(UserError, match=r"leave tokenizer, pool and head out"):
        import_model(str(out), pool="mean")
    (out / CONFIG).write_text('{"config": {"towers": 1}, "params_sha256": ""}')
    with pytest.raises(UserError, match=r"not those that were exported"):
        import_model(str(out))


def test_a_part_without_a_form_is_named(
    exported: tuple[Path, TrainedModel], tmp_path: Path
) -> None:
    @dataclass(frozen=True)
    class Mine(config.Bert):
        type: Literal["mine"] = "mine"  # type: ignore

        def build(self, vocab_size: int, fields: Any, **module: Any) -> Any:
            return super().build(vocab_size, fields, **module)

    _, model = exported
    old: Any = model.config.towers["text"]
    keys = {key.name: getattr(old, key.name) for key in dataclasses.fields(old)}
    towers: dict[str, Tower] = {**model.config.towers, "text": Mine(**{**keys, "type": "mine"})}
    other = dataclasses.replace(model, config=dataclasses.replace(model.config, towers=towers))
    told = (
        r"cannot hold config.towers.text of the type 'mine' \(which has no method `pytorch`\); "
        r"--field=image --to="
    )
    with pytest.raises(UserError, match=told):
        export(other, to="torch", out=tmp_path / "out")
