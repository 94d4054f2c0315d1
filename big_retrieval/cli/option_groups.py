"""Options that several commands share."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from big_retrieval.cli.failures import owning
from big_retrieval.cli.options import Flag, Repeated
from big_retrieval.errors import UserError
from big_retrieval.runtime.locks import beside, in_folder

if TYPE_CHECKING:
    from big_retrieval.config import Config


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    # Lowest level of messages that are shown
    verbosity: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, kw_only=True)
class OutputOptions(CommonOptions):
    wait: bool = False  # Wait while another process writes to the same place

    def owning_file(self, path: Path | None, flag: str = "--out") -> AbstractContextManager[None]:
        """Returns a context that locks a file, or a folder that is renamed when complete."""
        return self._owning(path, beside, flag)

    def owning_folder(self, path: Path | None, flag: str = "--out") -> AbstractContextManager[None]:
        """Returns a context that locks a folder whose files are written one by one."""
        return self._owning(path, in_folder, flag)

    def _owning(
        self, path: Path | None, lock_of: Callable[[Path], Path], flag: str
    ) -> AbstractContextManager[None]:
        return nullcontext() if path is None else owning(lock_of(path), path, flag, wait=self.wait)


@dataclass(frozen=True, kw_only=True)
class PluginOptions(CommonOptions):
    plugins: Repeated = ()  # Python file that defines parts of the run


@dataclass(frozen=True, kw_only=True)
class ConfigOptions(OutputOptions, PluginOptions):
    config_source: ClassVar[str] = ""  # option from which the command builds a config instead

    # FILE.py or the name of a shipped config; with an argument: quickstart:runlocal
    config: str | None = None
    # Another value of a key of the config; --config=FILE --help lists the keys
    keys: Annotated[tuple[str, ...], Flag(keys="config")] = ()

    def __post_init__(self) -> None:
        source = self.config_source and getattr(self, self.config_source)
        if self.keys and self.config is None and not source:
            raise UserError(f"{self.keys[0]} needs --config. Add --config=FILE.")

    def load_config(self) -> "Config":
        """Returns the typed config with the keys of the command line."""
        from big_retrieval.cli.config_file import read_config

        return read_config(self)


@dataclass(frozen=True, kw_only=True)
class RunOptions(ConfigOptions):
    workdir: Path | None = None  # Run folder; runs/<config>-<arg> by default

    @property
    def run_folder(self) -> Path:
        """The folder of --workdir, or the default folder of --config."""
        return self.workdir or default_folder(self.config or "")


def default_folder(text: str) -> Path:
    """Returns runs/FILE-ARG for a config or sweep file and its argument, "FILE.py:ARG"."""
    file, _, arg = text.partition(":")
    arg = re.sub(r"[^A-Za-z0-9_.=-]+", "-", arg).strip("-")
    return Path("runs") / (f"{Path(file).stem}-{arg}" if arg else Path(file).stem)


@dataclass(frozen=True, kw_only=True)
class BeirOptions:
    beir: str = ""  # Folder of BEIR's data sets: adds them as evaluators, and their average
    # Data sets to add, such as scifact,fiqa; by default all
    beir_sets: Annotated[tuple[str, ...], Flag(needs="beir")] = ()

    def add_evaluators(self, config: "Config") -> "Config":
        """Returns a config with the evaluators of --beir."""
        from big_retrieval.cli.beir import with_beir

        try:
            return with_beir(config, self.beir, self.beir_sets) if self.beir else config
        except UserError as error:
            raise UserError(f"--beir: {error}") from None


@dataclass(frozen=True, kw_only=True)
class PretrainedOptions:
    tokenizer: str = ""  # Tokenizer of a third-party model that comes without one
    # Pooling of texts, if the model does not state it
    pool: Literal["first", "last", "mean"] | None = None
    head: Literal["lexical"] | None = None  # Keep the masked-language head, as a lexical head

    def model_flags(self) -> dict[str, Any]:
        """Returns the options as arguments of `import_model`."""
        return {"tokenizer": self.tokenizer, "pool": self.pool or "", "head": self.head or ""}
