"""Small runs for tests: the quickstart's model, smaller still."""

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

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


def lexical_texts(**head: Any) -> dict[str, Any]:
    """Changes of a tiny config: two text fields behind lexical heads, each with a tower.

    Args:
      **head: keys of the heads.
    """
    tower = {"width": 16, "depth": 1, "heads": 2, "mlp": 32, "pool": "none"}
    heads = {"transform": "gelu", "use_bias": True, **head}
    fields = {
        name: recipe.entry(
            configs.TextField(), side=name, tower=tower, length=20, head=configs.Lexical(**heads)
        )
        for name, tower in (("query", "text"), ("document", "other"))
    }
    towers = {name: recipe.entry(configs.Bert(), **tower) for name in ("text", "other")}
    return {"fields": fields, "towers": towers, "topology": "inner"}


def drawn(module: Any, *inputs: Any, seed: int = 0) -> Any:
    """Variables of a Linen module, random as if trained, without compiling its own initial values.

    Kernels keep the size of what they are applied to; biases are not 0 and scales not 1.
    """
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(seed)

    def draw(path: Any, leaf: Any) -> jax.Array:
        name, value = path[-1].key, rng.normal(size=leaf.shape)
        if name == "scale":
            value = 1 + 0.1 * value
        elif name == "kernel":
            value /= np.sqrt(leaf.shape[0])
        else:
            value *= 0.1 if name == "bias" else 0.5
        return jnp.asarray(value, leaf.dtype)

    shapes = nn.unbox(jax.eval_shape(module.init, jax.random.key(0), *inputs))
    return jax.tree_util.tree_map_with_path(draw, shapes)


def noise(*shape: int) -> np.ndarray:
    """Bytes as if random, uint8 of a shape: the same wherever and with whatever they are made."""
    content = hashlib.shake_256(b"noise").digest(math.prod(shape))
    return np.frombuffer(content, np.uint8).reshape(shape)


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
    count = f"device_count={devices}"  # the other flags are those of this process
    flags = re.sub(r"device_count=\d+", count, os.environ["XLA_FLAGS"])
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "NPROC": "16", **extra}


def command(module: str, *flags: str) -> list[str]:
    """`python -m big_retrieval.<module>` with flags."""
    return [sys.executable, "-m", f"big_retrieval.{module}", *flags]


def start(args: list[str], **env: str) -> subprocess.Popen[str]:
    """Starts a process whose output can be read."""
    return subprocess.Popen(
        args, cwd=ROOT, env=environment(**env) if "XLA_FLAGS" not in env else env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
