"""Batch statistics in the trainer: averages, slices, devices, resuming, use."""

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
from tests.helpers import ema, losses, mesh_keys, results, tiny, user_error
from tests.train.runs import (
    ALL_AXES,
    ONE,
    VOCAB,
    assert_close_run,
    assert_same_run,
    built,
    prepare,
)

pytestmark = pytest.mark.usefixtures("one_model")

SIZES: dict[str, Any] = {"stem": 8, "blocks": (1, 1), "bottleneck": False}


def resnet(tower: Any = None, **changes: Any) -> configs.Config:
    """A tiny config with a residual network for its images."""
    image = recipe.entry(configs.ResNet(), **{**SIZES, **(tower or {})})
    return tiny(**{"towers__image": image, "towers__text__class_tokens": 1, **changes})


def flat(tree: Any) -> dict[str, np.ndarray]:
    return {k: np.asarray(x) for k, x in traverse_util.flatten_dict(tree, sep="/").items()}


def same(a: Any, b: Any, **tolerance: Any) -> None:
    a, b = flat(a), flat(b)
    assert a.keys() == b.keys()
    for path, value in a.items():
        np.testing.assert_allclose(value, b[path], err_msg=path, **{"rtol": 0.0, **tolerance})


def moved(config: configs.Config, state: Any, fields: Any) -> tuple[Any, Any]:
    """(embeddings, averages) of one plain pass over some rows."""
    model = make_model(config, VOCAB)
    trees = {"params": {k: v for k, v in state.params.items() if k != "scalars"}}
    trees["batch_stats"] = state.batch_stats
    run = jax.jit(lambda v, x: model.apply(v, x, train=True, mutable=["batch_stats"]))
    reps, after = run(trees, fields)
    return reps.embeddings, after["batch_stats"]  # type: ignore


def test_a_step_moves_the_averages_once() -> None:
    config = resnet()
    step, state, batch = prepare(config)
    _, expected = moved(config, state, batch.fields)
    before = flat(state.batch_stats)
    assert all((value == path.endswith("var")).all() for path, value in before.items())
    state, _ = step(state, batch)
    same(state.batch_stats, expected, rtol=1e-5, atol=1e-6)
    assert set(state.weights) == {*state.params, "batch_stats"}


