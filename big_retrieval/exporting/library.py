"""Embeddings by another library, which runs in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.exporting import theirs
from big_retrieval.io.manifest import to_json
from big_retrieval.runtime import processes

SECONDS = 1800.0  # that one export may take the other process


@dataclass(frozen=True)
class Job:
    """What the library is asked to encode.

    Attributes:
      folder: of an export.
      request: of its certificate.
      inputs: field -> texts [n], or images uint8 [n, S, S, 3].
    """

    folder: Path
    request: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Answer:
    """What became of a job.

    Attributes:
      embeddings: field -> float32 [n, N].
      versions: of Python and of the distributions that were used.
      problem: why there are no embeddings; "": there are.
      missing: True if the environment caused the problem, so that nothing is known of the folder:
        the library cannot be imported, or the process did not get to its end.
    """

    embeddings: Mapping[str, np.ndarray] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    missing: bool = False


def ask(jobs: Sequence[Job], python: str) -> list[Answer]:
    """Starts the other process, which encodes what all jobs say.

    Args:
      jobs: one or several.
      python: of `interpreter`.
    """
    if not jobs:
        return []
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        # A copy, since the script's folder is where Python looks for modules first.
        shutil.copy(theirs.__file__, here / "theirs.py")
        told = []
        for number, job in enumerate(jobs):
            arrays: Any = job.inputs
            np.savez(here / f"inputs{number}.npz", **arrays)
            told.append(
                {
                    "folder": str(job.folder.resolve()),
                    "request": dict(job.request),
                    "inputs": f"inputs{number}.npz",
                    "outputs": f"outputs{number}.npz",
                }
            )
        (here / "jobs.json").write_bytes(to_json(told))
        failure = _start(python, here, SECONDS * len(jobs))
        return [_answer(here / each["outputs"], python, failure) for each in told]


def _start(python: str, here: Path, seconds: float) -> Answer:
    """Runs the process to its end; gives the answer of jobs that it has not got to."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    # Where transformers copies the modules of folders to.
    offline["HF_MODULES_CACHE"] = str(here / "modules")
    try:
        done = subprocess.run(
            [python, "theirs.py", "jobs.json"], cwd=here, env={**os.environ, **offline},
            capture_output=True, text=True, errors="replace", timeout=seconds, check=False,
        )  # fmt: skip
    except OSError as problem:
        return Answer(problem=f"{python} cannot be started ({problem.strerror})", missing=True)
    except subprocess.TimeoutExpired:
        return Answer(problem=f"{python} took more than {seconds:.0f} s", missing=True)
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    status = processes.format_exit_status(done.returncode)
    return Answer(problem=f"{python} {status} before it answered ({last[:300]})", missing=True)


def _answer(outputs: Path, python: str, failure: Answer) -> Answer:
    """What the process has written of one job."""
    said = outputs.with_name(f"{outputs.name}.json")
    if not said.is_file():
        return failure
    told = json.loads(said.read_text())
    if problem := told.get("problem"):
        text, missing = " ".join(problem.split())[:300], bool(told.get("missing"))
        what = "cannot import the target library" if missing else "could not use the folder"
        return Answer(problem=f"{python} {what} ({text})", missing=missing)
    with np.load(outputs, allow_pickle=False) as file:
        embeddings = {name: file[name] for name in file.files}
    return Answer(embeddings, told["versions"])


def interpreter(python: str) -> str:
    """The program that `--python` names, from any folder; this Python where it is "".

    Raises:
      UserError: there is no such program.
    """
    found = shutil.which(python or sys.executable)
    if found is None:
        raise UserError(
            f"--python {python} cannot be started: give the interpreter of an environment that has "
            "the target library."
        )
    return os.path.abspath(found)  # links, such as those of environments, stay links
