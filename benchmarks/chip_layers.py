"""Layers of big_retrieval, flax and big_vision for `benchmarks.chips`: width 768, 12 heads.

Two layers in a scan, forward and backward, bfloat16 activations and float32 parameters, all
activations of a layer computed again in the backward pass, as in the configs of large runs.
"""

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from big_retrieval.config import ViT
from big_retrieval.models.layers import BlockInit
from big_retrieval.models.transformer import run_layers

WIDTH, HEADS, HIDDEN, DEPTH = 768, 12, 3072, 2
MODELS = ("big_retrieval", "flax", "big_vision")


class Layers(nn.Module):
    """Layers of big_retrieval's vision transformer."""

    spec: ViT = ViT(width=WIDTH, heads=HEADS, mlp=HIDDEN, depth=DEPTH, scan=True, remat="block")
    dtype: Any = jnp.bfloat16

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, L, W] -> [B, L, W]."""
        return run_layers(self, BlockInit.vision(WIDTH, HIDDEN), x, train=True)


class FlaxBlock(nn.Module):
    """A pre-LN layer of flax's modules."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, L, W] -> [B, L, W]."""
        types: Any = {"dtype": jnp.bfloat16}
        y = nn.LayerNorm(**types)(x)
        x = x + nn.MultiHeadDotProductAttention(HEADS, deterministic=True, **types)(y, y)
        y = nn.gelu(nn.Dense(HIDDEN, **types)(nn.LayerNorm(**types)(x)), approximate=False)
        return x + nn.Dense(WIDTH, **types)(y)


class BigVisionBlock(nn.Module):
    """A layer of big_vision's vision transformer."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, L, W] -> [B, L, W]."""
        encoder_block = import_big_vision().Encoder1DBlock
        return encoder_block(mlp_dim=HIDDEN, num_heads=HEADS, dtype_mm="bfloat16")(x)[0]


def import_big_vision() -> Any:
    """Imports big_vision.models.vit, also without TensorFlow, whose file functions it imports."""
    importlib.import_module("flax.training.checkpoints")  # looks for TensorFlow, too
    if importlib.util.find_spec("tensorflow") is None:
        for name in ("tensorflow", "tensorflow.io", "tensorflow.io.gfile"):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__spec__ = importlib.util.spec_from_loader(name, None)
    return importlib.import_module("big_vision.models.vit")


def scan_layers(block: nn.Module) -> tuple[Any, Callable[[Any, jax.Array], jax.Array]]:
    """Abstract parameters of `DEPTH` layers, and the function that runs them in a scan."""
    x = jax.ShapeDtypeStruct((1, 8, WIDTH), jnp.bfloat16)
    params = nn.unbox(jax.eval_shape(block.init, jax.random.key(0), x))
    stacked = jax.tree.map(lambda p: jax.ShapeDtypeStruct((DEPTH, *p.shape), p.dtype), params)

    def apply(params: Any, x: jax.Array) -> jax.Array:
        body = jax.checkpoint(lambda x, layer: (block.apply(layer, x), None), prevent_cse=False)
        return jax.lax.scan(body, x, params)[0]

    return stacked, apply


def make_layers(model: str) -> tuple[Any, Callable[[Any, jax.Array], jax.Array]]:
    """Abstract parameters and forward function of the layers of one of `MODELS`."""
    if model == "flax":
        return scan_layers(FlaxBlock())
    if model == "big_vision":
        return scan_layers(BigVisionBlock())
    layers, x = Layers(), jax.ShapeDtypeStruct((1, 8, WIDTH), jnp.bfloat16)
    params = nn.unbox(jax.eval_shape(layers.init, jax.random.key(0), x))
    return params, lambda params, x: layers.apply(params, x)  # type: ignore


def compile_layers(model: str, batch: int, length: int, mesh: jax.sharding.Mesh) -> Any:
    """Compiles forward and backward pass of the layers on [batch, length, WIDTH] activations."""
    from big_retrieval import parallel

    params, apply = make_layers(model)
    sharding = parallel.replicated(mesh)
    x = jax.ShapeDtypeStruct((batch, length, WIDTH), jnp.bfloat16, sharding=sharding)
    params = jax.tree.map(
        lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=sharding), params
    )

    def run(params: Any, x: jax.Array, gradient: jax.Array) -> Any:
        y, pull = jax.vjp(apply, params, x)
        return y, pull(gradient)

    with parallel.use(mesh):
        return jax.jit(run).lower(params, x, x).compile()
