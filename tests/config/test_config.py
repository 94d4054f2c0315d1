"""Typed configs: strict parsing, JSON, config files and their helpers."""

import ast
import dataclasses
import json
import re
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe, schema
from big_retrieval.config.benchmarks import image_evaluators
from big_retrieval.config.checks import check
from tests.helpers import ROOT, raw_config, tiny, user_error

PAPERS = ("oblique", "clip", "vdr", "dpr", "splade", "gcl", "ltd")
FILES = sorted(path.stem for path in (ROOT / "configs").glob("*.py") if path.stem != "__init__")


def get_config(name: str, arg: str) -> Any:
    return __import__(f"configs.{name}", fromlist=["get_config"]).get_config(arg)


def load(changes: dict[str, Any]) -> Config:
    """A tiny config with values that a ConfigDict itself would refuse, as config.json may hold."""
    raw = raw_config().to_dict()
    for key, value in changes.items():
        *path, last = key.split("__")
        node = raw
        for name in path:
            node = node[name]
        node[last] = value
    return configs.load(raw)


@pytest.mark.parametrize("name", FILES)
def test_config_file_is_valid_and_runlocal_keeps_its_structure(name: str) -> None:
    full, small = (configs.load(get_config(name, arg)) for arg in ("", "runlocal"))
    check(full)
    check(small)
    assert configs.load(json.loads(json.dumps(schema.to_plain(small)))) == small
    assert small.dtype == "float32"
    graded = full.data.type in ("graded", "beir", "dpr", "triples")
    assert small.data.type == ("graded_scenes" if graded else "scenes")
    assert small.topology == full.topology
    assert small.towers.keys() == full.towers.keys()
    for key, tower in small.towers.items():
        assert tower.class_tokens == full.towers[key].class_tokens
        if isinstance(tower, configs.ResNet):
            assert (tower.stem, set(tower.blocks)) == (16, {1})
            continue
        assert getattr(tower, "dropout", 0) == 0  # towers of regions have none
        assert tower.width <= 64
        assert tower.depth <= 3


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith(PAPERS)])
def test_paper_configs_set_augmentation_and_clipping(name: str) -> None:
    text, c = _with_imports(name), configs.load(get_config(name, ""))
    keys = ["clip_norm"]
    keys += ["crop_scale", "flip"] if isinstance(c.fields.get("image"), configs.ImageField) else []
    for key in keys:
        assert re.search(rf"\b{key}\b", text), f"{name} does not set {key}"


def _with_imports(name: str) -> str:
    """The text of a config file and of those that it imports."""
    text = (ROOT / "configs" / f"{name}.py").read_text()
    imports = re.findall(r"from configs import (.*)", text)
    return text + "".join(_with_imports(file) for line in imports for file in line.split(", "))


def switches() -> list[tuple[str, str]]:
    """Arguments of all config files that are on or off, and choices between a few words."""
    arguments = []
    for name in FILES:
        tree = ast.parse((ROOT / "configs" / f"{name}.py").read_text())
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            kind = getattr(call.func, "attr", "")
            if kind == "parse_arg":
                off = [x.arg for x in call.keywords if ast.unparse(x.value) == "False"]
                arguments += [(name, str(key)) for key in off]
            if kind == "one_of" and isinstance(call.args[2], ast.Tuple):
                words = [x.value for x in call.args[2].elts if isinstance(x, ast.Constant)]
                key = ast.literal_eval(call.args[0])
                arguments += [(name, f"{key}={word}") for word in words]
    return arguments


@pytest.mark.parametrize(("name", "arg"), switches())
def test_config_file_argument_is_valid(name: str, arg: str) -> None:
    check(configs.load(get_config(name, arg)))
    check(configs.load(get_config(name, f"runlocal,{arg}")))


def own_pairs(**fields: Any) -> Config:
    """The runlocal form of a config of pairs in files."""
    raw = raw_config(fields=fields, data=recipe.entry(configs.Pairs(), path="pairs.jsonl"))
    read = {field.tower for field in fields.values()}
    raw.towers = {name: tower for name, tower in raw.towers.items() if name in read}
    return configs.load(recipe.runlocal(raw))


