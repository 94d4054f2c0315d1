"""Update rules, groups, decay, clipping, freezing, phases; on a few small arrays."""

import dataclasses
import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from big_retrieval import config as configs
from big_retrieval.config import GroupRate, Optimizer, ParameterGroup, Phase, Schedule
from big_retrieval.losses.objective import Objective
from big_retrieval.models.towers import make_model
from big_retrieval.train import rules
from big_retrieval.train.groups import make_updates
from big_retrieval.train.optimizer import Updates, names_of, tree_of
from big_retrieval.train.schedules import Timeline, make_schedule, spans
from big_retrieval.train.state import abstract_variables
from tests.helpers import raw_config, user_error

PARAMS = {
    "image": {
        "layers_0": {"mlp": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}},
        "layers_1": {"mlp": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}},
        "position_embedding": jnp.ones((4, 2)),
    },
    "scalars": {"main": {"logit_scale": jnp.ones(())}},
}


PLAIN = Optimizer(
    configs.AdamW(eps=1e-12), 0.1, Schedule("constant"), weight_decay=0.0, clip_norm=None
)
Tree = Any


def make(config: Optimizer = PLAIN, steps: int = 10, epoch: float = 5.0, **changes: Any) -> Updates:
    """The optimizer of `PARAMS`."""
    return make_updates(dataclasses.replace(config, **changes), PARAMS, Timeline(steps, epoch))


def gradients(seed: int = 0) -> Tree:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), PARAMS)


def run(tx: Updates, seeds: range, state: Any = None, params: Tree = None) -> tuple[Any, Any, Any]:
    """(parameters, state, metrics of the last step) after steps with random gradients.

    The seed of a step is the number of steps before it.
    """
    params = PARAMS if params is None else params
    state, metrics = tx.init(params) if state is None else state, {}
    for i in seeds:
        phase = next(k for k, span in enumerate(tx.spans) if i < span.stop)
        params, state, metrics = tx.update(phase, gradients(i), state, params, jnp.asarray(i))
    return params, state, metrics


def by_hand(tx: optax.GradientTransformation, steps: int, params: Tree = PARAMS) -> Any:
    """The parameters after the same steps with an optimizer of optax."""
    state = tx.init(params)
    for i in range(steps):
        updates, state = tx.update(gradients(i), state, params)
        params = optax.apply_updates(params, updates)
    return params


def close(found: Any, expected: Any) -> None:
    found, expected = names_of(found), names_of(expected)
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=1e-5, atol=1e-6, err_msg=name)


def one_update(config: Optimizer, gradient: float = 1.0) -> dict[str, jax.Array]:
    """The change of every parameter by the first step."""
    tx = make(config)
    grads = jax.tree.map(lambda p: jnp.full_like(p, gradient), PARAMS)
    after, _, _ = tx.update(0, grads, tx.init(PARAMS), PARAMS, jnp.asarray(0))
    return names_of(jax.tree.map(lambda a, b: a - b, after, PARAMS))


def sizes(state: Any) -> int:
    """Numbers in a state, without counts of steps."""
    return sum(x.size for x in jax.tree.leaves(state) if x.dtype != jnp.int32)


def test_default_is_adamw_with_clipping_and_decay_of_matrices() -> None:
    config = Optimizer(lr=0.1)
    decayed = jax.tree.map(lambda p: p.ndim == 2, PARAMS)
    decayed["image"]["position_embedding"] = False
    tx = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            lambda step: 0.1 * make_schedule(Schedule(), 10)(jnp.asarray(step)),
            b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.1, mask=decayed,
        ),
    )  # fmt: skip
    close(run(make(config), range(4))[0], by_hand(tx, 4))


def test_decay_spares_every_table_of_tokens_and_positions() -> None:
    """The class tokens of a causal text tower (pool "last") are in a table of their own."""
    c = raw_config()
    c.towers.text.update(causal=True, pool="last", norm="pre", relative_positions=8)
    config = configs.load(c)
    model = make_model(config, 128)
    boxed, _ = abstract_variables(model, Objective(config))
    updates = make_updates(dataclasses.replace(PLAIN, weight_decay=0.5), boxed, Timeline(8))
    flat = names_of(jax.tree.map(lambda x: jnp.ones(x.shape), nn.unbox(boxed)))
    zeros = jax.tree.map(jnp.zeros_like, flat)
    params, state = tree_of(flat), updates.init(tree_of(flat))
    update = jax.jit(lambda *trees: updates.update(0, *trees, jnp.asarray(0))[0])
    moved = names_of(update(tree_of(zeros), state, params))
    decayed = {name: bool(jnp.any(x != 1)) for name, x in moved.items()}
    tables = [name for name in flat if re.search("(class|end|position)_emb|relative_bias", name)]
    assert len(tables) == 5, tables
    assert not any(decayed[name] for name in tables)
    assert decayed["text/token_embedding"]


