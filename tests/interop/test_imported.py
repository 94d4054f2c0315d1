"""`config.init`: towers that start from other models, and their resizing and extension."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import flax.linen as nn
import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.config.checks import check
from big_retrieval.errors import UserError
from big_retrieval.exporting.export import write_export
from big_retrieval.inference.load import load
from big_retrieval.interop import fit
from big_retrieval.interop.initial_weights import InitialWeights, read_initial_weights
from big_retrieval.interop.model import import_model
from big_retrieval.interop.read import read
from big_retrieval.interop.source import CheckpointTower
from big_retrieval.losses.objective import Objective
from big_retrieval.models.towers import make_model
from big_retrieval.train.logging import Metrics, read_rows
from big_retrieval.train.loop import train
from big_retrieval.train.optimizer import names_of
from big_retrieval.train.resume import open_run_folder
from big_retrieval.train.run import TrainingRun, set_up
from big_retrieval.train.state import abstract_variables
from tests.helpers import losses, raw_config, results
from tests.interop.folders import DATA
from tests.interop.test_towers import nested

pytestmark = pytest.mark.usefixtures("one_model")

CLIP = str(DATA / "open_clip")
BERT = str(DATA / "bert")
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
    params = nn.unbox(abstract_variables(make_model(config, WORDS), Objective(config))[0])
    return {name: x.shape for name, x in names_of(params).items()}


def start(config: Config) -> InitialWeights:
    check(config)
    return read_initial_weights(config, shapes(config), {})


def with_init(config: Config, **init: configs.Init) -> Config:
    return dataclasses.replace(config, init=init)


def changed(config: Config, **parts: dict[str, Any]) -> Config:
    """A config with other keys of its towers and fields, such as `text={"vocab_size": 50}`."""
    towers, fields = dict(config.towers), dict(config.fields)
    for name, keys in parts.items():
        of_tower = {key: x for key, x in keys.items() if hasattr(towers[name], key)}
        towers[name] = dataclasses.replace(towers[name], **of_tower)
        rest = {key: x for key, x in keys.items() if key not in of_tower}
        fields[name] = dataclasses.replace(fields[name], **rest)
    return dataclasses.replace(config, towers=towers, fields=fields)


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


def test_init_takes_a_model_with_heads_and_logit_scale() -> None:
    config, source = clip_config(), read(CLIP)
    weights = start(config)
    assert set(weights.params) == set(shapes(config))
    for name, part in source.parts.items():
        for path, array in part.params.items():
            np.testing.assert_array_equal(weights.params[f"{name}/{path}"], array)
        np.testing.assert_array_equal(weights.params[f"{name}_head/kernel"], part.head["kernel"])
    np.testing.assert_allclose(weights.params["scalars/main/logit_scale"], source.logit_scale)
    assert any("open_clip's vision transformer" in note for note in weights.notes)


@pytest.mark.parametrize(("m", "spheres"), [(4, None), (1, 4)])
def test_logit_scale_is_divided_by_sub_spheres(m: int, spheres: int | None) -> None:
    config = clip_config(m)
    head = configs.Projection(dim=20, spheres=spheres)
    config = changed(config, image={"head": head}, text={"head": head})
    config = dataclasses.replace(config, topology="oblique")
    assert config.spheres() == 4
    found = start(config)
    expected = float(read(CLIP).logit_scale) - np.log(4)  # type: ignore
    assert float(found.params["scalars/main/logit_scale"]) == pytest.approx(expected)
    assert any("divided by 4" in note for note in found.notes)


@pytest.mark.slow
def test_init_with_more_class_tokens_begins_near_the_model() -> None:
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


def test_init_resizes_image_positions_and_extends_or_cuts_text_positions() -> None:
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


def test_resize_grid_keeps_constants_and_ramps() -> None:
    ramp = np.repeat(np.arange(8.0, dtype=np.float32), 8)[:, None]  # [64, 1], by row
    found = fit.resize_grid(ramp, 8, 16).reshape(16, 16)
    np.testing.assert_allclose(found, found[:, :1].repeat(16, 1), atol=1e-5)
    np.testing.assert_allclose(found[4:12, 0], np.arange(4, 12) / 2 - 0.25, atol=1e-4)
    same = fit.resize_grid(np.full((9, 5), 3, np.float32), 3, 7)
    np.testing.assert_allclose(same, np.full((49, 5), 3), atol=1e-5)


@pytest.mark.parametrize("saved", [4, 2])
def test_init_keeps_embeddings_of_several_last_tokens(saved: int) -> None:
    config, part = clip_config(4), read(CLIP).parts["text"]
    ends = np.arange(saved * 32, dtype=np.float32).reshape(saved, 32)
    part = dataclasses.replace(
        part,
        tower=dataclasses.replace(part.tower, class_tokens=saved),
        params={**part.params, "end_embedding": ends},
    )
    fitted = fit.fit_tower(config.towers["text"], part, [config.fields["text"]])
    assert fitted.params["end_embedding"].shape == (4, 32)
    np.testing.assert_array_equal(fitted.params["end_embedding"][:saved], ends)
    assert any("copied to 4" in note for note in fitted.notes) == (saved == 2)


def test_init_of_one_tower_may_leave_its_head_random() -> None:
    weights = start(with_init(clip_config(), image=configs.Init(path=CLIP, head=False)))
    assert {name.split("/")[0] for name in weights.params} == {"image"}
    assert "image_head starts randomly" in weights.notes


def bert_config(**keys: Any) -> tuple[Config, CheckpointTower]:
    """A config whose text tower is that of data/bert with other keys, and that tower."""
    config, part = clip_config(), read(BERT).parts["text"]
    tower = dataclasses.replace(part.tower, vocab_size=None, **keys)
    return dataclasses.replace(config, towers={**config.towers, "text": tower}), part


def test_init_fresh_lists_parameters_that_may_be_missing() -> None:
    config, _ = bert_config(final_norm=True)
    init = configs.Init(path=BERT)
    with pytest.raises(UserError, match=r"config.towers.text.*--config.towers.text.final_norm=Fal"):
        start(with_init(config, text=init))
    weights = start(with_init(config, text=dataclasses.replace(init, fresh=("ln_final/*",))))
    assert "text: ln_final/bias, ln_final/scale start randomly" in weights.notes


def test_init_first_layers_takes_the_first_of_more_layers() -> None:
    config, whole = bert_config(depth=1)
    with pytest.raises(UserError, match=r"depth=2.*--config.init.text.first_layers=True"):
        start(with_init(config, text=configs.Init(path=BERT)))
    weights = start(with_init(config, text=configs.Init(path=BERT, first_layers=True)))
    assert "text: the first 1 of 2 layers" in weights.notes
    assert any("layers_0" in name for name in weights.params)
    assert not any("layers_1" in name for name in weights.params)
    first = "layers_0/mlp/fc1/kernel"
    np.testing.assert_array_equal(weights.params[f"text/{first}"], whole.params[first])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"image": {"width": 64}}, "towers.image.*width 64. Give --config.towers.image.width=32"),
        ({"image": {"depth": 3, "heads": 2}}, "depth 3, heads 2. Give .*towers.image.depth=2"),
        ({"image": {"activation": "quick_gelu"}}, "activation quick_gelu. .*activation=gelu"),
        ({"image": {"patch": 4}}, "patch 4. Give --config.towers.image.patch=8"),
        ({"text": {"vocab_size": 50}}, "40 words.*50.*tokenizer"),
        ({"image": {"mean": (0.1, 0.1, 0.1)}}, r"fields.image.mean.*\(0.5, 0.4, 0.3\)"),
        (
            {name: {"head": configs.Projection(dim=24)} for name in ("image", "text")},
            "head.*dim 24. Give --config.fields.image.head.dim=20",
        ),
    ],
)
def test_init_rejects_other_towers_and_fields(parts: dict[str, Any], message: str) -> None:
    config = changed(clip_config(), **parts)
    with pytest.raises(UserError, match=message):
        read_initial_weights(config, shapes(config), {})


@pytest.mark.parametrize(
    ("name", "init", "message"),
    [
        ("image", configs.Init(path=BERT), "has 0 towers of the type 'vit'.*text .BERT"),
        ("image", configs.Init(path=CLIP, tower="speech"), "tower is 'speech', but .* image, text"),
        ("image", configs.Init(path=CLIP, tower="text"), "type is 'vit', but .*text transformer"),
        ("image", configs.Init(path="nowhere.safetensors"), "No such file or folder"),
        ("speech", configs.Init(path=CLIP), "config.init.speech"),
        ("image", configs.Init(), "config.init.image.path is empty"),
    ],
)
def test_init_rejects_other_checkpoints(name: str, init: configs.Init, message: str) -> None:
    with pytest.raises(UserError, match=message):
        start(with_init(clip_config(), **{name: init}))


@pytest.mark.slow
def test_training_starts_from_init_and_resumes_without_the_file(tmp_path: Path) -> None:
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
    write_export(model, to="torch", out=tmp_path / "out")
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
def test_init_reads_runs_whole_or_by_tower(tmp_path: Path) -> None:
    train(clip_config(init={}, total_steps=2), tmp_path / "run", ONE)
    weights = {k: np.asarray(x) for k, x in names_of(load(tmp_path / "run").weights).items()}
    whole = start(with_init(clip_config(), model=configs.Init(path=str(tmp_path / "run"))))
    assert set(whole.params) == set(weights)
    for path, array in weights.items():
        np.testing.assert_array_equal(whole.params[path], array)
    one = start(with_init(clip_config(), text=configs.Init(path=str(tmp_path / "run"))))
    assert {path.split("/")[0] for path in one.params} == {"text", "text_head"}