def test_runlocal_reads_fields_of_any_name() -> None:
    picture = recipe.entry(configs.ImageField())
    c = own_pairs(picture=picture, caption=recipe.entry(configs.TextField()))
    check(c)
    assert c.data.type == "scenes"
    assert dict(c.evals["test"].reads()) == {"query": "caption", "document": "picture"}
    assert dict(c.evals["colours"].reads()) == {"image": "picture", "text": "caption"}


def test_runlocal_of_texts_has_texts_on_both_sides() -> None:
    passage = recipe.entry(configs.TextField(), side="document", column="passage")
    c = own_pairs(question=recipe.entry(configs.TextField(), column="question"), passage=passage)
    check(c)
    assert c.data.type == "graded_scenes"
    assert {ev.type for ev in c.evals.values()} == {"ranking"}
    assert (c.fields["question"].column, c.fields["passage"].column) == ("query", "title")


@dataclasses.dataclass(frozen=True)
class Whole(configs.Field):
    build = shapes = None
    head: configs.Head = dataclasses.field(default_factory=configs.Projection)


@dataclasses.dataclass(frozen=True)
class Headless(configs.Field):
    build = shapes = None


def test_runlocal_shrinks_heads_of_custom_fields() -> None:
    head = configs.Projection(dim=512)
    assert Whole(head=head).runlocal() == Whole(head=head.runlocal()) != Whole(head=head)
    assert Headless().runlocal() == Headless()


def test_load_changes_only_the_set_keys() -> None:
    assert configs.load(recipe.base()) == Config()
    c = tiny(optimizer__lr=1, batch_size=24, optimizer__clip_norm=None)
    changed = schema.differences(schema.to_plain(tiny()), schema.to_plain(c))
    assert changed == [
        ("config.batch_size", 16, 24),
        ("config.optimizer.lr", 2e-3, 1.0),
        ("config.optimizer.clip_norm", 1.0, None),
    ]
    assert isinstance(c.optimizer.lr, float)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 2.0}, ["config.batch_size is 2.0 (float)"]),
        ({"batch_size": True}, ["config.batch_size", "whole number"]),
        ({"batch_size": None}, ["config.batch_size is None", "whole number"]),
        ({"topology": "oblik"}, ["config.topology", "did you mean 'oblique'"]),
        ({"towers__image__scan": 1}, ["config.towers.image.scan", "True or False"]),
        ({"optimizer__lr": float("nan")}, ["config.optimizer.lr", "finite"]),
        ({"optimizer__lr": "0.1"}, ["config.optimizer.lr", "(str)", "a number"]),
        ({"fields__image__mean": (1, 2)}, ["config.fields.image.mean", "3 elements"]),
        ({"fields__image__mean": ("a", 1, 2)}, ["config.fields.image.mean[0]", "a number"]),
        ({"fields__image__flip_unsafe_words": (3,)}, ["flip_unsafe_words[0]", "a string"]),
        ({"labels__table": ((1.0, "b"),)}, ["config.labels.table[0][1]", "a number"]),
        ({"labels__table": (1.0,)}, ["config.labels.table[0]", "(0.5, 0.5)"]),
        ({"fields__image__flip_unsafe_words": 3}, ["flip_unsafe_words", "('text',)"]),
        ({"optimizer": {"lr": 1.0}}, ["config.optimizer has lost its keys rule", "optimizer.lr="]),
        ({"mesh": {"data": 1, "fsdp": 1}}, ["config.mesh has lost its key tensor"]),
        ({"optimizer": 3}, ["config.optimizer is a group of keys"]),
        ({"evals": None}, ["config.evals is a group"]),
        ({"towers__image": None}, ["config.towers.image is a group"]),
        ({"data__type": "pairs"}, ["config.data.type", "config.Pairs()"]),
        ({"data__type": "webdataset"}, ["config.data.type", "'pairs'"]),
        ({"towers__image__type": "resnet"}, ["config.towers.image.type", "'vit'"]),
    ],
)  # fmt: skip
def test_load_rejects_values(changes: dict[str, Any], words: list[str]) -> None:
    with user_error(*words):
        load(changes)


