"""Reference values of LTD's optimizer, averages and learning rates: data/ltd/README.md."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import Optimizer, ParameterGroup, Phase, Schedule
from big_retrieval.train.averaging import Average, snapshots
from big_retrieval.train.groups import make_updates
from big_retrieval.train.schedules import Timeline

Case = Mapping[str, np.ndarray]
CONSTANT = Schedule(type="constant")
TOLERANCE: Any = {
    "float64": {"rtol": 1e-5, "atol": 1e-6},
    "float32": {"rtol": 1e-4, "atol": 1e-5},
}
both_precisions = pytest.mark.parametrize("precision", ["float64", "float32"])


@pytest.mark.golden("ltd", "adamp.npz")
@both_precisions
@pytest.mark.parametrize("by", ["column", "row"])
def test_adamp(case: Case, precision: str, by: str) -> None:
    """A kernel is stored by output column here; a table, like all of theirs, by row.

    The reference decays vectors, too.
    """
    import flax.linen as nn

    keys = {name: float(case[name]) for name in ("eps", "delta")}
    keys |= {"b1": float(case["beta1"]), "b2": float(case["beta2"])}
    rule = configs.AdamP(**keys, decay_ratio=float(case["wd_ratio"]))  # type: ignore
    decay = float(case["weight_decay"])
    lr, groups = float(case["lr"]), {"all": ParameterGroup(".*", decay_vectors=True)}
    config = Optimizer(rule, lr, CONSTANT, weight_decay=decay, clip_norm=None, groups=groups)

    def ours(x: np.ndarray) -> np.ndarray:
        return x if by == "row" else x.T

    steps = len(case["grads_w"])
    axes = ("vocab", "embed") if by == "row" else ("embed", "mlp")
    with jax.enable_x64(precision == "float64"):
        weight = jnp.asarray(ours(case["w0"]), precision)
        params = {"w": weight, "b": jnp.asarray(case["b0"], precision)}
        boxed = {**params, "w": nn.LogicallyPartitioned(weight, axes)}
        tx = make_updates(config, boxed, Timeline(steps))
        step = jax.jit(lambda *args: tx.update(0, *args)[:2])
        state, plain = tx.init(params), 0
        for i, (gw, gb) in enumerate(zip(case["grads_w"], case["grads_b"], strict=True)):
            grads = {"w": jnp.asarray(ours(gw), precision), "b": jnp.asarray(gb, precision)}
            before = np.asarray(params["w"])
            params, state = step(grads, state, params, jnp.asarray(i))
            assert params["w"].dtype == precision
            for name in ("w", "b"):
                expected = case[f"{name}_after"][i]
                found = ours(np.asarray(params[name])) if name == "w" else params[name]
                np.testing.assert_allclose(found, expected, **TOLERANCE[precision])
            # Without the weight decay of scale-invariant weights, their update has no radial part.
            moved = np.asarray(params["w"]) - (1 - lr * decay * rule.decay_ratio) * before
            plain += abs(np.sum(moved * before)) > 1e-3 * np.sqrt(np.sum(moved**2))
        assert 0 < plain < steps, "steps with and without the projection are there"


@pytest.mark.golden("ltd", "swa.npz")
@both_precisions
def test_swa(case: Case, precision: str) -> None:
    length, total = int(case["steps_per_epoch"]), len(case["grads"])
    start, every = snapshots(configs.Swa(), length)
    assert (start, every) == (int(case["swa_start"]), int(case["swa_freq"]))
    config = Optimizer(
        configs.Sgd(momentum=0.0), float(case["lr"]), CONSTANT, weight_decay=0.0, clip_norm=None
    )
    with jax.enable_x64(precision == "float64"):
        timeline = Timeline(total, float(length))
        params = {"w": jnp.asarray(case["p0"], precision)}
        tx, average = make_updates(config, params, timeline), Average(configs.Swa(), timeline)

        @jax.jit
        def step(params: Any, state: Any, swa: Any, grads: Any, done: Any) -> Any:
            before, state, _ = tx.update(0, grads, state, params, done)
            params, _, swa, metrics = average.update(before, {}, swa, done + 1)
            return before, params, state, swa, metrics["swa_count"]

        state, swa = tx.init(params), jax.tree.map(jnp.zeros_like, params)
        for i, g in enumerate(case["grads"]):
            grads = {"w": jnp.asarray(g, precision)}
            before, params, state, swa, count = step(params, state, swa, grads, jnp.asarray(i))
            assert params["w"].dtype == precision
            expected = case["params_after_each_step"][i]
            np.testing.assert_allclose(before["w"], expected, **TOLERANCE[precision])
            epoch, last = divmod(i + 1, length)
            if last == 0:
                assert int(count) == int(case["n_averaged_per_epoch"])
                ends = case["params_end_before_swap"][epoch - 1], case["params_end_after_swap"]
                np.testing.assert_allclose(before["w"], ends[0], **TOLERANCE[precision])
                np.testing.assert_allclose(params["w"], ends[1][epoch - 1], **TOLERANCE[precision])


def rates(config: Optimizer, epochs: int, each: int) -> np.ndarray:
    """The main learning rate [epochs, each]."""
    timeline = Timeline(epochs * each, float(each))
    tx = make_updates(config, {"w": jnp.zeros(2)}, timeline)
    found = []
    for number, span in enumerate(tx.spans):
        steps = jnp.arange(span.start, span.stop)
        found.append(jax.vmap(tx.rates[number][""])(steps))
    return np.concatenate(found).reshape(epochs, each)


@pytest.mark.golden("ltd", "lr_schedule.npz")
def test_learning_rates(case: Case) -> None:
    """But for the first iteration of an epoch, which has the last epoch's rate there.

    Their second stage rises, against the paper and their own comment: ours falls as was meant, from
    a tenth of the rate.
    """
    exact: Any = {"rtol": 0.0, "atol": 1e-12}
    stage, cosine = int(case["T_max"]), Schedule(interval="epoch")
    with jax.enable_x64(True):
        lr, expected = float(case["base_lr_cosine"]), case["base_cosine_literal"]
        phases = {
            "frozen": Phase(start_epoch=0, schedule=cosine),
            "all": Phase(start_epoch=stage, lr=lr / 10, schedule=cosine),
        }
        found = rates(Optimizer(lr=lr, phases=phases), 2 * stage, expected.shape[1])
        np.testing.assert_allclose(found[:stage, 1:], expected[:stage, 1:], **exact)
        np.testing.assert_allclose(found[stage:], found[:stage] / 10, **exact)

        lr, expected = float(case["base_lr_vsrn"]), case["vsrn_multistep"]
        fall = int(np.flatnonzero(expected[:, 1] < lr)[0])  # the first epoch of a tenth of the rate
        phases = {"low": Phase(start_epoch=fall, lr=lr / 10)}
        found = rates(Optimizer(lr=lr, schedule=CONSTANT, phases=phases), *expected.shape)
        np.testing.assert_allclose(found[:, 1:], expected[:, 1:], **exact)

        period, expected = int(case["tern_warmup_period"]), case["tern_warmup"]
        lr = float(case["base_lr_tern"]) / period
        warm = Schedule(type="constant", warmup_steps=period)
        # Our first step has the rate 0; theirs begin with a share more.
        epochs, each = expected.shape
        found = rates(Optimizer(lr=lr, schedule=warm), epochs + 1, each).ravel()
        np.testing.assert_allclose(found[2 : expected.size + 1], expected.ravel()[1:], **exact)
