"""A run: the root of the tree, what may change on resuming it, and its typed form."""

import copy
import dataclasses
import fnmatch
import functools
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Literal

from big_retrieval import schema
from big_retrieval.config import registry
from big_retrieval.config.data import HardNegatives, Loader, Scenes
from big_retrieval.config.evals import Evaluator, ForeignEvaluator
from big_retrieval.config.fields import Field, ForeignTarget, Tokenizer, lexical_head
from big_retrieval.config.heads import Head
from big_retrieval.config.labels import PairLabels
from big_retrieval.config.loss import Contrastive, ForeignLoss, Loss
from big_retrieval.config.optimizer import Optimizer
from big_retrieval.config.registry import Plugin
from big_retrieval.config.sources import ForeignSource, Source
from big_retrieval.config.topologies import Topology, check_topology
from big_retrieval.config.towers import Tower
from big_retrieval.config.update_rules import UpdateRule, put_back, set_aside
from big_retrieval.errors import PluginNeeded, UserError


@dataclass(frozen=True)
class Mesh:
    """Devices along each axis; -1 takes all that the other axes leave."""

    data: int = -1  # rows of the batch
    fsdp: int = 1  # rows of the batch, and every parameter split along its width
    tensor: int = 1  # heads, MLP columns and vocabulary of every layer


@dataclass(frozen=True)
class Init:
    """Published or own weights that a tower starts from instead of random ones."""

    path: str = ""  # file, folder, or a name on the hub
    tower: str = ""  # of a checkpoint that has several; empty: the one that reads the same
    head: bool = True  # the head behind it, too, where the checkpoint has one of the kind
    fresh: tuple[str, ...] = ()  # our parameters (patterns such as ln_final/*) that it may lack
    skip: tuple[str, ...] = ()  # its parameters (patterns) that are not wanted


@dataclass(frozen=True)
class Config:
    """A run. `total_steps` wins over `total_examples`, that over `total_epochs`."""

    seed: int = 0
    total_steps: int | None = None
    total_examples: int | None = None
    total_epochs: float | None = None
    stop_after: int | None = None  # save and exit after this step, with the schedule unchanged
    batch_size: int = 256  # global
    microbatch: int | None = None  # rows of it that are encoded at a time; same loss and gradient
    log_every: int = 10
    eval_every: int = 0  # steps; 0: at the end only
    checkpoint_every: int = 1000
    hang_after: float = 900.0  # seconds without a step, after which a run ends itself; 0: never
    report: bool = True  # write report.html at the end
    best_metric: str = ""  # its best checkpoint is kept besides the newest two
    best_mode: Literal["max", "min"] = "max"
    dtype: Literal["float32", "bfloat16"] = "bfloat16"  # of the towers' computations
    mesh: Mesh = field(default_factory=Mesh)
    fields: dict[str, Field] = field(default_factory=dict)
    towers: dict[str, Tower] = field(default_factory=dict)
    # by tower; "model": all of them, and the temperature of the losses
    init: dict[str, Init] = field(default_factory=dict)
    topology: str = "sphere"  # the type of a topology: how embeddings are scored
    labels: PairLabels = field(default_factory=PairLabels)
    losses: dict[str, Loss] = field(default_factory=lambda: {"main": Contrastive()})  # added up
    optimizer: Optimizer = field(default_factory=Optimizer)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    data: Source = field(default_factory=Scenes)
    negatives: HardNegatives = field(default_factory=HardNegatives)
    loader: Loader = field(default_factory=Loader)
    evals: dict[str, Evaluator] = field(default_factory=dict)
    # <kind>/<type> of parts from a user's own files -> the file; found by itself
    plugins: dict[str, Plugin] = field(default_factory=dict)

    def side(self, side: str) -> tuple[str, ...]:
        """The names of the fields of a side: "query", "document" or "target"."""
        return tuple(name for name, field in self.fields.items() if field.side == side)

    @property
    def encoded(self) -> dict[str, Field]:
        """The fields of queries and documents: all but targets, which no tower reads."""
        return {name: each for name, each in self.fields.items() if each.side != "target"}

    def topology_of(self, *fields: str) -> str:
        """By which topology embeddings of these fields are scored: lexical ones by products."""
        return "inner" if fields and is_lexical(self, *fields) else self.topology


# What a resumed run may change: nothing in here moves a parameter's trajectory. "*" is one name.
FREE_ON_RESUME = (
    "log_every", "eval_every", "checkpoint_every", "stop_after", "best_metric", "best_mode", "mesh",
    "microbatch", "losses.*.exchange", "losses.*.block", "loader.threads", "loader.workers",
    "loader.prefetch", "loader.max_damaged", "evals", "hang_after", "report",
    "plugins.evaluator", "plugins.*.*.file", "plugins.*.*.module",
)  # fmt: skip


def free_on_resume(key: str) -> bool:
    """Whether a key, e.g. config.mesh.data, may differ when a run goes on."""
    names = key.replace("/", ".").split(".")[1:]
    wanted = (free.split(".") for free in FREE_ON_RESUME)
    return any(
        len(free) <= len(names) and all(map(fnmatch.fnmatchcase, names, free)) for free in wanted
    )


def is_lexical(config: Config, *names: str) -> bool:
    """Whether these fields, or where none is named all, have lexical heads."""
    return all(lexical_head(config.fields, name) for name in names or config.encoded)


