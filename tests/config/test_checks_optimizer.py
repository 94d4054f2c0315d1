"""Checks of `config.optimizer`, its recipes, and its groups and phases on the command line."""

import re
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import GroupRate, ParameterGroup, Phase, Schedule, recipe
from big_retrieval.config.checks import check
from tests.helpers import ROOT, ema, raw_config, tiny, user_error


def optimizer(**changes: Any) -> recipe.Editable:
    return recipe.entry(tiny().optimizer, **changes)


def of_groups(**groups: ParameterGroup) -> recipe.Editable:
    return optimizer(groups=groups)


def of_phases(**phases: Phase) -> recipe.Editable:
    return optimizer(groups={"a": ParameterGroup("image/.*")}, phases=phases)


IMPOSSIBLE: list[tuple[recipe.Editable, str]] = [
    (optimizer(rule=configs.AdamP(delta=-1.0)), "rule.delta is -1.0"),
    (optimizer(schedule=Schedule("same")), "schedule.type is 'same'"),
    (optimizer(averaging=configs.Swa(start=1.0)), "averaging.start is 1.0"),
    (of_groups(a=ParameterGroup("")), "groups.a.pattern is empty"),
    (of_groups(a=ParameterGroup("(")), "groups.a.pattern"),
    (of_groups(a=ParameterGroup("x", lr_factor=-1.0)), "groups.a.lr_factor is -1.0"),
    (of_groups(a=ParameterGroup("x", lr=1.0, lr_factor=2.0)), "a.lr and"),
    (
        of_groups(a=ParameterGroup("x", schedule=Schedule("linear", end=2.0))),
        "groups.a.schedule.end",
    ),
    (
        of_groups(a=ParameterGroup("x", schedule=Schedule("same", warmup_steps=5))),
        "groups.a.schedule.warmup_steps is set",
    ),
    (
        of_groups(a=ParameterGroup("x", rule=configs.Sgd(momentum=2.0))),
        "config.optimizer.groups.a.rule",
    ),
    (of_phases(p=Phase()), "phases.p.start_step"),
    (of_phases(p=Phase(1, 1.0)), "phases.p.start_epoch"),
    (of_phases(p=Phase(-1)), "phases.p.start_step is -1"),
    (of_phases(p=Phase(8)), "phases.p.start_step is 8"),
    (of_phases(p=Phase(3), q=Phase(3)), "phases.q.start_step is 3"),
    (of_phases(p=Phase(0, trainable="(")), "phases.p.trainable"),
    (of_phases(p=Phase(0, frozen="(")), "phases.p.frozen"),
    (of_phases(p=Phase(0, lr=-1.0)), "phases.p.lr is -1.0"),
    (of_phases(p=Phase(0, groups={"b": GroupRate()})), "phases.p.groups.b"),
    (
        of_phases(p=Phase(0, groups={"a": GroupRate(1.0, 2.0)})),
        "phases.p.groups.a has both lr and lr_factor",
    ),
    (of_phases(p=Phase(0, batch_stats="running")), "phases.p.batch_stats"),
]


@pytest.mark.parametrize(("changed", "key"), IMPOSSIBLE)
def test_check_rejects(changed: recipe.Editable, key: str) -> None:
    with user_error(key, "config.optimizer."):
        check(tiny(optimizer=changed))


def test_check_rejects_phase_after_last_epoch() -> None:
    phases = {"p": recipe.phase(start_epoch=3.0)}
    with user_error("phases.p.start_epoch is 3.0", "total_epochs 2.5"):
        check(tiny(total_steps=None, total_epochs=2.5, optimizer__phases=phases))
    check(tiny(total_steps=None, total_epochs=3.5, optimizer__phases=phases))


