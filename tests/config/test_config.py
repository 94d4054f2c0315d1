"""The configuration: strict, typed, the same after a journey through JSON; every file is valid."""

import ast
import dataclasses
import json
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe, schema
from big_retrieval.config.benchmarks import image_evaluators
from big_retrieval.config.checks import check
from big_retrieval.errors import UserError
from tests.helpers import ROOT, ema, raw_config, tiny, user_error

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


@pytest.mark.parametrize("arg", ["", "runlocal"])
@pytest.mark.parametrize("name", FILES)
def test_every_config_file_is_valid(name: str, arg: str) -> None:
    c = configs.load(get_config(name, arg))
    check(c)
    assert c.fields
    assert c.towers


SILENT = {"image": ("crop_scale=", "flip="), "": ("clip_norm",)}  # what papers rarely state


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith(PAPERS)])
def test_configs_of_papers_leave_no_augmentation_or_clipping_to_defaults(name: str) -> None:
    text, c = _with_imports(name), configs.load(get_config(name, ""))
    for field, keys in SILENT.items():
        if not field or isinstance(c.fields.get(field), configs.ImageField):
            for key in keys:
                plain = f"fields.image.{key.rstrip('=')}"
                assert key in text or plain in text, f"{name} does not set {key.rstrip('=')}"


def _with_imports(name: str) -> str:
    """The text of a config file and of those that it imports."""
    text = (ROOT / "configs" / f"{name}.py").read_text()
    found = [line.partition("import ")[2] for line in text.splitlines() if "from configs" in line]
    return text + "".join(_with_imports(each) for line in found for each in line.split(", "))


def switches() -> list[tuple[str, str]]:
    """Arguments of all config files that are on or off, and choices between a few words."""
    found = []
    for name in FILES:
        tree = ast.parse((ROOT / "configs" / f"{name}.py").read_text())
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            kind = getattr(call.func, "attr", "")
            if kind == "parse_arg":
                off = [each.arg for each in call.keywords if ast.unparse(each.value) == "False"]
                found += [(name, str(key)) for key in off]
            if kind == "one_of" and isinstance(call.args[2], ast.Tuple):
                words = [each for each in call.args[2].elts if isinstance(each, ast.Constant)]
                key = ast.literal_eval(call.args[0])
                found += [(name, f"{key}={each.value}") for each in words]
    return found


@pytest.mark.parametrize(("name", "arg"), switches())
def test_every_argument_of_a_config_file_is_valid(name: str, arg: str) -> None:
    for each in (arg, f"runlocal,{arg}"):
        check(configs.load(get_config(name, each)))


@pytest.mark.parametrize("name", FILES)
def test_runlocal_is_small_and_keeps_the_structure(name: str) -> None:
    full, small = (configs.load(get_config(name, arg)) for arg in ("", "runlocal"))
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


def own_pairs(**fields: Any) -> Config:
    """The runlocal form of a config of one's own files; changes are whole fields."""
    raw = raw_config(fields=fields, data=recipe.entry(configs.Pairs(), path="pairs.jsonl"))
    read = {field.tower for field in fields.values()}
    raw.towers = {name: tower for name, tower in raw.towers.items() if name in read}
    return configs.load(recipe.runlocal(raw))


def test_runlocal_reads_fields_whatever_their_names_are() -> None:
    picture = recipe.entry(configs.ImageField())
    c = own_pairs(picture=picture, caption=recipe.entry(configs.TextField()))
    check(c)
    assert c.data.type == "scenes"
    assert dict(c.evals["test"].reads()) == {"query": "caption", "document": "picture"}
    assert dict(c.evals["colours"].reads()) == {"image": "picture", "text": "caption"}


def test_runlocal_of_texts_alone_has_texts_on_both_sides() -> None:
    passage = recipe.entry(configs.TextField(), side="document", column="passage")
    c = own_pairs(question=recipe.entry(configs.TextField(), column="question"), passage=passage)
    check(c)
    assert c.data.type == "graded_scenes"
    assert {ev.type for ev in c.evals.values()} == {"ranking"}
    assert (c.fields["question"].column, c.fields["passage"].column) == ("query", "title")


@dataclasses.dataclass(frozen=True)
class Whole(configs.Field):
    """A field of one's own that says nothing of `:runlocal`."""

    build = shapes = None
    head: configs.Head = dataclasses.field(default_factory=configs.Projection)


@dataclasses.dataclass(frozen=True)
class Headless(configs.Field):
    """Another one, without a head of its own."""

    build = shapes = None


def test_runlocal_shrinks_the_head_of_a_field_of_ones_own() -> None:
    head = configs.Projection(dim=512)
    assert Whole(head=head).runlocal() == Whole(head=head.runlocal()) != Whole(head=head)
    assert Headless().runlocal() == Headless()


@pytest.mark.parametrize("name", FILES)
def test_a_config_is_the_same_after_json(name: str) -> None:
    c = configs.load(get_config(name, "runlocal"))
    assert configs.load(json.loads(json.dumps(schema.to_plain(c)))) == c


