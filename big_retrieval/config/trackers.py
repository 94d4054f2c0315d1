"""Trackers, the parts of `config.trackers`: where the curves of a run go besides its folder."""

import dataclasses
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.registry import Part, Plugin, register, required
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.train.tracked_run import TrackedRun
    from big_retrieval.train.trackers import OpenTracker


class Tracker(Part):
    """The base of all trackers: what the rest of the code asks them.

    A subclass is a frozen dataclass with the key `type`, made known by `@register("tracker")`.

    Attributes:
      title: its name, for messages.
      closing: seconds that it has at the end of a run for the rest of the rows.
    """

    kind: ClassVar[str] = "tracker"
    named_by_type: ClassVar[bool] = True
    title: ClassVar[str] = "the tracker"
    closing: ClassVar[float] = 10.0

    def check(self, config: "Config", path: str) -> Iterator[str]:
        """What is wrong with its keys, or missing on this machine, a sentence each.

        Args:
          config: of the run.
          path: of this tracker, such as `config.trackers.wandb`.
        """
        del config, path
        yield from ()

    @required
    def open(self, run: "TrackedRun") -> "OpenTracker":
        """Opens the tracker; called in a thread of its own, so that it may take its time.

        Args:
          run: what the tracker may say of the run, and the id by which it finds it again.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ForeignTracker(Tracker):
    """A tracker of a saved run whose file is not imported: kept as it is, and never opened.

    Attributes:
      saved_form: its keys.
      plugin: where it was defined.
    """

    saved_form: Mapping[str, Any] = field(default_factory=dict)
    plugin: Plugin = field(default_factory=Plugin)

    def open(self, run: "TrackedRun") -> "OpenTracker":
        """Raises a UserError that names the file."""
        raise UserError(
            f"config.trackers.{run.entry} is of the type {self.saved_form.get('type')!r}, which "
            f"{self.plugin.where} defines: give this file as --plugins=FILE."
        )


@register("tracker")
@dataclass(frozen=True)
class TensorBoard(Tracker):
    """Files for TensorBoard, in the folder tensorboard of the run folder."""

    title: ClassVar[str] = "TensorBoard"
    type: Literal["tensorboard"] = "tensorboard"

    def open(self, run: "TrackedRun") -> "OpenTracker":
        from big_retrieval.train.trackers import EventFiles

        return EventFiles(run.folder / "tensorboard", run.first)


@register("tracker")
@dataclass(frozen=True)
class Wandb(Tracker):
    """Weights & Biases; its variables, such as WANDB_PROJECT, hold where a key is empty."""

    title: ClassVar[str] = "W&B"
    closing: ClassVar[float] = 30.0
    type: Literal["wandb"] = "wandb"
    project: str = ""  # empty: WANDB_PROJECT, or big_retrieval
    entity: str = ""  # user or team
    name: str = ""  # of the run; empty: that of the run folder
    group: str = ""
    tags: tuple[str, ...] = ()
    # offline: files in the folder wandb of the run folder, for `wandb sync`
    mode: Literal["", "online", "offline"] = ""  # empty: WANDB_MODE, or online

    def check(self, config: "Config", path: str) -> Iterator[str]:
        yield from _missing("wandb", path)
        mode = self.mode or os.environ.get("WANDB_MODE", "online")
        if mode == "online" and not _wandb_login():  # the library would ask on the terminal
            yield (
                f"{path}: nobody is logged in to W&B on this machine: run `wandb login`, or set "
                f"WANDB_API_KEY, or --{path}.mode=offline."
            )

    def open(self, run: "TrackedRun") -> "OpenTracker":
        from big_retrieval.train.wandb_tracker import WandbTracker

        return WandbTracker(self, run)


@register("tracker")
@dataclass(frozen=True)
class Mlflow(Tracker):
    """MLflow: a server, or a file on this machine."""

    title: ClassVar[str] = "MLflow"
    closing: ClassVar[float] = 30.0
    type: Literal["mlflow"] = "mlflow"
    # such as http://host:5000 or sqlite:////home/me/mlflow.db; empty: MLFLOW_TRACKING_URI, or
    # what MLflow takes, which is mlflow.db in the folder of the command
    uri: str = ""
    experiment: str = ""  # empty: MLFLOW_EXPERIMENT_NAME, or big_retrieval
    name: str = ""  # of the run; empty: that of the run folder

    def check(self, config: "Config", path: str) -> Iterator[str]:
        yield from _missing("mlflow", path, least=3)

    def open(self, run: "TrackedRun") -> "OpenTracker":
        from big_retrieval.train.mlflow_tracker import MlflowTracker

        return MlflowTracker(self, run)


def with_trackers(config: "Config", types: Sequence[str]) -> "Config":
    """A config with further trackers, with their defaults; those that it has stay as they are.

    Args:
      config: of the run.
      types: such as "wandb".

    Raises:
      UserError: there is no such tracker.
    """
    known = {cls.type: cls for cls in Tracker.registered()}
    found = dict(config.trackers)
    for name in types:
        if name not in known:
            raise UserError(f"--tracker: {name!r} is unknown; known: {', '.join(sorted(known))}.")
        if all(each.type != name for each in found.values()):
            found[name] = known[name]()
    return dataclasses.replace(config, trackers=found)


def _missing(package: str, path: str, least: int = 0) -> Iterator[str]:
    """A sentence where a package is not installed, or is older than a major version."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:  # a folder of this name, such as W&B's own
        yield (
            f"{path} needs the package {package}, which is not installed: pip install {package}."
        )
        return
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # such as of mlflow-skinny
        return
    if int(version.partition(".")[0]) < least:
        yield (
            f"{path} needs {package} {least} or later, and {version} is installed: "
            f"pip install -U '{package}>={least}'."
        )


def _wandb_login() -> bool:
    """Whether there is anything by which the library may find a login without asking."""
    names = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC")
    home = Path.home()
    files = (home / ".netrc", home / "_netrc", home / ".config/wandb/settings")
    return any(map(os.environ.get, names)) or any(file.exists() for file in files)
