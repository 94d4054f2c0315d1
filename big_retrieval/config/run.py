"""Root of the configuration, its typed form, and the keys that a resumed run may change."""

import dataclasses
import fnmatch
import functools
from dataclasses import dataclass, field
from typing import Any, Literal

from big_retrieval.config import registry, schema
from big_retrieval.config.data import HardNegatives, Loader
from big_retrieval.config.evals import Evaluator
from big_retrieval.config.fields import Field, Tokenizer, lexical_head
from big_retrieval.config.foreign import Foreign, make_foreign
from big_retrieval.config.labels import PairLabels
from big_retrieval.config.loss import Loss
from big_retrieval.config.optimizer import Optimizer
from big_retrieval.config.ranges import AtLeast0, AtLeast1, NotNegative, Positive, Seed, Steps
from big_retrieval.config.registry import Plugin
from big_retrieval.config.sources import Source
from big_retrieval.config.topologies import Topology, TopologyKey, topology_key
from big_retrieval.config.towers import Tower
from big_retrieval.config.trackers import Tracker


@dataclass(frozen=True)
class Mesh:
    """Devices along each axis; -1 takes the remaining devices."""

    data: int = -1  # devices that split the batch; -1 for all remaining devices
    fsdp: int = 1  # devices that split the batch, and the width of every parameter
    tensor: int = 1  # devices that split heads, MLP columns and vocabulary


@dataclass(frozen=True)
class Profile:
    """Steps whose trace is written to the folder profile of the run folder."""

    first: AtLeast0 = 0  # first traced step; 0 disables
    last: AtLeast0 = 0  # last traced step; 0 traces five steps


@dataclass(frozen=True)
class Init:
    """File with the initial weights of a tower."""

    path: str = ""  # file, folder, or a name on the hub
    tower: str = ""  # name of the checkpoint's tower; empty for the same modality
    head: bool = True  # also load the head, if the checkpoint has one of the same kind
    fresh: tuple[str, ...] = ()  # parameters (patterns such as ln_final/*) that the file may lack
    skip: tuple[str, ...] = ()  # parameters of the file (patterns) to leave out
    first_layers: bool = False  # if the file has more layers than the tower, load the first ones


@dataclass(frozen=True)
class Config:
    """Settings of a run. `total_steps` overrides `total_examples` and `total_epochs`."""

    seed: Seed = 0
    total_steps: Steps | None = None
    total_examples: AtLeast1 | None = None
    total_epochs: Positive | None = None
    stop_after: Steps | None = None  # save and exit after this step, with the schedule unchanged
    batch_size: Steps = 256  # rows of the global batch
    # rows of the batch that are encoded at a time; same loss and gradient
    microbatch: AtLeast1 | None = None
    log_every: Steps = 10
    eval_every: AtLeast0 = 0  # steps between evaluations; 0 evaluates only at the end
    eval_every_epochs: NotNegative = 0.0  # epochs between further evaluations; 0 disables
    checkpoint_every: Steps = 1000
    checkpoint_every_epochs: NotNegative = 0.0  # epochs between further checkpoints; 0 disables
    hang_after: NotNegative = 900.0  # seconds without progress before the run ends; 0 disables
    report: bool = True  # write report.html at the end
    # where curves go in addition to the run folder's metrics.jsonl
    trackers: dict[str, Tracker] = field(
        default_factory=lambda: {"tensorboard": registry.default("tracker", "tensorboard")()}
    )
    profile: Profile = field(default_factory=Profile)
    best_metric: str = ""  # metric whose best checkpoint is kept, too; empty for none
    best_mode: Literal["max", "min"] = "max"
    # checkpoint of the final evaluation, results.json and the report
    final_weights: Literal["last", "best"] = "last"
    dtype: Literal["float32", "bfloat16"] = "bfloat16"  # type of the towers' computations
    mesh: Mesh = field(default_factory=Mesh)
    towers: dict[str, Tower] = field(default_factory=dict)
    fields: dict[str, Field] = field(default_factory=dict)
    # initial weights by tower; "model" for all towers and the logit scale of the losses
    init: dict[str, Init] = field(default_factory=dict)
    # score of embeddings: the type of a topology, or the group of its keys if it has some
    topology: TopologyKey = "sphere"
    labels: PairLabels = field(default_factory=PairLabels)
    losses: dict[str, Loss] = field(  # losses, added up with their weights
        default_factory=lambda: {"main": registry.default("loss", "contrastive")()}
    )
    optimizer: Optimizer = field(default_factory=Optimizer)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    data: Source = field(default_factory=registry.default("source", "scenes"))
    negatives: HardNegatives = field(default_factory=HardNegatives)
    loader: Loader = field(default_factory=Loader)
    evals: dict[str, Evaluator] = field(default_factory=dict)
    # <kind>/<type> of users' parts -> their file; filled in automatically
    plugins: dict[str, Plugin] = field(default_factory=dict)

    def side(self, side: str, modality: str = "") -> tuple[str, ...]:
        """Returns the names of the fields of a side ("query", "document" or "target")."""
        of_side = ((name, field) for name, field in self.fields.items() if field.side == side)
        return tuple(name for name, field in of_side if modality in ("", field.modality))

    @property
    def encoded(self) -> dict[str, Field]:
        """The fields of queries and documents, without targets, which no tower reads."""
        return {name: field for name, field in self.fields.items() if field.side != "target"}

    def towers_and_heads(self) -> dict[str, Any]:
        """Returns all towers and heads by their paths, such as `config.fields.text.head`."""
        parts: dict[str, Any] = {f"config.towers.{name}": x for name, x in self.towers.items()}
        return parts | {f"config.fields.{name}.head": x.head for name, x in self.encoded.items()}

    @property
    def topology_type(self) -> str:
        """The type of the topology, with or without keys."""
        return self.topology if isinstance(self.topology, str) else self.topology.type

    def spheres(self) -> int:
        """Returns M, the largest number of sub-spheres of an embedding; oblique scores sum M."""
        heads = {name: field.head for name, field in self.encoded.items()}
        return max((x.embedding_shape(self, name, 0)[0] for name, x in heads.items()), default=1)

    def topology_of(self, *fields: str) -> TopologyKey:
        """Returns the topology that scores these fields: inner products if all are lexical."""
        return "inner" if fields and is_lexical(self, *fields) else self.topology


