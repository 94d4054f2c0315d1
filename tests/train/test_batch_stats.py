"""Batch statistics in the trainer: averages, slices, devices, resuming, use."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

import big_retrieval
from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.config import recipe
from big_retrieval.config.checks import check
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.errors import UserError
from big_retrieval.inference.saved import restore_params
from big_retrieval.models.towers import make_model
from big_retrieval.train.loop import train
from tests.helpers import ema, mesh_keys, results, tiny, user_error
from tests.train.runs import (
    ALL_AXES,
    ONE,
    VOCAB,
    assert_close_run,
    assert_same_run,
    built,
    prepare,
    train_in_parts,
)

pytestmark = pytest.mark.usefixtures("one_model")

SIZES: dict[str, Any] = {"stem": 8, "blocks": (1, 1), "bottleneck": False}


def resnet(tower: Any = None, **changes: Any) -> configs.Config:
    """A tiny config with a residual network for its images."""
    image = recipe.entry(configs.ResNet(), **{**SIZES, **(tower or {})})
    return tiny(**{"towers__image": image, "towers__text__class_tokens": 1, **changes})


def flat(tree: Any) -> dict[str, np.ndarray]:
    return {k: np.asarray(x) for k, x in traverse_util.flatten_dict(tree, sep="/").items()}


def assert_trees_equal(a: Any, b: Any, **tolerance: Any) -> None:
    a, b = flat(a), flat(b)
    assert a.keys() == b.keys()
    for path, value in a.items():
        np.testing.assert_allclose(value, b[path], err_msg=path, **{"rtol": 0.0, **tolerance})


def copied(tree: Any) -> Any:
    """Copies arrays, whose buffers a step may reuse."""
    return jax.tree.map(np.array, tree)


def moved(config: configs.Config, state: Any, fields: Any) -> tuple[Any, Any]:
    """Returns (embeddings, averages) of one plain pass over some rows."""
    model = make_model(config, VOCAB)
    trees = {"params": {k: v for k, v in state.params.items() if k != "scalars"}}
    trees["batch_stats"] = state.batch_stats
    run = jax.jit(lambda v, x: model.apply(v, x, train=True, mutable=["batch_stats"]))
    reps, after = run(trees, fields)
    return reps.embeddings, after["batch_stats"]  # type: ignore


def test_step_moves_the_averages_once() -> None:
    config = resnet()
    step, state, batch = prepare(config)
    _, expected = moved(config, state, batch.fields)
    before = flat(state.batch_stats)
    assert all((value == path.endswith("var")).all() for path, value in before.items())
    state, _ = step(state, batch)
    assert_trees_equal(state.batch_stats, expected, rtol=1e-5, atol=1e-6)
    assert set(state.weights) == {*state.params, "batch_stats"}


def test_rows_without_an_optional_field_do_not_count() -> None:
    """In tower and head, for any content of the rows, and on every mesh."""
    head = recipe.entry(configs.Mlp(), dim=4, batch_norm=True)
    config = resnet({"blocks": (1,), "remat": "block"}, fields__image__head=head)
    parts, batch = built(config)
    state = jax.device_get(parts.draw().replace(key=None))
    pixels, present = batch.fields["image"]["pixels"], jnp.arange(16) % 3 > 0

    def seen(pixels: jax.Array, **more: jax.Array) -> tuple[Any, Any]:
        embeddings, stats = moved(config, state, {"image": {"pixels": pixels, **more}})
        return embeddings["image"], stats

    embeddings, stats = seen(pixels, present=present)
    others, same_stats = seen(jnp.where(present[:, None, None, None], pixels, 0), present=present)
    assert_trees_equal(stats, same_stats)
    np.testing.assert_array_equal(embeddings[present], others[present])
    alone = seen(pixels[present])
    assert_trees_equal(stats, alone[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(embeddings[present], alone[0], rtol=1e-4, atol=1e-5)

    mesh = parallel.make_mesh(config, jax.devices())
    with parallel.use(mesh):
        sharded = [jax.device_put(x, parallel.batch_sharding(mesh)) for x in (pixels, present)]
        everywhere = seen(sharded[0], present=sharded[1])
    assert_trees_equal(everywhere[1], stats, rtol=1e-5, atol=1e-6)

    whole, nothing = seen(pixels), seen(pixels, present=jnp.zeros(16, bool))
    every = seen(pixels, present=jnp.ones(16, bool))
    assert_trees_equal(every[1], whole[1], rtol=1e-6)
    assert_trees_equal(nothing[1], state.batch_stats)
    np.testing.assert_allclose(nothing[0], whole[0], rtol=1e-5, atol=1e-6)


def test_bad_step_does_not_move_the_averages() -> None:
    step, state, batch = prepare(resnet())
    state, _ = step(state, batch)
    params = jax.tree.map(lambda x: x, state.params)
    params["text"]["ln_final"]["bias"] = params["text"]["ln_final"]["bias"].at[0].set(jnp.inf)
    before = copied(state.batch_stats)
    state, out = step(state.replace(params=params), batch)
    assert int(out["first_bad_step"]) == 2
    assert_trees_equal(state.batch_stats, before)


@pytest.mark.slow
def test_slices_move_the_averages_by_the_mean_of_their_statistics() -> None:
    config = resnet({"batch_stats": "slice"}, microbatch=4)
    step, state, batch = prepare(config)
    parts = [
        moved(config, state, jax.tree.map(lambda x, i=i: x[i : i + 4], batch.fields))[1]
        for i in range(0, 16, 4)
    ]
    expected = jax.tree.map(lambda *x: np.mean(np.stack(x), 0), *parts)
    whole_step, whole, _ = prepare(resnet())
    state, out = step(state, batch)
    assert_trees_equal(state.batch_stats, expected, rtol=1e-5, atol=1e-6)
    whole, other = whole_step(whole, batch)
    assert abs(float(out["loss"]) - float(other["loss"])) > 1e-4


@pytest.mark.slow
def test_frozen_statistics_allow_slices_and_stay_unchanged() -> None:
    values = []
    for microbatch in (None, 4):
        tower = {"frozen_stats": True, "blocks": (1,)}
        step, state, batch = prepare(resnet(tower, microbatch=microbatch))
        before, out = copied(state.batch_stats), None
        for _ in range(2):
            state, out = step(state, batch)
        assert_trees_equal(state.batch_stats, before)
        values.append(float(out["loss"]))
    assert values[0] == pytest.approx(values[1], rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"microbatch": 16},  # one slice
        {"tower": {"batch_stats": "slice"}, "microbatch": 4},
        {"tower": {"frozen_stats": True}, "microbatch": 4},
    ],
)
def test_check_accepts_slices_with_batch_statistics(changes: dict[str, Any]) -> None:
    check(resnet(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"microbatch": 4}, ["config.microbatch", "config.towers.image.batch_stats"]),
        ({"tower": {"blocks": ()}}, ["config.towers.image.blocks"]),
        ({"tower": {"blocks": (1, 0)}}, ["config.towers.image.blocks"]),
        ({"tower": {"stem": 0}}, ["config.towers.image.stem"]),
        ({"fields__text__tower": "image"}, ["cannot read fields of type 'text'"]),
    ],
)
def test_check_rejects_impossible_networks(changes: dict[str, Any], words: list[str]) -> None:
    with user_error(*words):
        check(resnet(**changes))


LONG = {"total_steps": 20, "checkpoint_every": 20}


@pytest.fixture(scope="module")
def full_run(trained: Callable[..., Path]) -> Path:
    """The uninterrupted run on one device."""
    return trained(resnet(**LONG))


def stats(workdir: Path, step: int) -> Any:
    return restore_params(workdir / "checkpoints" / str(step), "batch_stats")


@pytest.mark.slow
@pytest.mark.parametrize("axes", [mesh_keys(data=8), ALL_AXES])
def test_eight_devices_equal_one(full_run: Path, tmp_path: Path, axes: dict[str, int]) -> None:
    train(resnet(**LONG, **axes), tmp_path)
    assert_close_run(tmp_path, full_run)
    assert_trees_equal(stats(tmp_path, 20), stats(full_run, 20), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_resumed_run_with_batch_norms_is_bit_identical(full_run: Path, tmp_path: Path) -> None:
    train_in_parts(lambda **more: resnet(**LONG, **more), tmp_path, 7)
    assert_same_run(tmp_path, full_run)
    assert_trees_equal(stats(tmp_path, 20), stats(full_run, 20))


@pytest.mark.slow
def test_resume_rejects_changed_slices_of_batch_norms(tmp_path: Path) -> None:
    train(resnet({"batch_stats": "slice"}, microbatch=8, stop_after=1), tmp_path, ONE)
    with pytest.raises(UserError, match=r"config\.microbatch was 8, now None"):
        train(resnet({"batch_stats": "slice"}), tmp_path, ONE)


def test_runlocal_shrinks_a_published_network() -> None:
    from configs import quickstart

    c = quickstart.get_config()
    c.unlock()
    c.towers.image = recipe.resnet(50)
    c.towers.text.class_tokens = 1
    config = configs.load(recipe.runlocal(c))
    check(config)
    tower = config.towers["image"]
    assert isinstance(tower, configs.ResNet)
    assert (tower.blocks, tower.bottleneck, tower.width) == ((1, 1, 1, 1), True, 512)
    with pytest.raises(UserError, match="18, 34, 50, 101, 152"):
        recipe.resnet(20)


@pytest.mark.slow
def test_loaded_model_uses_the_averages(full_run: Path) -> None:
    model = big_retrieval.load(full_run, batch_size=8)
    assert_trees_equal(jax.device_get(model.weights["batch_stats"]), stats(full_run, 20))
    images = [SceneRecords("test", count=6)[i]["image"] for i in range(6)]
    together = model.encode_images(images)
    alone = np.concatenate([model.encode_images([image]) for image in images])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert together.shape == (6, 1, 4)


@pytest.mark.slow
def test_model_of_averaged_parameters_has_the_same_statistics(tmp_path: Path) -> None:
    evals = {"test": recipe.entry(configs.Retrieval(), data=configs.Scenes(split="test", count=16))}
    config = resnet({"blocks": (1,)}, total_steps=2, optimizer__averaging=ema(0.5), evals=evals)
    train(config, tmp_path, ONE)
    assert "retrieval/test/text_to_image/R@1" in results(tmp_path)
    model = big_retrieval.load(tmp_path)
    weights = dict(jax.device_get(model.weights))
    assert_trees_equal(weights.pop("batch_stats"), stats(tmp_path, 2))
    assert_trees_equal(weights, restore_params(model.folder, "ema"))


@pytest.mark.slow
def test_init_reads_averages_and_parameters(full_run: Path, tmp_path: Path) -> None:
    init = {"image": recipe.entry(configs.Init(), path=str(full_run))}
    config = resnet(
        {"frozen_stats": True},
        total_steps=1,
        init=init,
        optimizer__groups={"image": recipe.group("image/.*", frozen=True)},
    )
    train(config, tmp_path, ONE)
    assert_trees_equal(stats(tmp_path, 1), stats(full_run, 20))
    image, expected = (
        restore_params(folder / "checkpoints" / step)["image"]
        for folder, step in ((tmp_path, "1"), (full_run, "20"))
    )
    assert_trees_equal(image, expected)
