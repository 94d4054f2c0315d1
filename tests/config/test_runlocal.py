"""`:runlocal` with data of the user's own, which it keeps."""

import importlib
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.cli.option_groups import ConfigOptions
from big_retrieval.config import recipe
from big_retrieval.config.checks import check
from big_retrieval.config.runlocal import command_line
from big_retrieval.errors import UserError


def shrunk(name: str, *keys: str, arg: str = "runlocal") -> configs.Config:
    """A shipped config behind `:arg`, while the command line sets some keys."""
    module = importlib.import_module(f"configs.{name}")
    with command_line(keys):
        return configs.load(module.get_config(arg))


def test_generated_data_are_the_default() -> None:
    c = shrunk("clip_b16", "optimizer.lr", "data.count", "data.type")
    assert c.data.type == "scenes"
    assert {"test", "colours"} <= set(c.evals)


def test_keys_of_the_data_keep_them_and_the_evaluators_whose_data_are_given(
    said: list[str],
) -> None:
    full = shrunk("clip_b16", arg="")
    c = shrunk("clip_b16", "data.path")
    assert (c.data, dict(c.evals)) == (full.data, {})
    (line,) = [x for x in said if "left out" in x]
    assert all(f"config.evals.{name}" in line for name in full.evals)
    name = next(iter(full.evals))
    c = shrunk("clip_b16", "data.path", f"evals.{name}.data.path")
    assert dict(c.evals) == {name: full.evals[name]}
    assert c.towers["image"].width <= 64
    check(c)


def test_evaluators_whose_data_are_given_stay_beside_generated_ones() -> None:
    full = shrunk("clip_b16", arg="")
    name = next(iter(full.evals))
    c = shrunk("clip_b16", f"evals.{name}.data.path")
    assert c.data.type == "scenes"
    assert c.evals[name] == full.evals[name]


@pytest.mark.parametrize("name", ["emoji", "emoji_gcl", "emoji_vdr", "emoji_ltd", "medical"])
def test_the_argument_data_keeps_data_and_evaluators(name: str) -> None:
    c, full = shrunk(name, arg="runlocal,data=here"), shrunk(name, arg="data=here")
    assert c.data == full.data
    assert c.evals == full.evals
    check(c)
    assert shrunk(name).data.type in ("scenes", "graded_scenes")  # nothing is left behind


def test_a_config_file_says_so_itself() -> None:
    c = recipe.small()
    c.data = recipe.entry(configs.Pairs(), path="mine.csv")
    assert configs.load(recipe.runlocal(c, keep_data=True)).data == configs.Pairs(path="mine.csv")


def test_the_parser_of_the_command_line_tells() -> None:
    config = read("oblique_b16:runlocal", "--config.data.path=mine.jsonl")
    assert config.data.type != "scenes"


def test_tars_become_pairs_though_their_columns_are_of_another_type() -> None:
    keys = ["--config.data.type=pairs", "--config.data.path=mine.csv"]
    full: Any = shrunk("oblique_s16_yfcc15m", arg="")
    data = read("oblique_s16_yfcc15m:runlocal", *keys).data
    assert (data.type, data.path, data.image, data.text) == (
        "pairs", "mine.csv", "image", "captions"
    )  # fmt: skip
    assert full.data.path != "mine.csv"


def read(name: str, *keys: str) -> Any:
    return ConfigOptions(config=name, keys=keys).load_config()


@pytest.mark.parametrize("arg", ["runlocal", "runlocal,data=here"])
def test_files_of_fields_are_kept_with_the_data_and_named_where_they_are_not(
    arg: str, said: list[str]
) -> None:
    c, kept = shrunk("emoji_ltd", arg=arg), "data" in arg
    target: Any = c.fields["target"]
    assert (target.file, target.generated) == (("targets.npy", False) if kept else ("", True))
    assert kept != ("config.fields.target.file" in "".join(said))
    check(c)


def test_what_shrinking_leaves_out_is_named(said: list[str]) -> None:
    c = recipe.small()
    c.data = recipe.entry(configs.Pairs(), path="mine.csv")
    c.init.image = recipe.entry(configs.Init(), path="vit.npz")
    c.tokenizer.update(type="auto", path="bert")
    c.fields.text.title, c.best_metric = "name", "retrieval/test/rsum"
    small = configs.load(recipe.runlocal(c.copy_and_resolve_references(), keep_data=True))
    assert small.fields["text"].title == "name"
    assert "config.init.image, config.tokenizer.path, config.best_metric: " in said[-1]
    generated = recipe.small()
    generated.best_metric = "retrieval/test/rsum"
    recipe.runlocal(generated, keep_data=True)
    assert "leaves out config.best_metric: " in said[-1]
    c.evals.test.data = recipe.entry(configs.Pairs(), path="mine.csv")
    recipe.runlocal(c, keep_data=False)
    assert ":runlocal leaves out config.data, config.init.image, " in said[-1]
    assert ", config.fields.text.title, config.best_metric, config.evals.test: " in said[-1]


def test_an_evaluator_of_ones_own_is_not_replaced_by_one_of_its_name() -> None:
    c = recipe.small()
    c.evals = {"test": recipe.entry(configs.Geometry())}
    found = configs.load(recipe.runlocal(c))
    assert found.evals["test"].type == "geometry"


def test_random_values_cannot_stand_for_a_file_that_is_named() -> None:
    c = recipe.runlocal(recipe.small())
    c.fields.goal = recipe.entry(configs.ArrayField(), file="a.npy", shape=(3,), generated=True)
    with pytest.raises(UserError, match=r"goal\.file is 'a\.npy', but .* gives random values"):
        check(configs.load(c))


def test_an_evaluator_whose_generated_data_are_replaced_is_named(said: list[str]) -> None:
    c = recipe.small()
    c.evals.shapes = recipe.entry(configs.Geometry(), data=configs.Scenes(split="shapes"))
    recipe.runlocal(c)
    assert "leaves out config.evals.shapes: " in said[-1]