# Keys that a resumed run may change, as they do not change the parameters. "*" is one name.
FREE_ON_RESUME = (
    "log_every", "eval_every", "eval_every_epochs", "checkpoint_every", "checkpoint_every_epochs",
    "stop_after", "best_metric", "best_mode", "final_weights", "mesh", "microbatch",
    "losses.*.exchange", "losses.*.block", "loader.threads", "loader.workers", "loader.prefetch",
    "loader.max_damaged", "evals", "hang_after", "report", "trackers", "profile",
    "plugins.evaluator", "plugins.tracker", "plugins.*.*.file", "plugins.*.*.module",
)  # fmt: skip


def free_on_resume(key: str) -> bool:
    """Returns True if a key, e.g. config.mesh.data, may differ when a run resumes."""
    names = key.replace("/", ".").split(".")[1:]
    patterns = (free.split(".") for free in FREE_ON_RESUME)
    return any(
        len(pattern) <= len(names) and all(map(fnmatch.fnmatchcase, names, pattern))
        for pattern in patterns
    )


def is_lexical(config: Config, *names: str) -> bool:
    """Returns True if these fields have lexical heads; without names, all encoded fields."""
    return all(lexical_head(config.fields, name) for name in names or config.encoded)


def negatives_field(config: Config) -> str:
    """Returns the document field that reads hard negatives; "" without hard negatives."""
    if not config.negatives.count:
        return ""
    return config.negatives.field or config.side("document")[0]


def load(raw: Any) -> Config:
    """Returns the typed form of a ConfigDict; a UserError names the path of a wrong key."""
    config = _typed(raw)
    types = [config.topology, *(getattr(loss, "topology", "") for loss in config.losses.values())]
    topologies = [cls() for cls in Topology.registered() if cls.type in types]
    return dataclasses.replace(config, plugins=registry.plugins(config, *topologies))


def load_saved(raw: Any) -> Config:
    """Returns the typed form of a saved config.json; missing keys get their defaults.

    User-defined sources, losses, evaluators, update rules, trackers and targets become a
    `foreign.Foreign` if their file is not imported: the model works without them. Other
    user-defined parts raise PluginNeeded.
    """
    return _typed(raw, functools.partial(_foreign, raw))


def _typed(raw: Any, unknown: schema.Unknown = None) -> Config:
    config = schema.parse(Config, raw, unknown=unknown)
    return dataclasses.replace(config, topology=topology_key(config.topology))


def _foreign(raw: Any, kind: Any, group: Any, path: str) -> Foreign | None:
    """Returns a `Foreign` for a user's part whose file is not imported, None for other groups."""
    listed, tag = raw.get("plugins"), f"{kind.kind}/{group.get('type')}"
    if not isinstance(listed, dict) or tag not in listed:
        return None
    plugin = schema.parse(Plugin, listed[tag], f"config.plugins.{tag}")
    foreign = make_foreign(kind, group, plugin, path)
    is_target = kind.kind == "field" and group.get("side") == "target"
    if kind.kind in ("field", "head", "topology", "tower") and not is_target:
        foreign.work()
    return foreign