def test_rows_that_lack_an_optional_field_do_not_count() -> None:
    """Neither in the tower nor in the head, whatever they hold, and on every mesh."""
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
    same(stats, same_stats)
    np.testing.assert_array_equal(embeddings[present], others[present])
    alone = seen(pixels[present])
    same(stats, alone[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(embeddings[present], alone[0], rtol=1e-4, atol=1e-5)

    mesh = parallel.make_mesh(config, jax.devices())
    with parallel.use(mesh):
        sharded = [jax.device_put(x, parallel.batch_sharding(mesh)) for x in (pixels, present)]
        everywhere = seen(sharded[0], present=sharded[1])
    same(everywhere[1], stats, rtol=1e-5, atol=1e-6)

    whole, nothing = seen(pixels), seen(pixels, present=jnp.zeros(16, bool))
    every = seen(pixels, present=jnp.ones(16, bool))
    same(every[1], whole[1], rtol=1e-6)
    same(nothing[1], state.batch_stats)
    np.testing.assert_allclose(nothing[0], whole[0], rtol=1e-5, atol=1e-6)


def test_a_bad_step_leaves_them() -> None:
    step, state, batch = prepare(resnet())
    state, _ = step(state, batch)
    params = jax.tree.map(lambda x: x, state.params)
    params["text"]["ln_final"]["bias"] = params["text"]["ln_final"]["bias"].at[0].set(jnp.inf)
    before = {k: x.copy() for k, x in flat(state.batch_stats).items()}
    state, out = step(state.replace(params=params), batch)
    assert int(out["first_bad_step"]) == 2
    same(state.batch_stats, traverse_util.unflatten_dict(before, sep="/"))


@pytest.mark.slow
def test_slices_have_statistics_of_their_own_and_move_the_averages_by_their_mean() -> None:
    config = resnet({"batch_stats": "slice"}, microbatch=4)
    step, state, batch = prepare(config)
    parts = [
        moved(config, state, jax.tree.map(lambda x, i=i: x[i : i + 4], batch.fields))[1]
        for i in range(0, 16, 4)
    ]
    expected = jax.tree.map(lambda *x: np.mean(np.stack(x), 0), *parts)
    whole_step, whole, _ = prepare(resnet())
    state, out = step(state, batch)
    same(state.batch_stats, expected, rtol=1e-5, atol=1e-6)
    whole, other = whole_step(whole, batch)
    assert abs(float(out["loss"]) - float(other["loss"])) > 1e-4  # it is another training


@pytest.mark.slow
def test_frozen_statistics_allow_slices_and_change_nothing() -> None:
    runs = []
    for microbatch in (None, 4):
        step, state, batch = prepare(
            resnet({"frozen_stats": True, "blocks": (1,)}, microbatch=microbatch)
        )
        before = {k: x.copy() for k, x in flat(state.batch_stats).items()}
        out: Any = None
        for _ in range(2):
            state, out = step(state, batch)
        same(state.batch_stats, traverse_util.unflatten_dict(before, sep="/"))
        runs.append(float(out["loss"]))
    assert runs[0] == pytest.approx(runs[1], rel=1e-5)


def test_slices_must_be_asked_for() -> None:
    with user_error("config.microbatch", "config.towers.image.batch_stats", "frozen_stats"):
        check(resnet(microbatch=4))
    check(resnet(microbatch=16))  # the whole batch is one slice
    check(resnet({"batch_stats": "slice"}, microbatch=4))
    check(resnet({"frozen_stats": True}, microbatch=4))


@pytest.mark.parametrize(
    ("tower", "words"),
    [
        ({"blocks": ()}, "blocks"),
        ({"blocks": (1, 0)}, "blocks"),
        ({"stem": 0}, "stem"),
    ],
)
def test_impossible_sizes(tower: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"config.towers.image.{words}"):
        check(resnet(tower))


def test_a_text_field_cannot_read_with_it() -> None:
    with pytest.raises(UserError, match="cannot read fields of type 'text'"):
        check(resnet(fields__text__tower="image"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run on one device."""
    workdir = tmp_path_factory.mktemp("whole")
    train(resnet(total_steps=20, checkpoint_every=20), workdir, ONE)
    return workdir


@pytest.mark.slow
def test_it_trains(whole: Path) -> None:
    found = losses(whole)
    assert np.mean([found[i] for i in range(16, 21)]) < np.mean([found[i] for i in range(1, 4)])


def stats(workdir: Path, step: int) -> Any:
    return restore_params(workdir / "checkpoints" / str(step), "batch_stats")


@pytest.mark.slow
@pytest.mark.parametrize("axes", [mesh_keys(data=8), ALL_AXES])
def test_eight_devices(whole: Path, tmp_path: Path, axes: dict[str, int]) -> None:
    train(resnet(total_steps=20, checkpoint_every=20, **axes), tmp_path)
    assert_close_run(tmp_path, whole)
    same(stats(tmp_path, 20), stats(whole, 20), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_resumed_is_uninterrupted(whole: Path, tmp_path: Path) -> None:
    train(resnet(total_steps=20, checkpoint_every=20, stop_after=7), tmp_path, ONE)
    train(resnet(total_steps=20, checkpoint_every=20), tmp_path, ONE)
    assert results(tmp_path)["resumed_from"] == 7
    assert_same_run(tmp_path, whole)
    same(stats(tmp_path, 20), stats(whole, 20))


@pytest.mark.slow
def test_slices_stay_as_they_are_on_resume(tmp_path: Path) -> None:
    train(resnet({"batch_stats": "slice"}, microbatch=8, stop_after=1), tmp_path, ONE)
    with pytest.raises(UserError, match=r"config\.microbatch = 8.*None"):
        train(resnet({"batch_stats": "slice"}), tmp_path, ONE)


def test_runlocal_shrinks_a_published_size() -> None:
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
def test_use_goes_by_the_averages(whole: Path) -> None:
    model = big_retrieval.load(whole, batch_size=8)
    same(jax.device_get(model.weights["batch_stats"]), stats(whole, 20))
    images = [SceneRecords("test", count=6)[i]["image"] for i in range(6)]
    together = model.encode_images(images)
    alone = np.concatenate([model.encode_images([image]) for image in images])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert together.shape == (6, 1, 4)


@pytest.mark.slow
def test_an_average_of_the_parameters_has_the_same_statistics(tmp_path: Path) -> None:
    evals = {"test": recipe.entry(configs.Retrieval(), data=configs.Scenes(split="test", count=16))}
    config = resnet({"blocks": (1,)}, total_steps=2, optimizer__averaging=ema(0.5), evals=evals)
    train(config, tmp_path, ONE)
    assert "retrieval/test/text_to_image/R@1" in results(tmp_path)
    model = big_retrieval.load(tmp_path)
    weights = dict(jax.device_get(model.weights))
    same(weights.pop("batch_stats"), stats(tmp_path, 2))
    same(weights, restore_params(model.folder, "ema"))


@pytest.mark.slow
def test_a_run_starts_from_another(whole: Path, tmp_path: Path) -> None:
    """`config.init` takes the averages with the parameters."""
    init = {"image": recipe.entry(configs.Init(), path=str(whole))}
    config = resnet(
        {"frozen_stats": True},
        total_steps=1,
        init=init,
        optimizer__groups={"image": recipe.group("image/.*", frozen=True)},
    )
    train(config, tmp_path, ONE)
    same(stats(tmp_path, 1), stats(whole, 20))
    mine, theirs = (
        restore_params(folder / "checkpoints" / step)["image"]
        for folder, step in ((tmp_path, "1"), (whole, "20"))
    )
    same(mine, theirs)