@pytest.mark.parametrize(
    ("group", "key", "value", "near"),
    [
        ("groups.a", "patern", "x", "config.optimizer.groups.a.pattern"),
        ("phases.p", "start_steps", 1, "config.optimizer.phases.p.start_step"),
        ("rule", "esp", 1.0, "config.optimizer.rule.eps"),
        ("averaging", "deccay", 0.5, "config.optimizer.averaging.decay"),
    ],
)
def test_load_names_nearest_key(group: str, key: str, value: Any, near: str) -> None:
    c = raw_config(optimizer__averaging=ema(0.9))
    c.optimizer.groups.a, c.optimizer.phases.p = recipe.group("image/.*"), recipe.phase()
    node = c.optimizer
    for name in group.split("."):
        node = node[name]
    node[key] = value
    with user_error(f"did you mean {near}?"):
        configs.load(c)


def test_load_rejects_unknown_rule() -> None:
    c = raw_config()
    c.optimizer.rule.type = "adamm"
    with user_error("config.optimizer.rule.type is 'adamm'", "'adamw'", "'optax'"):
        configs.load(c)


def test_load_checks_optax_arguments() -> None:
    rule = configs.Optax(name="sgd", arguments={"momentum": 0.5, "nesterov": True})
    c = raw_config(optimizer__rule=recipe.entry(rule))
    assert configs.load(c).optimizer.rule == rule
    c.optimizer.rule.arguments.decay = (1, 2)
    with user_error("rule.arguments.decay is (1, 2)"):
        configs.load(c)


def test_command_line_adds_groups_and_phases() -> None:
    from big_retrieval.cli.overrides import apply_overrides, parse_overrides

    keys = ["groups.a.pattern=image/.*", "groups.a.rule.type=sgd"]
    keys.append("phases.p.groups.a.lr_factor=0.5")
    c = raw_config()
    apply_overrides(c, parse_overrides([f"--config.optimizer.{key}" for key in keys]))
    assert c.optimizer.groups.a.pattern == "image/.*"
    assert c.optimizer.groups.a.rule.momentum == 0.9
    assert c.optimizer.phases.p.groups.a.lr_factor == 0.5
    assert c.optimizer.phases.p.start_step is None


def test_recipe_layerwise_and_group() -> None:
    c = raw_config(towers__image__depth=2)
    c.optimizer.groups.update(recipe.layerwise("image", depth=2, decay=0.5))
    c.optimizer.groups.text = recipe.group("text/.*", frozen=True)
    groups = configs.load(c).optimizer.groups
    factors = {name: (group.pattern, group.lr_factor) for name, group in groups.items()}
    assert factors == {
        "image_0": ("image/layers_0/.*", 0.25),
        "image_1": ("image/layers_1/.*", 0.5),
        "image_in": ("image/(?!layers_|ln_final|ln_post).*", 0.125),
        "text": ("text/.*", 1.0),
    }
    with user_error("did you mean ParameterGroup.frozen?"):
        recipe.group("text/.*", froze=True)


def test_runlocal_scales_phases() -> None:
    c = recipe.base()
    c.total_epochs, c.optimizer.lr = 60.0, 2e-4
    recipe.image_text(c, dim=64)
    c.towers.image, c.towers.text = recipe.vit("B/16"), recipe.bert()
    schedule = Schedule(warmup_steps=4000)
    c.optimizer.phases.frozen = recipe.phase(start_epoch=0.0)
    c.optimizer.phases.all = recipe.phase(start_epoch=30.0, lr=2e-5, schedule=schedule)
    small = configs.load(recipe.runlocal(c))
    check(small)
    phases = small.optimizer.phases
    assert {name: x.start_step for name, x in phases.items()} == {"frozen": 0, "all": 150}
    assert phases["all"].lr == pytest.approx(2e-4)
    assert phases["all"].schedule.warmup_steps == 20


def test_documentation_examples_are_valid() -> None:
    blocks = re.findall(r"```python\n(c\..*?)```", (ROOT / "docs/OPTIMIZERS.md").read_text(), re.S)
    assert len(blocks) == 2
    for block in blocks:
        c = raw_config(total_steps=None)
        exec(block, {"c": c, "recipe": recipe, "config": configs})
        c.total_steps = None if c.total_epochs else 8
        check(configs.load(c))
