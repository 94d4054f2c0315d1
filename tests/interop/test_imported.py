"""`config.init`: towers that start from other models, resized and extended on purpose."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.config.checks import check
from big_retrieval.errors import UserError
from big_retrieval.exporting.export import write
from big_retrieval.inference.load import load
from big_retrieval.interop import fit
from big_retrieval.interop.initial_weights import InitialWeights, read_initial_weights
from big_retrieval.interop.model import import_model
from big_retrieval.interop.read import read
from big_retrieval.losses.objective import make_objective
from big_retrieval.models.towers import make_model
from big_retrieval.train.logging import Metrics, read_rows
from big_retrieval.train.loop import train
from big_retrieval.train.optimizer import names_of
from big_retrieval.train.resume import open_run_folder
from big_retrieval.train.run import TrainingRun, set_up
from big_retrieval.train.state import abstract_variables
from tests.helpers import losses, raw_config, results
from tests.interop.test_towers import nested

pytestmark = pytest.mark.usefixtures("one_model")

DATA = Path(__file__).parent / "data"
CLIP = str(DATA / "open_clip")
ONE = jax.devices()[:1]
WORDS = 40  # of the models in data/


def clip_config(
    m: int = 1, size: int = 24, length: int = 6, as_one: bool = True, **changes: Any
) -> Config:
    """A tiny config whose towers are those of data/open_clip, with M class tokens."""
    c = raw_config(**changes)
    more = {"class_tokens": m, "tokens_as_one": as_one}
    c.towers.image = recipe.entry(
        configs.ViT(), patch=8, width=32, depth=2, heads=4, mlp=48, **more
    )
    text = {"width": 32, "depth": 2, "heads": 4, "mlp": 128, **more}
    c.towers.text = recipe.entry(
        configs.Bert(), norm="pre", causal=True, pool="last", vocab_size=WORDS, **text
    )
    c.fields.image.update(size=size, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    c.fields.text.length, c.tokenizer.vocab_size = length, WORDS
    for field in c.fields.values():
        field.head.dim = 20
    c.topology, c.losses.main.logit_scale.max = "oblique" if m > 1 else "sphere", None
    if "init" not in changes:
        c.init.model = recipe.entry(configs.Init(), path=CLIP)
    return configs.load(c)


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    import flax.linen as nn

    params = nn.unbox(abstract_variables(make_model(config, WORDS), make_objective(config))[0])
    return {name: x.shape for name, x in names_of(params).items()}


def start(config: Config) -> InitialWeights:
    check(config)
    return read_initial_weights(config, shapes(config), {})


def encode(config: Config, params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Embeddings of the inputs in data/open_clip/expected.npz."""
    tree = nested(params)
    tree.pop("scalars")
    with np.load(DATA / "open_clip" / "expected.npz") as file:
        ids, mask = file["ids"], file["mask"].astype(bool)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 24, 24, 3), dtype=np.uint8)
    inputs = {"image": {"pixels": pixels}, "text": {"ids": ids, "mask": mask}}
    found: Any = make_model(config, WORDS).apply({"params": tree}, inputs)
    return {name: np.asarray(x) for name, x in found.embeddings.items()}


def test_all_of_a_model() -> None:
    config = clip_config()
    found = start(config)
    assert set(found.params) == set(shapes(config))
    source = read(CLIP)
    for name, part in source.parts.items():
        for path, array in part.params.items():
            np.testing.assert_array_equal(found.params[f"{name}/{path}"], array)
        np.testing.assert_array_equal(found.params[f"{name}_head/kernel"], part.head["kernel"])
    assert float(found.params["scalars/main/logit_scale"]) == pytest.approx(
        float(source.logit_scale)
    )  # type: ignore
    assert any("open_clip's vision transformer" in note for note in found.notes)


@pytest.mark.parametrize(("m", "spheres"), [(4, None), (1, 4)])
def test_logit_scale_is_divided_by_sub_spheres(m: int, spheres: int | None) -> None:
    config = clip_config(m)
    heads: dict[str, Any] = {}
    for name, field in config.fields.items():
        part: Any = field
        head = dataclasses.replace(part.head, dim=20, spheres=spheres)
        heads[name] = dataclasses.replace(part, head=head)
    config = dataclasses.replace(config, fields=heads, topology="oblique")
    assert config.spheres() == 4
    found = start(config)
    expected = float(read(CLIP).logit_scale) - np.log(4)  # type: ignore
    assert float(found.params["scalars/main/logit_scale"]) == pytest.approx(expected)
    assert any("divided by 4" in note for note in found.notes)


