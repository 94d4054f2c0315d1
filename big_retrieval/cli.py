"""The command line: flags in, one sentence out when something is wrong.

ml_collections reads the config file and the overrides. Its errors, and those of the config file,
become a `UserError` here; everything else that goes wrong is a bug and keeps its traceback.
"""

import difflib
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags, logging
from ml_collections import config_flags

from big_retrieval import config as configs
from big_retrieval.config import Config
from big_retrieval.errors import UserError

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "Config file with an optional argument: configs/quickstart.py:runlocal"
)
WORKDIR = flags.DEFINE_string("workdir", None, "Run folder; runs/<config>-<arg> by default")
LENGTHS = ("total_steps", "total_examples", "total_epochs")


def run(main: Callable[[], Any]) -> None:
    """Parses the command line and calls `main`; exits with status 2 on a user's mistake."""
    prepare_environment()
    try:
        app.run(lambda argv: _guarded(main), flags_parser=parse)
    except UserError as problem:
        fail(problem)


def fail(problem: Exception) -> None:
    """Prints the sentence and exits with status 2."""
    print(f"error: {problem}", file=sys.stderr, flush=True)
    # Other threads (data, checkpoint) may still run; nothing of theirs is worth waiting for.
    sys.stdout.flush()
    os._exit(2)


def prepare_environment() -> None:
    """Settings that must be there before jax starts its backend."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        os.environ.setdefault("NPROC", "16")  # virtual devices deadlock on few cores without it


def _guarded(main: Callable[[], Any]) -> None:
    if not any(re.match(r"--?(v|verbosity)\b", arg) for arg in sys.argv[1:]):
        logging.set_verbosity(logging.WARNING)  # libraries report every file that they write
    try:
        main()
    except UserError as problem:
        fail(problem)
    except OSError as problem:
        if problem.filename is None:
            raise
        fail(UserError(f"{problem.filename}: {problem.strerror}."))
    except Exception as problem:
        if "RESOURCE_EXHAUSTED" not in str(problem):
            raise
        first = str(problem).strip().splitlines()[0]
        fail(
            UserError(
                f"out of device memory ({first}): lower config.batch_size, set "
                "config.towers.<tower>.remat=block, or spread parameters with config.mesh.fsdp."
            )
        )


def parse(argv: Sequence[str]) -> list[str]:
    """Parses flags; every mistake in them or in the config file becomes one sentence.

    Raises:
      UserError: names the flag, key or file.
    """
    _check_file(argv)
    try:
        rest = flags.FLAGS(list(argv))
    except UserError:
        raise
    except Exception as problem:
        raise UserError(_sentence(problem, argv)) from problem
    if len(rest) > 1:
        raise UserError(f"{rest[1]!r} is no flag; keys are set as --config.key=value.")
    return rest


def _check_file(argv: Sequence[str]) -> None:
    """A clear word about --config before ml_collections runs the file."""
    values = [arg.split("=", 1)[1] for arg in argv if re.match(r"--?config=", arg)]
    values += [b for a, b in itertools.pairwise(argv) if re.fullmatch(r"--?config", a)]
    for value in values:
        path = Path(value.split(":", 1)[0])
        if not path.is_file():
            folder = path.parent if path.parent.is_dir() else Path("configs")
            near = difflib.get_close_matches(path.name, [p.name for p in folder.glob("*.py")], 1)
            hint = f"; did you mean {folder / near[0]}?" if near else "."
            raise UserError(f"--config: there is no file {path}{hint}")


def _sentence(problem: Exception, argv: Sequence[str]) -> str:
    """What went wrong while flags were parsed, from exceptions of absl and ml_collections."""
    text = str(problem).strip().replace("\n", " ")
    cause = problem
    while cause is not None and not isinstance(cause, UserError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, UserError):
        return str(cause)
    path = _override_in(problem, argv)
    if path is not None and isinstance(problem, AttributeError | KeyError):
        return f"--{path} is not a key of the configuration ({text.strip(chr(34))})."
    where = _line_in_config(problem)
    if where:
        return f"{where}: {type(problem).__name__}: {text}"
    if path is not None and isinstance(problem, TypeError | ValueError):
        return f"--{path}: {text}"
    return text or type(problem).__name__


def _override_in(problem: Exception, argv: Sequence[str]) -> str | None:
    """The override that a parsing error is about, found by the key that its message names."""
    for arg in argv:
        match = re.match(r"--?(?:no)?(config\.[^=]+)", arg)
        if match and any(f"'{key}'" in str(problem) or f'"{key}"' in str(problem)
                         for key in match[1].split(".")[1:]):  # fmt: skip
            return match[1]
    return None


def _line_in_config(problem: Exception) -> str | None:
    """File and line of a mistake inside the config file, if it happened there."""
    frames = traceback.extract_tb(problem.__traceback__)
    package = str(Path(__file__).parent)
    for frame in reversed(frames):
        theirs = not frame.filename.startswith(package) and "site-packages" not in frame.filename
        if theirs and (frame.name == "get_config" or "/configs/" in frame.filename):
            return f"{frame.filename}, line {frame.lineno}"
    if isinstance(problem, SyntaxError):
        return f"{problem.filename}, line {problem.lineno}"
    return None


def load_config() -> Config:
    """The typed configuration of this command line.

    A length set on the command line replaces the file's, whatever its kind.

    Raises:
      UserError: no --config, or something in it that does not belong there.
    """
    if CONFIG.value is None:
        raise UserError("--config is missing, e.g. --config=configs/quickstart.py.")
    raw = CONFIG.value
    given = [
        key for key in LENGTHS if key in config_flags.get_override_values(flags.FLAGS["config"])
    ]
    if given:
        with raw.unlocked():
            for key in LENGTHS:
                if key not in given or ("total_steps" in given and key != "total_steps"):
                    raw[key] = None
    return configs.load(raw)


def workdir() -> Path:
    """--workdir, or runs/<config>-<arg>."""
    if WORKDIR.value:
        return Path(WORKDIR.value)
    file, _, arg = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    arg = re.sub(r"[^A-Za-z0-9_.=-]+", "-", arg).strip("-")
    return Path("runs") / (f"{Path(file).stem}-{arg}" if arg else Path(file).stem)
