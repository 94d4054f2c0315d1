"""Steps and runs of the trainer's tests, and their comparison."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval import parallel
from big_retrieval.config import Config
from big_retrieval.train.build import BuiltModel, build_model
from big_retrieval.train.loop import train
from big_retrieval.train.step import abstract_batch, compile_step
from tests.helpers import losses, mesh_keys, results

ONE = jax.devices()[:1]
VOCAB = 50  # ids of the tokenizer that `built` assumes
_built: dict[tuple[str, int], tuple[BuiltModel, Any]] = {}
_compiled: dict[tuple[str, int], Any] = {}


ALL_AXES = mesh_keys(data=2, fsdp=2, tensor=2)


def built(config: Config, devices: Any = ONE) -> tuple[BuiltModel, Any]:
    """The parts of a run and a random batch; texts end after 3 to 7 tokens, all rows are valid."""
    key = (repr(config), len(devices))
    if key in _built:
        return _built[key]
    mesh = parallel.make_mesh(config, devices)
    rng = np.random.default_rng(0)

    def draw(x: Any) -> jax.Array:
        value = rng.integers(0, 256 if x.dtype == jnp.uint8 else VOCAB, x.shape)
        if x.dtype == jnp.float32:
            value = rng.random(x.shape)
        elif x.dtype == bool:
            ends = 3 + value[..., :1] % 5
            value = np.arange(x.shape[-1]) < ends if x.ndim > 1 else np.ones(x.shape)
        return jax.device_put(value.astype(x.dtype), x.sharding)

    parts = build_model(config, mesh, vocab_size=VOCAB, total_steps=10)
    _built[key] = parts, jax.tree.map(draw, abstract_batch(config, mesh))
    return _built[key]


def prepare(config: Config, devices: Any = ONE) -> tuple[Any, Any, Any]:
    """(compiled step, fresh state, random batch). Equal configs share the step."""
    parts, batch = built(config, devices)
    key = (repr(config), len(devices))
    if key not in _compiled:
        _compiled[key] = compile_step(parts.steps[0], parts.abstract, batch, parts.mesh)
    return _compiled[key], parts.draw(), batch


def train_in_parts(
    make: Callable[..., Config], workdir: Path, *stops: int, devices: Any = ONE
) -> None:
    """Trains `make()`, interrupted after some steps and resumed."""
    for stop in stops:
        train(make(stop_after=stop), workdir, devices)
    train(make(), workdir, devices)
    assert results(workdir)["resumed_from"] == stops[-1]


def assert_same_run(found: Path, expected: Path) -> None:
    """The losses of all steps and the final parameters are equal, bit for bit."""
    assert losses(found) == losses(expected)
    assert results(found)["params_sha256"] == results(expected)["params_sha256"]


def assert_close_run(found: Path, expected: Path, rtol: float = 1e-5) -> None:
    """Both runs log the same steps, and their losses agree."""
    values, wanted = losses(found), losses(expected)
    assert values.keys() == wanted.keys()
    np.testing.assert_allclose(list(values.values()), list(wanted.values()), rtol=rtol)