@pytest.mark.slow
def test_sixteen_class_tokens_begin_near_the_model() -> None:
    one, many = clip_config(), clip_config(16)
    a, b = start(one), start(many)
    before, after = encode(one, a.params), encode(many, b.params)
    expected = before["image"][:, 0] @ before["text"][:, 0].T
    found = np.einsum("imn,tmn->it", after["image"], after["text"])
    scale = {
        k: np.exp(float(x.params["scalars/main/logit_scale"])) for k, x in {"a": a, "b": b}.items()
    }
    np.testing.assert_allclose(found * scale["b"], expected * scale["a"], atol=0.03 * scale["a"])
    tokens = after["image"]
    assert np.abs(tokens[:, 0] - tokens[:, 1]).max() > 1e-4  # equal ones would stay equal
    assert np.linalg.norm(tokens, axis=-1) == pytest.approx(1.0, abs=1e-5)
    assert any("copied to 16" in note for note in b.notes)
    assert any("divided by 16" in note for note in b.notes)


@pytest.mark.slow
def test_sixteen_class_tokens_train_from_a_loss_near_the_models(tmp_path: Path) -> None:
    for name, m in (("one", 1), ("many", 16)):
        train(clip_config(m, total_steps=3), tmp_path / name, ONE)
    one, many = losses(tmp_path / "one"), losses(tmp_path / "many")
    assert np.isfinite(list(many.values())).all()
    assert many[1] == pytest.approx(one[1], abs=0.02 * one[1])


def test_positions_are_resized_and_texts_extended_or_cut() -> None:
    bigger = start(clip_config(size=32, length=9))
    assert bigger.params["image/position_embedding"].shape == (1 + 16, 32)
    assert bigger.params["text/position_embedding"].shape == (9, 32)
    assert any("3 x 3 patches resized to 4 x 4" in note for note in bigger.notes)
    assert any("6 positions extended to 9" in note for note in bigger.notes)
    old = read(CLIP).parts["text"].params["position_embedding"]
    np.testing.assert_array_equal(bigger.params["text/position_embedding"][:6], old)
    shorter = start(clip_config(length=4))
    np.testing.assert_array_equal(shorter.params["text/position_embedding"], old[:4])
    assert any("6 positions cut to 4" in note for note in shorter.notes)


def test_resizing_keeps_constants_and_ramps() -> None:
    ramp = np.repeat(np.arange(8.0, dtype=np.float32), 8)[:, None]  # [64, 1], by row
    found = fit.resize_grid(ramp, 8, 16).reshape(16, 16)
    np.testing.assert_allclose(found, found[:, :1].repeat(16, 1), atol=1e-5)
    np.testing.assert_allclose(found[4:12, 0], np.arange(4, 12) / 2 - 0.25, atol=1e-4)
    same = fit.resize_grid(np.full((9, 5), 3, np.float32), 3, 7)
    np.testing.assert_allclose(same, np.full((49, 5), 3), atol=1e-5)


def towers(config: Config, **init: configs.Init) -> Config:
    return dataclasses.replace(config, init=init)


def test_one_tower_only_and_a_head_anew() -> None:
    config = towers(clip_config(), image=configs.Init(path=CLIP, head=False))
    found = start(config)
    assert {name.split("/")[0] for name in found.params} == {"image"}
    assert "image_head/kernel starts anew" in found.notes


def test_parameters_that_may_be_missing() -> None:
    config = clip_config()
    bert = dataclasses.replace(
        read(str(DATA / "bert")).parts["text"].tower, final_norm=True, vocab_size=None
    )
    config = dataclasses.replace(config, towers={**config.towers, "text": bert})
    init = configs.Init(path=str(DATA / "bert"))
    with pytest.raises(UserError, match=r"config.towers.text.*--config.towers.text.final_norm=Fal"):
        start(towers(config, text=init))
    allowed = dataclasses.replace(init, fresh=("ln_final/*",))
    found = start(towers(config, text=allowed))
    assert "text: ln_final/bias, ln_final/scale start anew" in found.notes


