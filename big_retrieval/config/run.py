"""A run: the root of the tree, what may change on resuming it, and its typed form."""

import dataclasses
import fnmatch
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from big_retrieval import schema
from big_retrieval.config import registry
from big_retrieval.config.data import HardNegatives, Loader, Scenes, Source
from big_retrieval.config.evals import Evaluator, ForeignEvaluator
from big_retrieval.config.fields import Field, ForeignTarget, Lexical, Tokenizer
from big_retrieval.config.labels import PairLabels
from big_retrieval.config.loss import Contrastive, ForeignLoss, Loss
from big_retrieval.config.optimizer import Optimizer
from big_retrieval.config.registry import Plugin
from big_retrieval.config.towers import Bert, ResNet, ViT
from big_retrieval.errors import UserError

Topology = Literal["sphere", "euclidean", "oblique", "geodesic", "inner"]
TOPOLOGIES: tuple[str, ...] = typing.get_args(Topology)


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
    towers: dict[str, ViT | Bert | ResNet] = field(default_factory=dict)
    # by tower; "model": all of them, and the temperature of the losses
    init: dict[str, Init] = field(default_factory=dict)
    topology: Topology = "sphere"
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


def lexical_head(fields: Mapping[str, Field], name: str) -> Lexical | None:
    """The lexical head of a field; None: it has another. One that is shared is set in both."""
    head = fields[name].head
    return head if isinstance(head, Lexical) else None


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
    return dataclasses.replace(config, plugins=registry.plugins(config))


def load_saved(raw: Any) -> Config:
    """The typed form of a saved config.json; keys that came later get their defaults.

    A loss, an evaluator or a target whose file is not imported is kept as it is (`ForeignLoss`,
    `ForeignEvaluator`, `ForeignTarget`): it stops nobody who only uses the model.

    Raises:
      UserError: an unknown key or a wrong type, named by its path; a part of the model whose file
        is not imported.
    """
    saved = schema.complete(Config, raw)
    found = {key: _foreign(saved, key, base) for key, base, _ in FOREIGN}
    for key, groups in found.items():
        for name, (group, plugin) in groups.items():
            if key == "fields" and group.get("side") != "target":
                raise UserError(_needed(f"config.fields.{name}", group, plugin))
            saved[key] = {n: x for n, x in saved[key].items() if n != name}
    config = schema.parse(Config, saved)
    for key, _, stands_for in FOREIGN:
        for name, (group, plugin) in found[key].items():
            getattr(config, key)[name] = stands_for(saved_form=group, plugin=plugin)
    return config


# Groups of parts of which one that is not imported may be kept as it is.
FOREIGN: tuple[tuple[str, Any, Any], ...] = (
    ("fields", Field, ForeignTarget),
    ("losses", Loss, ForeignLoss),
    ("evals", Evaluator, ForeignEvaluator),
)


def _foreign(saved: Any, key: str, base: Any) -> dict[str, tuple[dict[str, Any], Plugin]]:
    """Groups of a saved configuration with a user's own part that is not known here.

    Returns:
      Name -> the group, and the file of the part, which may be inside of the group.
    """
    groups = saved.get(key) if isinstance(saved, dict) else None
    listed = saved.get("plugins") if isinstance(saved, dict) else None
    if not isinstance(groups, dict) or not isinstance(listed, dict):
        return {}
    unknown = listed.keys() - {f"{base.kind}/{name}" for name in schema.named(base.registered())}

    def find(group: Any) -> str | None:
        if not isinstance(group, dict):
            return None
        mine = f"{base.kind}/{group.get('type')}"
        return mine if mine in unknown else next(filter(None, map(find, group.values())), None)

    found = {name: (group, find(group)) for name, group in groups.items()}
    return {
        name: (group, schema.parse(Plugin, listed[part], f"config.plugins.{part}"))
        for name, (group, part) in found.items()
        if part is not None
    }


def _needed(path: str, group: Mapping[str, Any], plugin: Plugin) -> str:
    """The sentence for a part of the model whose file is not imported."""
    where = plugin.file or f"the module {plugin.module or '(unknown)'}"
    return (
        f"{path} is of the type {group.get('type')!r}, which {where} defines: give this file as "
        "--plugins=FILE, or in Python as load(..., plugins=[FILE])."
    )
