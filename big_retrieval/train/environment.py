"""What a run ran on: environment.json of the run folder, an entry for each start."""

import json
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from big_retrieval.inference.fingerprint import versions
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.train.setup import TrainingRun

MOST_STARTS = 50  # that are kept, the newest ones


def record_start(run: TrainingRun, restored: int | None) -> None:
    """Adds this start of a run to environment.json, on the first process.

    Args:
      run: put together.
      restored: the step that it goes on from; None: from the beginning.
    """
    if jax.process_index() != 0:
        return
    path = run.workdir / "environment.json"
    starts = [*_earlier(path), {**describe(run), "resumed_from": restored}]
    write_bytes(path, to_json({"starts": starts[-MOST_STARTS:]}))


def describe(run: TrainingRun) -> dict[str, Any]:
    """Time, command, versions, devices, and what of the data and the model no config says."""
    mesh = run.parts.mesh
    return {
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "command": command(sys.argv),
        "versions": versions(),
        "platform": platform.platform(),
        "devices": mesh.size,
        "device": mesh.devices.flat[0].device_kind,
        "processes": jax.process_count(),
        "mesh": dict(mesh.shape),
        "parameters": dict(run.parts.parameters),
        "parameter_count": sum(run.parts.parameters.values()),
        "source": run.source.name,
        "records": len(run.source),
        "vocab_size": run.tokenizer.vocab_size,
        "total_steps": run.total_steps,
    }


def command(argv: list[str]) -> str:
    """The command line as it can be typed again."""
    if argv[0].startswith("big-retrieval "):
        return shlex.join([*argv[0].split(), *argv[1:]])
    program = Path(argv[0])
    if program.parent.name == "big_retrieval":
        return shlex.join(["python", "-m", f"big_retrieval.{program.stem}", *argv[1:]])
    return shlex.join(argv)


def _earlier(path: Path) -> list[Any]:
    """The entries that are there; none where the file is damaged."""
    try:
        found = json.loads(path.read_text())["starts"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return found if isinstance(found, list) else []
