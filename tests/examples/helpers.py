"""What the tests of examples share: running them from another folder, and importing them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.config import registry
from tests.helpers import ROOT, in_process, results

SMALL = [
    *["--config.batch_size=16", "--config.data.count=100", "--config.report=False"],
    *["--config.evals.test.data.count=16", "--config.evals.colours.data.count=16"],
    "--config.towers.image.depth=1",
]
SHALLOW = "--config.towers.text.depth=1"  # of a text tower that has layers


def example(name: str) -> Any:
    """examples/<name>.py as a module; its parts are registered once."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def copied(name: str, folder: Path, tag: str) -> Path:
    """A copy of an example in another folder, its part under another tag: own_<tag>."""
    given, own = f'Literal["{tag}"] = "{tag}"', f'Literal["own_{tag}"] = "own_{tag}"'
    body = (ROOT / "examples" / f"{name}.py").read_text()
    assert given in body
    copy = folder / f"own_{name}.py"
    copy.write_text(body.replace(given, own))
    return copy


def ran(command: str, *args: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """The result of `in_process`, after a check of its exit code."""
    done = in_process(command, *args)
    assert done.returncode == status, done.stderr
    return done


def trained(config: Path, workdir: Path, *flags: str, steps: int = 2, status: int = 0) -> Any:
    """A short run of a config file with `:runlocal`."""
    return ran(
        "main", f"--config={config}:runlocal", f"--workdir={workdir}",
        f"--config.total_steps={steps}", *SMALL, *flags, status=status,
    )  # fmt: skip


def without_own_parts(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> None:
    """Forgets parts whose type begins with own_, as in a process that has not imported them."""
    for kind in kinds:
        known = {n: x for n, x in registry._parts[kind].items() if not n.startswith("own_")}
        monkeypatch.setitem(registry._parts, kind, known)


def assert_evaluated_alike(run: Path, expected: Path, prefix: str = "retrieval/") -> None:
    """The `evaluation.json` of a run has the metrics of a run's results."""
    found = json.loads((run / "evaluation.json").read_text())
    for name, value in results(expected).items():
        if name.startswith(prefix):
            assert found[name] == pytest.approx(value, rel=1e-5)