@pytest.mark.parametrize(
    ("group", "key", "near"),
    [
        ("", "batchsize", "config.batch_size"),
        ("towers.image", "widht", "config.towers.image.width"),
        ("fields.image", "crop_scal", "config.fields.image.crop_scale"),
        ("fields.text.head", "dimension", "config.fields.text.head.dim"),
        ("optimizer.schedule", "warmup", "config.optimizer.schedule.warmup_steps"),
        ("tokenizer", "vocab", "config.tokenizer.vocab_size"),
        ("losses.main.logit_scale", "int", "config.losses.main.logit_scale.init"),
    ],
)
def test_load_names_nearest_key(group: str, key: str, near: str) -> None:
    c = raw_config()
    node = c
    for name in filter(None, group.split(".")):
        node = node[name]
    node[key] = 1
    path = ".".join(filter(None, ("config", group, key)))
    with user_error(f"{path} is not a key", f"did you mean {near}?"):
        configs.load(c)


def test_recipe_vit() -> None:
    with user_error("did you mean ViT.class_tokens?"):
        recipe.vit("B/16", clas_tokens=3)
    with user_error("B/32"):
        recipe.vit("B/17")
    assert recipe.vit("L/14", depth=2).width == 1024


def test_parse_arg() -> None:
    args = recipe.parse_arg("runlocal,n=4,rate=0.5,fixed", n=1, rate=1.0, name="a", fixed=False)
    assert (args.runlocal, args.n, args.rate, args.name, args.fixed) == (True, 4, 0.5, "a", True)
    args = recipe.parse_arg("fixed=false", fixed=False)
    assert (args.runlocal, args.fixed) == (False, False)


@pytest.mark.parametrize(
    ("arg", "words"),
    [
        ("foo", ["'foo'", "known: n, runlocal"]),
        ("runlocl", ["'runlocl'", "did you mean runlocal?"]),
        ("m=3", ["'m=3'", "known: n, runlocal"]),
        ("n=x", ["n is 'x'", "a whole number"]),
        ("n=1.5", ["n is '1.5'", "a whole number"]),
        ("n", ["n is ''", "a whole number"]),
        ("runlocal=maybe", ["runlocal is 'maybe'", "true or false"]),
    ],
)
def test_parse_arg_rejects(arg: str, words: list[str]) -> None:
    with user_error(*words):
        recipe.parse_arg(arg, n=1)


def test_load_saved_gives_missing_keys_their_defaults() -> None:
    c = configs.load(get_config("quickstart", "runlocal"))
    saved = json.loads(json.dumps(schema.to_plain(c)))
    del saved["best_mode"], saved["optimizer"]["clip_norm"], saved["loader"]
    del saved["fields"]["image"]["flip_unsafe_words"]
    assert configs.load_saved(saved) == c
    with user_error("has lost its key"):
        configs.load(saved)
    saved["optimizer"]["epz"] = 1.0
    with user_error("config.optimizer.epz"):
        configs.load_saved(saved)
    del saved["optimizer"]["epz"], saved["fields"]["image"]["head"]["type"]
    with user_error("config.fields.image.head.type is missing"):
        configs.load_saved(saved)


def test_type_key_switches_the_loss() -> None:
    """Shared keys stay, new ones get their defaults, lost ones must be at theirs."""
    sigmoid = tiny(losses__main__type="sigmoid", losses__main__block=7).losses["main"]
    assert sigmoid == configs.Sigmoid(block=7, logit_scale=tiny().losses["main"].logit_scale)
    raw = raw_config()
    raw.losses.main = recipe.entry(configs.Sigmoid(), exchange="ring")
    raw.losses.main.type = "contrastive"
    assert configs.load(raw).losses["main"] == configs.Contrastive(exchange="ring")
    raw.losses.main = recipe.entry(configs.Sigmoid(), bias=-3.0)
    raw.losses.main.type = "contrastive"
    with user_error("config.losses.main.type is 'contrastive'", "'sigmoid'"):
        configs.load(raw)


def test_image_evaluators() -> None:
    for form in ("tfds", "folders"):
        evals: dict[str, Any] = image_evaluators("here", form)
        present = [name for name, x in evals.items() if getattr(x, "present", False)]
        assert present == ["imagenet_a", "imagenet_r"]
        types = {x.data.type for x in evals.values()}
        assert types == {"karpathy", "tfds" if form == "tfds" else "class_folders"}
        probe = evals["imagenet_probe"]
        assert (probe.train.type, probe.label) == (probe.data.type, "label")
