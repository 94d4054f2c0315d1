"""Runs `reference_encoder` with the Python that has the target's library."""

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
from big_retrieval.exporting import reference_encoder
from big_retrieval.io.manifest import to_json
from big_retrieval.runtime.processes import format_exit_status

SECONDS = 1800.0  # maximum for one export


@dataclass(frozen=True)
class Job:
    """Inputs to encode with an export."""

    folder: Path
    request: Mapping[str, Any]  # `request` of the certificate
    inputs: Mapping[str, np.ndarray]  # field -> texts [n], or images uint8 [n, S, S, 3]


@dataclass(frozen=True)
class Answer:
    """Result of a job."""

    embeddings: Mapping[str, np.ndarray] = field(default_factory=dict)  # field -> float32 [n, N]
    versions: Mapping[str, str] = field(default_factory=dict)  # of Python and the library
    problem: str = ""  # empty if there are embeddings
    # True if the environment caused the problem (the library cannot be imported, or the process
    # ended early), False if the folder did.
    missing: bool = False


def ask(jobs: Sequence[Job], python: str) -> list[Answer]:
    """Runs jobs in one process of another Python, see `interpreter`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # A copy, since Python looks for modules in the script's folder first.
        script = shutil.copy(reference_encoder.__file__, folder)
        entries = []
        for index, job in enumerate(jobs):
            files = {"inputs": f"inputs{index}.npz", "outputs": f"outputs{index}.npz"}
            inputs: Any = job.inputs
            np.savez(folder / files["inputs"], **inputs)
            entries.append(
                {"folder": str(job.folder.resolve()), "request": dict(job.request), **files}
            )
        (folder / "jobs.json").write_bytes(to_json(entries))
        failure = _run(python, Path(script), SECONDS * len(jobs))
        return [_answer(folder / entry["outputs"], python, failure) for entry in entries]


def _run(python: str, script: Path, seconds: float) -> Answer:
    """Runs the process; returns the answer for jobs that it does not finish."""
    variables = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    # transformers copies the modules of folders there.
    variables["HF_MODULES_CACHE"] = str(script.parent / "modules")
    try:
        completed = subprocess.run(
            [python, script.name, "jobs.json"], cwd=script.parent, env={**os.environ, **variables},
            capture_output=True, text=True, errors="replace", timeout=seconds, check=False,
        )  # fmt: skip
    except OSError as error:
        return Answer(problem=f"{python} cannot be started ({error.strerror})", missing=True)
    except subprocess.TimeoutExpired:
        return Answer(problem=f"{python} took more than {seconds:.0f} s", missing=True)
    last = (completed.stderr.strip().splitlines() or ["no message"])[-1]
    status = format_exit_status(completed.returncode)
    return Answer(problem=f"{python} {status} before it answered ({last[:300]})", missing=True)


def _answer(outputs: Path, python: str, failure: Answer) -> Answer:
    """Reads the result of one job."""
    file = outputs.with_name(f"{outputs.name}.json")
    if not file.is_file():
        return failure
    answer = json.loads(file.read_text())
    if reason := answer.get("problem"):
        text, missing = " ".join(reason.split())[:300], bool(answer.get("missing"))
        cause = "cannot import the target library" if missing else "could not use the folder"
        return Answer(problem=f"{python} {cause} ({text})", missing=missing)
    with np.load(outputs, allow_pickle=False) as arrays:
        return Answer({name: arrays[name] for name in arrays.files}, answer["versions"])


def interpreter(python: str) -> str:
    """Returns the absolute path of the program of `--python`; of this Python if empty."""
    program = shutil.which(python or sys.executable)
    if program is None:
        raise UserError(
            f"Cannot start --python={python}. Give the interpreter of an environment that has the "
            "target library."
        )
    return os.path.abspath(program)  # keeps the links of environments