def negatives_field(config: Config) -> str:
    """The document field that `config.negatives` are read like; "" where there are none."""
    if not config.negatives.count:
        return ""
    documents = [name for name, field in config.fields.items() if field.side == "document"]
    return config.negatives.field or documents[0]


def load(raw: Any) -> Config:
    """The typed form of a ConfigDict.

    Raises:
      UserError: an unknown or lost key or a wrong type, named by its path.
    """
    config = schema.parse(Config, raw)
    for sentence in check_topology(config.topology, "config.topology"):
        raise UserError(sentence)
    known = {cls.type: cls for cls in Topology.registered()}
    own = {config.topology, *(getattr(x, "topology", "") for x in config.losses.values())}
    topologies = (known[name]() for name in sorted(own & known.keys()))
    return dataclasses.replace(config, plugins=registry.plugins(config, *topologies))


def load_saved(raw: Any) -> Config:
    """The typed form of a saved config.json; keys that came later get their defaults.

    A source, a loss, an evaluator, an update rule or a target whose file is not imported is kept as
    it is (`ForeignLoss` and so on): it stops nobody who only uses the model.

    Raises:
      UserError: an unknown key or a wrong type, named by its path; a part of the model whose file
        is not imported.
    """
    saved = schema.complete(Config, raw, functools.partial(_foreign_source, raw))
    kept: dict[tuple[str, str], Any] = {}
    for key, name, inner, group, plugin in list(_foreign(saved)):
        if key == "evals":
            kept[key, name] = ForeignEvaluator(saved_form=group, plugin=plugin)
        elif key == "losses":
            kept[key, name] = ForeignLoss(saved_form=saved[key][name], plugin=plugin)
        elif key == "fields" and saved[key][name].get("side") == "target":
            kept[key, name] = ForeignTarget(saved_form=saved[key][name], plugin=plugin)
        else:
            raise PluginNeeded(_needed(f"config.{key}.{name}{inner}", group, plugin))
    _check_topology(saved)
    for key, name in kept:
        saved[key] = {each: group for each, group in saved[key].items() if each != name}
    rules: dict[str, Any] = {}
    if isinstance(saved, dict):
        known = schema.named(UpdateRule.registered())
        saved["optimizer"] = optimizer = copy.deepcopy(saved.get("optimizer"))
        rules = set_aside(optimizer, known, saved.get("plugins"))
    config = schema.parse(Config, saved)
    if rules:
        optimizer = put_back(config.optimizer, rules, config.plugins)
        config = dataclasses.replace(config, optimizer=optimizer)
    for (key, name), part in kept.items():
        getattr(config, key)[name] = part
    return config


# Where parts are that may be a user's own: a group of named ones, perhaps a key of each of them.
_PLACES = (("evals", "", Evaluator), ("losses", "", Loss), ("towers", "", Tower))
_PLACES += (("fields", "", Field), ("fields", ".head", Head))


def _foreign_source(saved: Any, kind: Any, group: Any) -> Any:
    """A source of a user's own that is not known here, kept as it is; other groups unchanged."""
    listed = saved.get("plugins")
    part = f"{Source.kind}/{group.get('type')}"
    if kind is not Source or not isinstance(listed, dict) or part not in listed:
        return group
    return ForeignSource(group, schema.parse(Plugin, listed[part], f"config.plugins.{part}"))


def _foreign(saved: Any) -> Iterator[tuple[str, str, str, dict[str, Any], Plugin]]:
    """Parts of a saved configuration whose type is listed as a user's own and not known here."""
    listed: Any = saved.get("plugins") if isinstance(saved, dict) else None
    for key, inner, base in _PLACES if isinstance(listed, dict) else ():
        groups: Any = saved.get(key)
        known = {f"{base.kind}/{name}" for name in schema.named(base.registered())}
        for name, outer in groups.items() if isinstance(groups, dict) else ():
            group: Any = outer.get(inner[1:]) if inner and isinstance(outer, dict) else outer
            part = _unknown(group, base.kind, listed.keys() - known)
            if part:
                plugin = schema.parse(Plugin, listed[part], f"config.plugins.{part}")
                yield key, name, inner, group, plugin


def _unknown(group: Any, kind: str, unknown: AbstractSet[str]) -> str:
    """The first part of a kind in a group, or inside of it, that is one of the unknown; or ""."""
    if not isinstance(group, dict):
        return ""
    mine = f"{kind}/{group.get('type')}"
    inside = (_unknown(each, kind, unknown) for each in group.values())
    return mine if mine in unknown else next(filter(None, inside), "")


def _check_topology(saved: Any) -> None:
    """Raises where a saved topology is a user's own and not known here."""
    name = saved.get("topology") if isinstance(saved, dict) else None
    listed = saved.get("plugins") if isinstance(saved, dict) else None
    part = f"topology/{name}"
    known = {f"topology/{cls.type}" for cls in Topology.registered()}
    if isinstance(listed, dict) and part in listed.keys() - known:
        plugin = schema.parse(Plugin, listed[part], f"config.plugins.{part}")
        raise PluginNeeded(_needed("config.topology", {"type": name}, plugin))


def _needed(path: str, group: Mapping[str, Any], plugin: Plugin) -> str:
    """The sentence for a part of the model whose file is not imported."""
    where = plugin.file or f"the module {plugin.module or '(unknown)'}"
    return (
        f"{path} is of the type {group.get('type')!r}, which {where} defines: give this file as "
        "--plugins=FILE, or in Python as load(..., plugins=[FILE])."
    )