def test_the_first_layers_of_more() -> None:
    """As TERN takes six of BERT's twelve."""
    config, path = clip_config(), str(DATA / "bert")
    whole = read(path).parts["text"]
    bert = dataclasses.replace(whole.tower, depth=1, vocab_size=None)
    config = dataclasses.replace(config, towers={**config.towers, "text": bert})
    with pytest.raises(UserError, match=r"depth=2, or --config.init.text.first_layers=True for it"):
        start(towers(config, text=configs.Init(path=path)))
    found = start(towers(config, text=configs.Init(path=path, first_layers=True)))
    assert "text: the first 1 of 2 layers" in found.notes
    assert any("layers_0" in name for name in found.params)
    assert not any("layers_1" in name for name in found.params)
    first = "layers_0/mlp/fc1/kernel"
    np.testing.assert_array_equal(found.params[f"text/{first}"], whole.params[first])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"width": 64},
            "config.towers.image.*it has width 64. Give --config.towers.image.width=32",
        ),
        ({"depth": 3, "heads": 2}, "depth 3, heads 2. Give --config.towers.image.depth=2"),
        ({"activation": "quick_gelu"}, "activation quick_gelu. Give .*activation=gelu"),
        ({"patch": 4}, "patch 4. Give --config.towers.image.patch=8"),
    ],
)
def test_another_architecture(changes: dict[str, Any], words: str) -> None:
    config = clip_config()
    tower = dataclasses.replace(config.towers["image"], **changes)
    config = dataclasses.replace(config, towers={**config.towers, "image": tower})
    with pytest.raises(UserError, match=words):
        read_initial_weights(config, shapes(config), {})


def test_what_does_not_fit_is_named() -> None:
    config = clip_config()
    for init, words in {
        configs.Init(path=str(DATA / "bert")): "has 0 towers of the type 'vit'.*text .BERT",
        configs.Init(path=CLIP, tower="speech"): "tower is 'speech', but .* has image, text",
        configs.Init(path=CLIP, tower="text"): "type is 'vit', but .*text transformer",
        configs.Init(path="nowhere.safetensors"): "there is no file or folder",
    }.items():
        with pytest.raises(UserError, match=words):
            start(towers(config, image=init))
    with pytest.raises(UserError, match=r"config.init.speech is no tower"):
        check(towers(config, speech=configs.Init(path=CLIP)))
    with pytest.raises(UserError, match=r"config.init.image.path is empty"):
        check(towers(config, image=configs.Init()))


def test_another_vocabulary() -> None:
    config = clip_config()
    text = dataclasses.replace(config.towers["text"], vocab_size=50)
    config = dataclasses.replace(config, towers={**config.towers, "text": text})
    with pytest.raises(UserError, match=r"40 words.*50.*tokenizer"):
        start(config)


def test_another_preprocessing() -> None:
    config = clip_config()
    image = dataclasses.replace(config.fields["image"], mean=(0.1, 0.1, 0.1))
    config = dataclasses.replace(config, fields={**config.fields, "image": image})
    with pytest.raises(UserError, match=r"config.fields.image.mean.*\(0.5, 0.4, 0.3\)"):
        start(config)


def test_another_projection() -> None:
    c = clip_config()
    fields = {
        name: dataclasses.replace(field, head=configs.Projection(dim=24))
        for name, field in c.fields.items()
    }
    with pytest.raises(UserError, match=r"head.dim is 24, but the projection of .* has 20"):
        start(dataclasses.replace(c, fields=fields))


@pytest.mark.slow
def test_training_starts_there_and_resumes_without_the_file(tmp_path: Path) -> None:
    place = shutil.copytree(CLIP, tmp_path / "clip")
    init = {"model": recipe.entry(configs.Init(), path=str(place))}
    config = clip_config(
        init=init, total_steps=4, checkpoint_every=2, stop_after=2, optimizer__lr=1e-30
    )
    train(config, tmp_path / "run")
    shutil.rmtree(place)
    train(dataclasses.replace(config, stop_after=None), tmp_path / "run")
    assert results(tmp_path / "run")["resumed_from"] == 2
    assert len(losses(tmp_path / "run")) == 4
    assert np.isfinite(list(losses(tmp_path / "run").values())).all()
    model = load(tmp_path / "run")
    weights = names_of(model.weights)
    for path, array in read(CLIP).parts["image"].params.items():
        np.testing.assert_allclose(weights[f"image/{path}"], array, atol=1e-6)