def test_decay_of_groups() -> None:
    groups = {
        "first": ParameterGroup(".*layers_0/mlp/kernel", weight_decay=0.0),
        "bias": ParameterGroup(".*bias", weight_decay=1.0, decay_vectors=True),
        "table": ParameterGroup(".*position_embedding", weight_decay=1.0),
    }
    changes = one_update(dataclasses.replace(PLAIN, weight_decay=0.5, groups=groups))
    expected = {"layers_0/mlp/kernel": -0.1, "layers_1/mlp/kernel": -0.15, "mlp/bias": -0.2}
    for name, change in changes.items():
        value = next((x for end, x in expected.items() if name.endswith(end)), -0.1)
        np.testing.assert_allclose(change, value, rtol=1e-5, err_msg=name)


def test_groups_against_an_optimizer_by_hand() -> None:
    """Three rules, three rates, a clip that two of four groups count for, and a frozen one."""
    groups = {
        "first": ParameterGroup(
            r"image/layers_0/.*", rule=configs.Sgd(momentum=0.5), lr=0.3, clip=False
        ),
        "second": ParameterGroup(
            r"image/layers_1/.*", lr_factor=0.5, schedule=Schedule("linear"), weight_decay=0.2
        ),
        "table": ParameterGroup(r".*embedding", frozen=True),
    }
    config = dataclasses.replace(PLAIN, weight_decay=0.1, clip_norm=0.7, groups=groups)
    linear = lambda step: 0.05 * (1 - step / 10)  # noqa: E731

    def adam(rate: Any, decay: float) -> optax.GradientTransformation:
        mask = lambda tree: jax.tree.map(lambda p: p.ndim == 2, tree)  # noqa: E731
        return optax.adamw(rate, b1=0.9, b2=0.98, eps=1e-12, weight_decay=decay, mask=mask)

    labels: Any = {
        "image": {"layers_0": "first", "layers_1": "second", "position_embedding": "table"},
        "scalars": "rest",
    }
    rules: Any = {
        "first": optax.chain(
            optax.trace(0.5),
            optax.add_decayed_weights(0.1, lambda tree: jax.tree.map(lambda p: p.ndim == 2, tree)),
            optax.scale(-0.3),
        ),
        "second": adam(linear, 0.2),
        "table": optax.set_to_zero(),
        "rest": adam(0.1, 0.1),
    }
    counted = {
        "image": {"layers_0": False, "layers_1": True, "position_embedding": False},
        "scalars": True,
    }
    clip = optax.masked(optax.clip_by_global_norm(0.7), counted)
    tx = make(config)
    found, state, metrics = run(tx, range(4))
    close(found, by_hand(optax.chain(clip, optax.partition(rules, labels)), 4))
    assert set(tx.partitions) == {"sgd_0", "adamw_1"}
    assert sizes(state["sgd_0"]) == 8  # one number for each parameter
    assert sizes(state["adamw_1"]) == 2 * 9  # two, of the second layer and the scalar
    assert float(metrics["learning_rate"]) == pytest.approx(0.1)
    assert float(metrics["learning_rate/first"]) == pytest.approx(0.3)
    assert float(metrics["learning_rate/second"]) == pytest.approx(linear(3))
    assert "learning_rate/table" not in metrics
    flat = names_of(gradients(3))
    moving = [x for name, x in flat.items() if not name.endswith("embedding")]
    clipped = [x for name, x in flat.items() if "layers_1" in name or "scalars" in name]
    assert float(metrics["grad_norm"]) == pytest.approx(float(optax.tree.norm(moving)), rel=1e-5)
    norm = float(optax.tree.norm(clipped))
    assert float(metrics["clipped_grad_norm"]) == pytest.approx(norm, rel=1e-5)


def test_group_of_lowest_order_gets_the_parameter() -> None:
    groups = {
        "a_rest": ParameterGroup(r"image/.*", order=1, lr_factor=0.5),
        "b_second": ParameterGroup(r".*/layers_1/.*", lr_factor=0.25),
    }
    changes = one_update(dataclasses.replace(PLAIN, groups=groups))
    np.testing.assert_allclose(changes["image/layers_0/mlp/kernel"], -0.05, rtol=1e-5)
    np.testing.assert_allclose(changes["image/layers_1/mlp/kernel"], -0.025, rtol=1e-5)
    np.testing.assert_allclose(changes["scalars/main/logit_scale"], -0.1, rtol=1e-5)


