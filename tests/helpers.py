"""Small runs for tests: the quickstart's model, smaller still."""

import contextlib
import hashlib
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging

from big_retrieval import __main__
from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.errors import UserError
from big_retrieval.models.lexical import LexicalHead
from big_retrieval.runtime import messages

ROOT = Path(__file__).parent.parent


def raw_config(**changes: Any) -> recipe.Editable:
    """A tiny config as a ConfigDict; changes are dotted keys with __ for the dot."""
    from configs import quickstart

    with mock.patch("big_retrieval.config.runlocal.log"):  # it tells what is left out
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


def mesh_keys(**axes: int) -> dict[str, int]:
    """Changes of a config: the sizes of mesh axes."""
    return {f"mesh__{axis}": size for axis, size in axes.items()}


@contextlib.contextmanager
def user_error(*words: str) -> Iterator[None]:
    """A context that raises a UserError of one line, which contains all words."""
    with pytest.raises(UserError) as caught:
        yield
    for word in words:
        assert word in str(caught.value), caught.value
    assert "\n" not in str(caught.value)


@contextlib.contextmanager
def traced_for(platform: str) -> Iterator[None]:
    """Code that is traced inside sees one device of a platform, "cpu", "gpu" or "tpu"."""
    device = jax.sharding.AbstractDevice(platform, None, platform)
    kinds = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((1,), ("data",), kinds, abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        yield


def ema(decay: float) -> recipe.Editable:
    """An exponential moving average of the parameters, as `optimizer__averaging` of a config."""
    return recipe.entry(configs.Ema(), decay=decay)


def lexical_texts(**head: Any) -> dict[str, Any]:
    """Changes of a tiny config: two text fields with lexical heads of these keys and two towers."""
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


def built(part: Any, *, max_length: int | None = None, **keys: Any) -> Any:
    """The Linen module of a class of towers or heads with some keys; `dtype` is the module's."""
    types = {"dtype": keys.pop("dtype")} if "dtype" in keys else {}
    rest = (None,) if hasattr(part, "embed") else (0, ())
    module = part(**keys).build(*rest, **types)
    return module if max_length is None else module.clone(max_length=max_length)


def lexical_head(terms: Any, *, block: int | None = None, **keys: Any) -> Any:
    """The Linen module of a lexical head as VDR has it, with a kernel of its own unless `tied`."""
    spec = configs.Lexical(**{"tied": False, "activation": "elu1p", **keys})
    return LexicalHead(spec, terms, block)


def drawn(module: Any, *inputs: Any, seed: int = 0) -> Any:
    """Variables of a Linen module, random as if trained, without compiling its own initial values.

    Kernels keep the size of what they are applied to; biases are not 0 and scales not 1.
    """
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


def command(name: str, *flags: str, python: Sequence[str] = (sys.executable,)) -> list[str]:
    """`python -m big_retrieval <name>` with flags; "main": `python -m big_retrieval.main`.

    `python` replaces the interpreter, e.g. by the fixture `warm_python`.
    """
    module = ["big_retrieval.main"] if name == "main" else ["big_retrieval", name]
    return [*python, "-m", *module, *flags]


def start(args: list[str], **env: str) -> subprocess.Popen[str]:
    """Starts a process whose output can be read."""
    return subprocess.Popen(
        args, cwd=ROOT, env=environment(**env) if "XLA_FLAGS" not in env else env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def in_process(
    command: str, *args: object, stdin: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process: a start of Python, jax and its compiler costs seconds.

    An exception that a process would end with, printing its traceback, is raised.

    Args:
      command: e.g. "search" for `big-retrieval search`, "main" for `python -m big_retrieval.main`,
        "" for `big-retrieval` alone.
      env: variables added to this process's; those that jax reads at its start have no effect.
    """
    out, err, status = io.StringIO(), io.StringIO(), 0
    words = ["train" if command == "main" else command] if command else []
    with contextlib.ExitStack() as stack:
        stack.enter_context(_unchanged_levels())
        for stream in (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)):
            stack.enter_context(stream)
        stack.enter_context(mock.patch.object(sys, "stdin", io.StringIO(stdin)))
        argv = ["program", *words, *map(str, args)]
        stack.enter_context(mock.patch.object(sys, "argv", argv))
        stack.enter_context(mock.patch.object(os, "_exit", _exit))
        stack.enter_context(mock.patch.dict(os.environ, env or {}))
        try:
            __main__.main()
        except SystemExit as end:
            status = end.code
    assert isinstance(status, int)
    return subprocess.CompletedProcess(list(map(str, args)), status, out.getvalue(), err.getvalue())


def _exit(status: int) -> NoReturn:
    raise SystemExit(status)


@contextlib.contextmanager
def _unchanged_levels() -> Iterator[None]:
    """A context after which absl and this package show the messages that they showed before."""
    logger, shown = logging.get_absl_logger(), messages.settings()
    verbosity, filters = logging.get_verbosity(), list(logger.filters)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logger.filters[:] = filters
        messages.show(**shown)