def mpnet(**changes: Any) -> Config:
    """A small MPNet as the text tower, which starts from data/mpnet."""
    c = raw_config(optimizer__lr=1e-3, **changes)
    part: Any = read(str(DATA / "mpnet")).parts["text"].tower
    keys = {each.name: getattr(part, each.name) for each in dataclasses.fields(part)}
    keys.pop("type")
    c.towers.text = recipe.entry(configs.Bert(), **keys)
    c.towers.image.class_tokens, c.topology = 1, "sphere"
    c.init.text = recipe.entry(configs.Init(), path=str(DATA / "mpnet"))
    c.tokenizer.vocab_size = part.vocab_size
    return configs.load(c)


@pytest.mark.slow
def test_mpnet_trains_sharded_resumes_and_is_exported(tmp_path: Path) -> None:
    devices = jax.devices()[:2]
    steps: dict[str, Any] = {"total_steps": 4, "checkpoint_every": 2}
    train(mpnet(**steps, mesh__data=2), tmp_path / "whole", devices)
    sharded = {**steps, "mesh__data": 1, "mesh__tensor": 2}
    train(mpnet(**sharded, stop_after=2), tmp_path / "run", devices)
    train(mpnet(**sharded), tmp_path / "run", devices)
    assert results(tmp_path / "run")["resumed_from"] == 2
    whole = list(losses(tmp_path / "whole").values())
    np.testing.assert_allclose(list(losses(tmp_path / "run").values()), whole, rtol=1e-4)
    model = load(tmp_path / "run")
    start = read(str(DATA / "mpnet")).parts["text"].params["relative_bias"]
    assert np.abs(model.weights["text"]["relative_bias"] - start).max() > 1e-4
    write(model, to="torch", out=tmp_path / "out")
    again = import_model(str(tmp_path / "out"))
    texts = ["a red square", "left of it"]
    np.testing.assert_array_equal(again.encode_texts(texts), model.encode_texts(texts))


RECALL = "retrieval/test/text_to_image/R@1"


def evaluated(**changes: Any) -> Config:
    data = recipe.entry(configs.Scenes(split="test"), size=24, count=16)
    evals = {"test": recipe.entry(configs.Retrieval(), data=data, every=2)}
    steps = {"total_steps": 4, "checkpoint_every": 2, "best_metric": RECALL, "optimizer__lr": 1e-30}
    return clip_config(evals=evals, **steps, **changes)


def evaluations(workdir: Path) -> list[dict[str, Any]]:
    return [row for row in read_rows(workdir / "metrics.jsonl") if RECALL in row]


def test_step_0_is_evaluated_before_the_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        mock.patch.object(TrainingRun, "batches", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        train(evaluated(), tmp_path, ONE)
    (row,) = evaluations(tmp_path)
    assert row["step"] == 0
    assert f"queries are few: text_to_image/R@1 {row[RECALL]:.3f} is from " in caplog.text
    open_run_folder(tmp_path, evaluated(seed=1))  # nothing was trained yet
    assert Metrics(tmp_path, restored_step=None).last == {}  # and step 0 is evaluated again


@pytest.mark.slow
def test_step_0_is_evaluated_once_and_is_never_the_best(tmp_path: Path) -> None:
    config = evaluated(stop_after=2)
    train(config, tmp_path, ONE)
    train(dataclasses.replace(config, stop_after=None), tmp_path, ONE)
    rows = evaluations(tmp_path)
    assert [row["step"] for row in rows] == [0, 2, 4]
    assert rows[0][RECALL] == rows[1][RECALL]  # the rate is next to 0
    run = set_up(dataclasses.replace(config, stop_after=None), tmp_path, ONE)
    assert run.checkpoints.best() == 4


@pytest.mark.slow
def test_own_runs_are_sources_whole_or_by_tower(tmp_path: Path) -> None:
    train(clip_config(init={}, total_steps=2), tmp_path / "run", ONE)
    weights = {k: np.asarray(x) for k, x in names_of(load(tmp_path / "run").weights).items()}
    whole = start(towers(clip_config(), model=configs.Init(path=str(tmp_path / "run"))))
    assert set(whole.params) == set(weights)
    for path, array in weights.items():
        np.testing.assert_array_equal(whole.params[path], array)
    one = start(towers(clip_config(), text=configs.Init(path=str(tmp_path / "run"))))
    assert {path.split("/")[0] for path in one.params} == {"text", "text_head"}