def test_updates_keep_form_of_tree_without_scalars() -> None:
    params = {"image": PARAMS["image"], "scalars": {}}
    tx = make_updates(PLAIN, params, Timeline(10))
    after, _, _ = tx.update(0, params, tx.init(params), params, jnp.asarray(0))
    assert jax.tree.structure(after) == jax.tree.structure(params)


# ---- Phases


TWO = {
    "late": Phase(start_step=3, lr=0.01, schedule=Schedule("linear")),
    "early": Phase(start_step=0, frozen=r"image/layers_0/.*"),
}


def test_phases_are_ordered_by_their_start_and_leave_no_gap() -> None:
    found = spans({"b": Phase(start_epoch=2), "a": Phase(start_step=4)}, Timeline(20, 5))
    assert [(x.name, x.start, x.stop) for x in found] == [("", 0, 4), ("a", 4, 10), ("b", 10, 20)]
    assert [(x.name, x.start, x.stop) for x in spans({}, Timeline(20, 5))] == [("", 0, 20)]


def test_unfrozen_parameter_begins_like_any_other() -> None:
    """In a phase that freezes it, neither it nor its state changes; then Adam counts from 1."""
    tx = make(phases=TWO)
    params, state, metrics = run(tx, range(3))
    for name, x in names_of(params).items():
        assert (x is names_of(PARAMS)[name]) == name.startswith("image/layers_0/"), name
    (late,) = (key for key, part in tx.partitions.items() if len(part.phases) == 1)
    jax.tree.map(np.testing.assert_array_equal, state[late], tx.init(PARAMS)[late])
    assert float(metrics["learning_rate"]) == pytest.approx(0.1)
    after, state, metrics = run(tx, range(3, 4), state, params)
    change = names_of(after)["image/layers_0/mlp/kernel"] - 1
    np.testing.assert_allclose(jnp.abs(change), 0.01, rtol=1e-4)  # the first step of Adam
    assert float(metrics["learning_rate"]) == pytest.approx(0.01)
    assert {key: int(x.count) for key, x in state.items()}[late] == 1
    _, _, metrics = run(tx, range(4, 10), state, after)
    assert float(metrics["learning_rate"]) == pytest.approx(0.01 / 7, rel=1e-4)


def test_states_have_one_structure_in_all_phases() -> None:
    tx = make(phases=TWO)
    states = [run(tx, range(n))[1] for n in (1, 3, 4, 10)]
    structures = {str(jax.tree.structure(x)) for x in (tx.init(PARAMS), *states)}
    assert len(structures) == 1


def test_frozen_in_every_phase_is_without_state() -> None:
    phases = {
        "one": Phase(start_step=0, frozen=".*layers_0.*"),
        "two": Phase(start_step=5, trainable="image/layers_1/.*|scalars/.*"),
    }
    tx = make(phases=phases)
    trained = {name for part in tx.partitions.values() for name in part.names}
    assert trained == {name for name in names_of(PARAMS) if "layers_0" not in name}
    assert sizes(tx.init(PARAMS)) == 2 * (8 + 8 + 1)


