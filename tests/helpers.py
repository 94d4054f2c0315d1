"""Small runs for tests: the quickstart's model, smaller still."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from big_retrieval import config as configs
from big_retrieval import recipe
from big_retrieval.config import Config

ROOT = Path(__file__).parent.parent


def raw_config(**changes: Any) -> recipe.Editable:
    """A tiny config as a ConfigDict; changes are dotted keys with __ for the dot."""
    from configs import quickstart

    c = quickstart.get_config("runlocal")
    c.unlock()
    c.total_steps, c.batch_size, c.log_every, c.checkpoint_every = 8, 16, 1, 3
    c.data.count = 100
    c.tokenizer.vocab_size = 128
    for tower in c.towers.values():
        tower.update(width=16, depth=1, heads=2, mlp=32, class_tokens=2)
    for field in c.fields.values():
        field.head.dim = 4
    c.fields.text.length = 20
    c.evals = {}
    for key, value in changes.items():
        node = c
        *path, last = key.split("__")
        for name in path:
            node = node[name]
        node[last] = value
    return c


def tiny(**changes: Any) -> Config:
    """The typed form of `raw_config`."""
    return configs.load(raw_config(**changes))


def rows(workdir: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl that hold a loss."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "loss" in row]


def losses(workdir: Path) -> dict[int, float]:
    """Step -> loss."""
    return {row["step"]: row["loss"] for row in rows(workdir)}


def results(workdir: Path) -> dict[str, Any]:
    """results.json."""
    return json.loads((workdir / "results.json").read_text())


def environment(devices: int = 1, **extra: str) -> dict[str, str]:
    """The environment of a subprocess with so many virtual devices."""
    flag = f"--xla_force_host_platform_device_count={devices}"
    return {**os.environ, "XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu", "NPROC": "16", **extra}


def command(module: str, *flags: str) -> list[str]:
    """`python -m big_retrieval.<module>` with flags."""
    return [sys.executable, "-m", f"big_retrieval.{module}", *flags]


def start(args: list[str], **env: str) -> subprocess.Popen[str]:
    """Starts a process whose output can be read."""
    return subprocess.Popen(
        args, cwd=ROOT, env=environment(**env) if "XLA_FLAGS" not in env else env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
