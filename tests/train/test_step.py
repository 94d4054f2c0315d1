"""The step: guard against non-finite values, averages, logit scale, scan and remat."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.errors import UserError
from big_retrieval.losses.activity import WATCHED
from big_retrieval.train.loop import train
from big_retrieval.train.step import compiler_options
from tests.helpers import ema, lexical_texts, losses, tiny
from tests.train.runs import ONE, prepare

pytestmark = pytest.mark.usefixtures("one_model")

# Tests share a step with several settings, as its compilation takes seconds.
SEVERAL = {
    "optimizer__averaging": ema(0.8),
    "optimizer__groups": {
        "image": recipe.group("image/.*", frozen=True),
        "scale": recipe.group("scalars/.*", lr=0.5),
    },
    "losses__main__logit_scale__init": 5.0,
    "losses__main__logit_scale__min": 4.99,
    "losses__main__logit_scale__max": 5.01,
}


def step_of(**changes: Any) -> tuple[Any, Any, Any]:
    """`prepare` of a tiny config."""
    return prepare(tiny(**changes))


def plain(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def test_bad_step_changes_nothing_and_is_marked() -> None:
    step, state, batch = step_of(**SEVERAL)
    state, _ = step(state, batch)
    bias = state.params["text"]["ln_final"]["bias"]
    params = jax.tree.map(lambda x: x, state.params)
    params["text"]["ln_final"]["bias"] = bias.at[0].set(jnp.inf)
    state = state.replace(params=params)
    before = plain((state.params, state.opt_state, state.step))
    state, out = step(state, batch)
    assert int(out["first_bad_step"]) == int(state.first_bad_step) == 2
    jax.tree.map(
        np.testing.assert_array_equal, plain((state.params, state.opt_state, state.step)), before
    )
    # With finite parameters, too, the mark stays and nothing moves.
    params["text"]["ln_final"]["bias"] = jnp.zeros_like(bias)
    state = state.replace(params=params)
    before = plain(state.params)
    state, out = step(state, batch)
    assert int(out["first_bad_step"]) == 2
    assert np.isfinite(out["loss"])
    jax.tree.map(np.testing.assert_array_equal, plain(state.params), before)


def test_bad_run_reports_step_records_and_norms(tmp_path: Path) -> None:
    config = tiny(optimizer__lr=1e30, optimizer__clip_norm=None, log_every=4, total_steps=20)
    with pytest.raises(UserError) as problem:
        train(config, tmp_path, ONE)
    (path,) = tmp_path.glob("nonfinite-*.json")
    found = json.loads(path.read_text())
    assert str(path) in str(problem.value)
    assert f"step {found['step']}" in str(problem.value)
    assert len(found["records"]) == config.batch_size
    assert any(name.startswith("image/layers_0") for name in found["gradient_norm"])
    assert found["loss"] in ("nan", "inf") or "nan" in found["gradient_norm"].values()
    assert all(np.isfinite(x) for x in losses(tmp_path).values())


def test_average_follows_its_recursion() -> None:
    step, state, batch = step_of(**SEVERAL)
    average = plain(state.params)
    for t in (1, 2, 3):
        state, _ = step(state, batch)
        d = min(0.8, (1 + t) / (10 + t))
        average = jax.tree.map(
            lambda a, p, d=d: d * a + (1 - d) * np.asarray(p), average, state.params
        )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), plain(state.ema), average
    )
    assert state.weights is state.ema


@pytest.mark.slow
def test_activity_is_measured_at_logged_steps_only() -> None:
    loss = recipe.entry(configs.Vdr(), top_k=4)
    lexical: dict[str, Any] = {**lexical_texts(), "losses": {"main": loss}}
    every, rare = step_of(**lexical), step_of(**lexical, log_every=4)
    states, seen = [every[1], rare[1]], []
    for number in range(1, 11):  # the run's length is 10
        states[0], expected = every[0](states[0], every[2])
        states[1], found = rare[0](states[1], rare[2])
        seen.append({name: float(x) for name, x in found.items()})
        logged = number in (4, 8, 10)
        for name, value in seen[-1].items():
            measured = name.rpartition("_")[0] in (*WATCHED, "expansion")
            if measured and not logged:
                assert np.isnan(value), name
            else:
                np.testing.assert_allclose(value, expected[name], rtol=1e-4, err_msg=name)
    assert "nonzero_query" in seen[-1]


def test_logit_scale_stays_within_its_bounds_and_frozen_tower_does_not_move() -> None:
    step, state, batch = step_of(**SEVERAL)
    before, scales = plain(state.params), []
    for _ in range(4):
        state, _ = step(state, batch)
        scales.append(float(jnp.exp(state.params["scalars"]["main"]["logit_scale"])))
    assert all(4.99 - 1e-5 <= x <= 5.01 + 1e-5 for x in scales)
    assert any(abs(x - 4.99) < 1e-4 or abs(x - 5.01) < 1e-4 for x in scales)
    jax.tree.map(np.testing.assert_array_equal, plain(state.params["image"]), before["image"])
    after = jax.tree.leaves(plain(state.params["text"]))
    pairs = zip(after, jax.tree.leaves(before["text"]), strict=True)
    assert any(not np.array_equal(a, b) for a, b in pairs)


@pytest.mark.slow
def test_fixed_logit_scale_does_not_move() -> None:
    step, state, batch = step_of(
        losses__main__logit_scale__learnable=False, losses__main__logit_scale__init=3.0
    )
    start = float(state.params["scalars"]["main"]["logit_scale"])
    for _ in range(3):
        state, out = step(state, batch)
    assert float(state.params["scalars"]["main"]["logit_scale"]) == start
    np.testing.assert_allclose(out["logit_scale"], 3.0, rtol=1e-6)


@pytest.mark.slow
def test_dropout_differs_between_steps() -> None:
    dropout = {"towers__text__dropout": 0.3, "towers__image__dropout": 0.3}
    step, state, batch = step_of(optimizer__lr=1e-30, **dropout)
    values = set()
    for _ in range(3):
        state, out = step(state, batch)
        values.add(float(out["loss"]))
    assert len(values) == 3


def test_bf16_run_keeps_float32_parameters() -> None:
    step, state, batch = step_of(dtype="bfloat16", **SEVERAL)
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    full, start, _ = step_of(**SEVERAL)
    _, expected = full(start, batch)
    state, out = step(state, batch)
    assert out["loss"].dtype == jnp.float32
    np.testing.assert_allclose(out["loss"], expected["loss"], rtol=0.05)


def test_compiler_options_belong_to_the_platform_of_the_mesh() -> None:
    assert compiler_options(jax.make_mesh((1,), ("data",))) == {}
    mesh: Any = mock.Mock(devices=np.array([mock.Mock(platform="tpu")]))
    assert set(compiler_options(mesh)) == {"xla_jf_spmd_threshold_for_windowed_einsum_mib"}