def test_group_rates_of_a_phase_take_precedence() -> None:
    groups = {
        "first": ParameterGroup("image/layers_0/.*", lr_factor=0.5),
        "second": ParameterGroup("image/layers_1/.*", lr=0.2, schedule=Schedule("linear")),
    }
    change = {"first": GroupRate(lr_factor=0.1), "second": GroupRate(lr=0.4)}
    phases = {
        "b": Phase(start_step=2, lr=1.0, schedule=Schedule("linear")),
        "c": Phase(start_step=4, groups=change),
        "d": Phase(start_step=6, groups={"second": GroupRate(schedule=Schedule("linear"))}),
    }
    tx = make(groups=groups, phases=phases)
    found = [
        [float(tx.rates[k][name](step)) for name in ("", "first", "second")]
        for k, step in ((0, 1), (1, 3), (2, 5), (3, 8))
    ]
    expected = [
        [0.1, 0.05, 0.2 * 0.9],  # as the groups say
        [0.5, 0.25, 0.2 * 0.7],  # half of the phase is over
        [0.1, 0.01, 0.4 * 0.5],  # the phase's change of the groups
        [0.1, 0.05, 0.2 * 0.5],  # half of the phase again, for one group
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# ---- Optimizers of optax by name


def step_of(rule: configs.UpdateRule, steps: int = 3) -> Any:
    config = dataclasses.replace(PLAIN, rule=rule)
    return run(make_updates(config, PARAMS, Timeline(10)), range(steps))[0]


@pytest.mark.parametrize(
    ("name", "arguments", "tx"),
    [
        ("lion", {"b1": 0.8}, optax.lion(0.1, b1=0.8, weight_decay=0.0)),
        ("sgd", {"momentum": 0.9, "nesterov": True}, optax.sgd(0.1, 0.9, nesterov=True)),
        ("adafactor", {"min_dim_size_to_factor": 2}, optax.adafactor(0.1, 2)),
        ("scale_by_sign", {}, optax.sign_sgd(0.1)),
        ("muon", {"ns_steps": 3}, optax.contrib.muon(0.1, ns_steps=3)),
    ],
)
def test_optax_by_name(name: str, arguments: Any, tx: optax.GradientTransformation) -> None:
    close(step_of(configs.Optax(name=name, arguments=arguments)), by_hand(tx, 3))


@pytest.mark.slow
def test_steps_of_all_that_optax_has_are_proportional_to_the_rate() -> None:
    """Else it would be no update rule; those that are left out for it are not."""

    def steps(make: Any, rate: float) -> Any:
        tx = make(learning_rate=rate)
        state, updates = tx.init(PARAMS), None
        for i in range(3):
            updates, state = tx.update(gradients(i), state, PARAMS)
        return jax.tree.leaves(updates)

    def linear(make: Any) -> bool:
        pairs = zip(steps(make, 1.0), steps(make, 0.5), strict=True)
        return all(np.allclose(a, 2 * np.asarray(b), rtol=1e-4, atol=1e-7) for a, b in pairs)

    tried = 0
    for name, function in rules.update_rules().items():
        accepted = inspect.signature(function).parameters
        required = {key for key, x in accepted.items() if x.default is x.empty}
        if "learning_rate" in accepted and required <= {"learning_rate"}:
            assert linear(function), name
            tried += 1
    assert tried > 20
    for function in (optax.fromage, optax.contrib.cocob, optax.contrib.madgrad):
        assert function.__name__ not in rules.update_rules()
        assert not linear(function)


# ---- Rejected settings


def grouped(**patterns: str | ParameterGroup) -> dict[str, Any]:
    """Changes of the optimizer: groups by name, from patterns."""
    groups = {k: ParameterGroup(x) if isinstance(x, str) else x for k, x in patterns.items()}
    return {"groups": groups}


MISSPELT = configs.Optax(name="scale_by_trust_rati")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (grouped(a="imagee/.*"), ["groups.a.pattern", "'imagee/.*'", "image/layers"]),
        (grouped(a="layers_0"), ["groups.a.pattern", "a full name, such as"]),
        (grouped(a="image/.*", b=".*bias"), ["groups.b.pattern", "groups.a.pattern", "both match"]),
        (grouped(a="image/.*", b=ParameterGroup(".*bias", order=1)), ["groups.b.pattern", "order"]),
        (grouped(a=ParameterGroup(".*", frozen=True)), ["groups freeze all"]),
        (grouped(a=ParameterGroup(".*", rule=MISSPELT)), ["groups.a.rule.name", "trust_ratio'"]),
        ({"phases": {"p": Phase(0, trainable="nope")}}, ["phases.p.trainable", "'nope'"]),
        ({"phases": {"p": Phase(0, frozen="nope")}}, ["phases.p.frozen", "'nope'"]),
        ({"phases": {"p": Phase(0, frozen=".*")}}, ["phases.p trains no parameter"]),
        ({"phases": {"p": Phase(10)}}, ["phases.p begins at step 10", "run ends at step 10"]),
        ({"phases": {"p": Phase(None, 2.0)}}, ["phases.p begins at step 10"]),
        ({"phases": {"p": Phase(5), "q": Phase(None, 1.0)}}, ["phases.p", "phases.q", "step 5"]),
        ({"rule": configs.Optax(name="lionn")}, ["rule.name 'lionn'", "did you mean 'lion'?"]),
        ({"rule": configs.Optax(name="fromage")}, ["rule.name 'fromage'", "cannot be"]),
        (
            {"rule": configs.Optax(name="sgd", arguments={"momentun": 0.1})},
            ["rule.arguments: optax.sgd", "'momentun'"],
        ),
        (
            {"rule": configs.Optax(name="lion", arguments={"learning_rate": 0.1})},
            ["rule.arguments.learning_rate", "config.optimizer.lr"],
        ),
    ],
)
def test_make_updates_rejects_impossible_settings(
    changes: dict[str, Any], words: list[str]
) -> None:
    with user_error(*words, "config.optimizer"):
        make(**changes)