def test_defaults_survive_the_config_dict() -> None:
    assert configs.load(recipe.base()) == Config()


def test_loading_changes_no_value_but_what_was_set() -> None:
    c = tiny(optimizer__lr=0.5, batch_size=24)
    changed = schema.differences(schema.to_plain(tiny()), schema.to_plain(c))
    assert [key for key, _, _ in changed] == ["config.batch_size", "config.optimizer.lr"]


def test_whole_numbers_serve_as_numbers_but_not_the_other_way_round() -> None:
    assert isinstance(tiny(optimizer__lr=1).optimizer.lr, float)
    with pytest.raises(UserError, match=r"config\.batch_size is 2\.0 \(float\)"):
        load({"batch_size": 2.0})


def test_optional_keys_take_none() -> None:
    c = tiny(losses__main__logit_scale__max=None, optimizer__clip_norm=None)
    assert c.losses["main"].logit_scale.max is None
    assert c.optimizer.clip_norm is None


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(tiny(), "batch_size", 3)  # noqa: B010


@pytest.mark.parametrize(
    ("changes", "words"),
    [
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
def test_what_no_key_takes(changes: dict[str, Any], words: list[str]) -> None:
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
def test_a_misspelt_key_in_a_config_file_is_named_with_the_right_one(
    group: str, key: str, near: str
) -> None:
    c = raw_config()
    node = c
    for name in filter(None, group.split(".")):
        node = node[name]
    node[key] = 1
    path = ".".join(filter(None, ("config", group, key)))
    with user_error(f"{path} is not a key", f"did you mean {near}?"):
        configs.load(c)


def test_entry_knows_its_keys() -> None:
    with pytest.raises(UserError, match=r"did you mean ViT\.class_tokens\?"):
        recipe.vit("B/16", clas_tokens=3)
    with pytest.raises(UserError, match="B/32"):
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
def test_parse_arg_names_what_it_does_not_know(arg: str, words: list[str]) -> None:
    with user_error(*words):
        recipe.parse_arg(arg, n=1)


def test_differences_tell_both_values() -> None:
    found = schema.differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4})
    assert found == [("config.a.c", 2, 3), ("config.d", None, 4)]


def test_saved_configs_of_older_versions_get_the_defaults_of_new_keys() -> None:
    c = configs.load(get_config("quickstart", "runlocal"))
    saved = json.loads(json.dumps(schema.to_plain(c)))
    del (
        saved["best_mode"],
        saved["optimizer"]["clip_norm"],
        saved["fields"]["image"]["flip_unsafe_words"],
    )
    del saved["loader"], saved["fields"]["image"]["head"]["type"]
    assert configs.load_saved(saved) == c
    with pytest.raises(UserError, match="has lost its key"):
        configs.load(saved)
    saved["optimizer"]["epz"] = 1.0
    with pytest.raises(UserError, match=r"config\.optimizer\.epz"):
        configs.load_saved(saved)


def test_saved_averages_without_the_warmup_key_had_no_warmup() -> None:
    c = configs.load(raw_config(optimizer__averaging=ema(0.9)))
    assert c.optimizer.averaging.warmup
    saved = json.loads(json.dumps(schema.to_plain(c)))
    del saved["optimizer"]["averaging"]["warmup"]
    fixed = configs.Ema(decay=0.9, warmup=False)
    assert configs.load_saved(saved).optimizer.averaging == fixed


def test_the_loss_can_be_switched_by_its_type() -> None:
    """Shared keys stay, new ones get their defaults, lost ones must be at theirs."""
    sigmoid = tiny(losses__main__type="sigmoid", losses__main__block=7).losses["main"]
    assert sigmoid == configs.Sigmoid(block=7, logit_scale=tiny().losses["main"].logit_scale)
    raw = raw_config()
    raw.losses.main = recipe.entry(configs.Sigmoid(), exchange="ring")
    raw.losses.main.type = "contrastive"
    assert configs.load(raw).losses["main"] == configs.Contrastive(exchange="ring")
    raw.losses.main = recipe.entry(configs.Sigmoid(), bias=-3.0)
    raw.losses.main.type = "contrastive"
    with pytest.raises(
        UserError, match=r"config.losses.main.type is 'contrastive', .* of 'sigmoid'"
    ):
        configs.load(raw)


def test_image_benchmarks_are_evaluators_of_tfds_or_of_folders() -> None:
    for form in ("tfds", "folders"):
        found: dict[str, Any] = image_evaluators("here", form)
        assert [name for name, each in found.items() if each.type == "zeroshot"] == [
            "imagenet", "imagenet_v2", "imagenet_a", "imagenet_r",
        ]  # fmt: skip
        own = [name for name, each in found.items() if getattr(each, "present", False)]
        assert own == ["imagenet_a", "imagenet_r"]
        kinds = {each.data.type for each in found.values()}
        assert kinds == {"karpathy", "tfds" if form == "tfds" else "class_folders"}
        probe = found["imagenet_probe"]
        assert (probe.train.type, probe.label) == (probe.data.type, "label")
    assert "imagenet_probe" not in image_evaluators(probe=False)
