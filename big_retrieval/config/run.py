"""A run: the root of the tree, what may change on resuming it, and its typed form."""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from big_retrieval import schema
from big_retrieval.config import registry
from big_retrieval.config.data import HardNegatives, Loader, Scenes, Source
from big_retrieval.config.evals import Evaluator, ForeignEvaluator
from big_retrieval.config.fields import ImageField, Lexical, TextField, Tokenizer
from big_retrieval.config.loss import Contrastive, PairLabels, Sigmoid, Temperature, Vdr
from big_retrieval.config.optimizer import Optimizer
from big_retrieval.config.registry import Plugin
from big_retrieval.config.towers import Bert, ResNet, ViT
from big_retrieval.config.update_rules import UpdateRule, put_back, set_aside


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
    fields: dict[str, ImageField | TextField] = field(default_factory=dict)
    towers: dict[str, ViT | Bert | ResNet] = field(default_factory=dict)
    init: dict[str, Init] = field(default_factory=dict)  # by tower; "model": all, and temperature
    topology: Literal["sphere", "euclidean", "oblique", "geodesic", "inner"] = "sphere"
    temperature: Temperature = field(default_factory=Temperature)
    labels: PairLabels = field(default_factory=PairLabels)
    loss: Contrastive | Sigmoid | Vdr = field(default_factory=Contrastive)
    optimizer: Optimizer = field(default_factory=Optimizer)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    data: Source = field(default_factory=Scenes)
    negatives: HardNegatives = field(default_factory=HardNegatives)
    loader: Loader = field(default_factory=Loader)
    evals: dict[str, Evaluator] = field(default_factory=dict)
    # <kind>/<type> of parts from a user's own files -> the file; found by itself
    plugins: dict[str, Plugin] = field(default_factory=dict)


# What a resumed run may change: nothing in here moves a parameter's trajectory.
FREE_ON_RESUME = (
    "log_every", "eval_every", "checkpoint_every", "stop_after", "best_metric", "best_mode", "mesh",
    "microbatch", "loss.exchange", "loss.block", "loader.threads", "loader.workers",
    "loader.prefetch", "loader.max_damaged", "evals", "hang_after", "report",
    "plugins.evaluator",
)  # fmt: skip


def free_on_resume(key: str) -> bool:
    """Whether a key, e.g. config.mesh.data, may differ when a run goes on."""
    key = key.replace("/", ".")
    return any(f"{key}.".startswith(f"config.{free}.") for free in FREE_ON_RESUME)


def lexical_head(fields: Mapping[str, ImageField | TextField], name: str) -> Lexical | None:
    """The lexical head of a field; None: it has another. One that is shared is set in both."""
    head = fields[name].head
    return head if isinstance(head, Lexical) else None


def is_lexical(config: Config, *names: str) -> bool:
    """Whether these fields, or where none is named all, have lexical heads."""
    return all(lexical_head(config.fields, name) for name in names or config.fields)


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

    An evaluator whose file is not imported becomes a `ForeignEvaluator`, an update rule a
    `ForeignRule`: they stop nobody who only uses the model.

    Raises:
      UserError: an unknown key or a wrong type, named by its path.
    """
    saved = schema.complete(Config, raw)
    foreign = _foreign_evaluators(saved)
    if foreign:
        saved["evals"] = {key: x for key, x in saved["evals"].items() if key not in foreign}
    rules: dict[str, Any] = {}
    if isinstance(saved, dict):
        known = schema.named(UpdateRule.registered())
        saved["optimizer"] = optimizer = copy.deepcopy(saved.get("optimizer"))
        rules = set_aside(optimizer, known, saved.get("plugins"))
    config = schema.parse(Config, saved)
    if rules:
        optimizer = put_back(config.optimizer, rules, config.plugins)
        config = dataclasses.replace(config, optimizer=optimizer)
    for name, group in foreign.items():
        config.evals[name] = ForeignEvaluator(group, config.plugins[f"evaluator/{group['type']}"])
    return config


def _foreign_evaluators(saved: Any) -> dict[str, Any]:
    """Those of a saved configuration whose type is listed as a user's own and not known here."""
    groups = saved if isinstance(saved, dict) else {}
    evals, listed = groups.get("evals"), groups.get("plugins")
    if not isinstance(evals, dict) or not isinstance(listed, dict):
        return {}
    known = {f"evaluator/{name}" for name in schema.named(Evaluator.registered())}
    return {
        name: group
        for name, group in evals.items()
        if isinstance(group, dict) and f"evaluator/{group.get('type')}" in listed.keys() - known
    }
