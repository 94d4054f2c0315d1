"""`:runlocal` with data of the user, which it keeps."""

import importlib
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.cli.option_groups import ConfigOptions
from big_retrieval.config import recipe
from big_retrieval.config.checks import check
from big_retrieval.config.runlocal import command_line
from tests.helpers import user_error


def shrunk(name: str, *keys: str, arg: str = "runlocal") -> configs.Config:
    """A shipped config with `:arg`, while the command line sets some keys."""
    module = importlib.import_module(f"configs.{name}")
    with command_line(keys):
        return configs.load(module.get_config(arg))


def test_runlocal_generates_data_by_default() -> None:
    c = shrunk("clip_b16", "optimizer.lr", "data.count", "data.type")
    assert c.data.type == "scenes"
    assert {"test", "colours"} <= set(c.evals)


def test_runlocal_keeps_data_and_evaluators_of_the_command_line(said: list[str]) -> None:
    full = shrunk("clip_b16", arg="")
    c = shrunk("clip_b16", "data.path")
    assert (c.data, dict(c.evals)) == (full.data, {})
    (line,) = [x for x in said if "leaves out" in x]
    assert all(f"config.evals.{name}" in line for name in full.evals)
    assert "sets the data without --config.evals.coco.data.path" in line
    name = next(iter(full.evals))
    c = shrunk("clip_b16", "data.path", f"evals.{name}.data.path")
    assert dict(c.evals) == {name: full.evals[name]}
    assert c.towers["image"].width <= 64
    check(c)
    c = shrunk("clip_b16", f"evals.{name}.data.path")
    assert c.data.type == "scenes"
    assert c.evals[name] == full.evals[name]


@pytest.mark.parametrize("name", ["emoji", "emoji_gcl", "emoji_vdr", "emoji_ltd", "medical"])
def test_runlocal_with_data_argument_keeps_data_and_evaluators(name: str) -> None:
    c, full = shrunk(name, arg="runlocal,data=here"), shrunk(name, arg="data=here")
    assert c.data == full.data
    assert c.evals == full.evals
    check(c)
    assert shrunk(name).data.type in ("scenes", "graded_scenes")  # nothing is left behind


def test_command_line_replaces_tar_by_pairs() -> None:
    """Their keys of the same name have other types."""
    keys = ("--config.data.type=pairs", "--config.data.path=mine.csv")
    data: Any = ConfigOptions(config="oblique_s16_yfcc15m:runlocal", keys=keys).load_config().data
    assert (data.type, data.path) == ("pairs", "mine.csv")
    assert (data.image, data.text) == ("image", "captions")


@pytest.mark.parametrize("arg", ["runlocal", "runlocal,data=here"])
def test_runlocal_keeps_files_of_fields_with_the_data(arg: str, said: list[str]) -> None:
    c, kept = shrunk("emoji_ltd", arg=arg), "data" in arg
    target: Any = c.fields["target"]
    assert (target.file, target.generated) == (("targets.npy", False) if kept else ("", True))
    assert kept != ("config.fields.target.file" in "".join(said))
    check(c)


def test_runlocal_logs_what_it_leaves_out(said: list[str]) -> None:
    c = recipe.small()
    c.data = recipe.entry(configs.Pairs(), path="mine.csv")
    c.init.image = recipe.entry(configs.Init(), path="vit.npz")
    c.tokenizer.update(type="auto", path="bert")
    c.fields.text.title, c.best_metric = "name", "retrieval/test/rsum"
    small = configs.load(recipe.runlocal(c.copy_and_resolve_references(), keep_data=True))
    assert small.data == configs.Pairs(path="mine.csv")
    assert small.fields["text"].title == "name"
    for key in ("best_metric", "init.image", "tokenizer"):
        assert f" config.{key}" in said[-1]
    c.evals.test.data = recipe.entry(configs.Pairs(), path="mine.csv")
    recipe.runlocal(c, keep_data=False)
    for key in ("best_metric", "fields.text.title", "init.image", "data", "evals.test.data"):
        assert f" config.{key}" in said[-1]


def test_runlocal_names_generated_evaluators_that_it_leaves_out(said: list[str]) -> None:
    shrunk("quickstart", "data.type", "data.path")
    assert "config.evals.test, " in said[-1]
    shrunk("scenes_oblique")
    assert " config.evals.in_domain.data: " in said[-1]


def test_runlocal_keeps_evaluators_of_other_types() -> None:
    c = recipe.small()
    c.evals = {"test": recipe.entry(configs.Geometry())}
    assert configs.load(recipe.runlocal(c)).evals["test"].type == "geometry"


def test_check_rejects_random_values_for_a_file() -> None:
    c = recipe.runlocal(recipe.small())
    c.fields.goal = recipe.entry(configs.ArrayField(), file="a.npy", shape=(3,), generated=True)
    with user_error("config.fields.goal.file is 'a.npy'"):
        check(configs.load(c))
