"""Transformer layers: config keys, the block, and the stack (unrolled, scanned, recomputed).

In all forms, the module that calls `run_layers` owns the parameters of layer i: `layers_i/{ln_1,
attention/{query, key, value, out}, ln_2, mlp/{fc1, fc2}}`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from big_retrieval.config import Config
from big_retrieval.config.towers import Tower
from big_retrieval.models.attention import (
    TILES,
    Attention,
    Kernel,
    choose_kernel,
    join_parts,
    pad_tokens,
)
from big_retrieval.models.layer_loop import loop_layers, stack_layers
from big_retrieval.models.layers import BlockInit, Dtype, FeedForward, LayerNorm, constrain, dropout
from big_retrieval.runtime.platform import traced_platform

# Arrays of a block that are kept for the backward pass; None keeps only its input.
_POLICIES: dict[str, Callable[..., bool] | None] = {
    "block": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class Layers:
    """Keys of a tower or head with equal layers, read by `run_layers`."""

    depth: Any = 1
    heads: Any = 1  # attention heads
    mlp: Any = 1  # hidden width of the MLPs
    norm: Any = "pre"  # or "post"
    causal: Any = False
    epsilon: Any = 1e-5
    activation: Any = "gelu"
    dropout: Any = 0.0
    inner_dropout: Any = False  # also after the activation of the MLP, as in PyTorch's layers
    attention: Any = "plain"  # see `choose_kernel`
    scan: Any = False  # run the layers as a loop
    # parts that the backward pass computes again: "none"; "block", all of a block; "dots", all
    # except products with parameters
    remat: Any = "none"


class Transformer(Layers, Tower):
    """Base class of towers that are transformers."""

    least_tokens: ClassVar[int] = 1  # class tokens that it needs with `pool` "none"
    pool: Any = "first"

    @property
    def gives_positions(self) -> bool:
        return self.pool == "none"

    @property
    def tokens(self) -> int:
        return 1 if self.pool == "mean" else self.class_tokens

    def check(self, config: Config, path: str) -> Iterator[str]:
        count = self.class_tokens
        if count < self.least_tokens:
            yield f"{path}.class_tokens is {count}; it must be at least {self.least_tokens}."
        if self.pool == "mean" and count > 1:
            yield f"{path}.pool 'mean' gives one token: set {path}.class_tokens {count} to 1."
        if self.pool == "first" and count == 0:
            yield f"{path}.pool 'first' needs {path}.class_tokens of 1 or more."
        if self.attention == "kernel" and self.dropout:
            yield (
                f"{path}.attention 'kernel' has no dropout: set {path}.dropout to 0, or "
                f"{path}.attention to 'auto'."
            )
        if self.width % self.heads:
            yield f"{path}.width {self.width} must be a multiple of {path}.heads {self.heads}."

    def check_head(self, head: Any, head_path: str, path: str) -> Iterator[str]:
        if not head.reads_positions:
            if self.gives_positions:
                yield (
                    f"{path}.pool is 'none', which gives all positions: set it to 'first', 'last' "
                    f"or 'mean' for a projection, or {head_path}.type to 'lexical'."
                )
            return
        if not self.gives_positions:
            yield (
                f"{head_path}.type {head.type!r} reads all positions, but {path}.pool is "
                f"{self.pool!r}: set it to 'none'."
            )
        if self.class_tokens > self.least_tokens:
            yield (
                f"{head_path}.type {head.type!r} has no use for {path}.class_tokens "
                f"{self.class_tokens}: set it to {self.least_tokens}."
            )

    def runlocal(self) -> "Transformer":
        small: Any = {"width": 64, "depth": 2, "heads": 2, "mlp": 256, "dropout": 0.0}
        return dataclasses.replace(self, **small)  # type: ignore

    def at_depth(self, depth: int) -> "Transformer":
        return dataclasses.replace(self, depth=depth)  # type: ignore


class Block(nn.Module):
    """One transformer layer.

    * Pre-LN: x += attention(ln_1(x)); x += mlp(ln_2(x)).
    * Post-LN: x = ln_1(x + attention(x)); x = ln_2(x + mlp(x)).

    Dropout acts on attention weights and on the two residual branches (BERT); with `inner_dropout`
    also on the MLP's activation (PyTorch).
    """

    spec: Layers
    inits: BlockInit
    dropout: float = 0.0  # rate in effect: 0 outside training
    kernel: Kernel = "plain"  # see `Attention`
    tokens: int | None = None  # see `Attention`
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        rows: jax.Array | None = None,
        bias: jax.Array | None = None,
    ) -> jax.Array:
        spec = self.spec
        ln_1 = LayerNorm(spec.epsilon, name="ln_1", dtype=self.dtype)
        ln_2 = LayerNorm(spec.epsilon, name="ln_2", dtype=self.dtype)
        options: Any = {"causal": spec.causal, "kernel": self.kernel, "tokens": self.tokens}
        attention = Attention(
            spec.heads, self.inits, self.dropout, **options, name="attention", dtype=self.dtype
        )
        inner = self.dropout if spec.inner_dropout else 0.0
        mlp = FeedForward(
            spec.mlp, self.inits, spec.activation, inner, name="mlp", dtype=self.dtype
        )

        def drop(y: jax.Array) -> jax.Array:
            return dropout(y, self.dropout, rows)

        if spec.norm == "pre":
            x = x + drop(attention(ln_1(x), mask, rows, bias))
            return x + drop(mlp(ln_2(x), rows))
        assert spec.norm == "post", spec.norm
        x = ln_1(x + drop(attention(x, mask, rows, bias)))
        return ln_2(x + drop(mlp(x, rows)))


def run_layers(
    module: Any,
    inits: BlockInit,
    x: jax.Array,
    mask: jax.Array | None = None,
    *,
    rows: jax.Array | None = None,
    bias: jax.Array | None = None,
    train: bool = False,
) -> jax.Array:
    """Runs the layers of `module.spec` in the compact method of `module`, [B, L, W] -> [B, L, W].

    With `scan`, one compiled block runs over the stacked parameters. Values and gradients are equal
    to the unrolled layers (except for dropout's random bits), but compile time and program size do
    not grow with the depth. On GPUs, layers without `remat="block"` are always unrolled: in a loop,
    writing and reading the arrays for the backward pass took 38 of 147 ms of a step.

    The outputs of the blocks are sown as "layer_outputs", a tuple of `depth` arrays [B, L, W].

    Args:
      module: Linen module with the attributes `spec` (`Layers`) and `dtype`.
      mask: as in `Attention`, like `rows` and `bias`; the same in every layer.
    """
    spec, length = module.spec, x.shape[1]
    rate = spec.dropout if train else 0.0
    block: dict[str, Any] = {"spec": spec, "inits": inits, "dropout": rate, "dtype": module.dtype}
    if not module.is_initializing():
        keys: dict[str, Any] = {"causal": spec.causal, "dropout": rate, "bias": bias}
        kernel = choose_kernel(spec.attention, x.shape, spec.heads, module.dtype, **keys)
        block |= {"kernel": kernel, "tokens": length}
        # The kernels exclude padding from the keys, so outputs and gradients do not change.
        if padding := -length % TILES[kernel]:
            x, mask, bias = pad_tokens(padding, x, mask, bias)
    x, shared = constrain(x), (mask, rows, bias)
    loop = spec.scan and (spec.remat == "block" or traced_platform() != "gpu")
    if loop and not module.is_initializing():
        x, outputs = _scan_layers(module, Block(**block, parent=None), x, shared)
    else:
        cls = Block if spec.remat == "none" else nn.remat(Block, policy=_POLICIES[spec.remat])
        outputs = []
        for i in range(spec.depth):
            x = constrain(cls(**block, name=f"layers_{i}")(x, *shared))
            outputs.append(x)
    for output in outputs:  # [B, L, W]
        module.sow("intermediates", "layer_outputs", output[:, :length])
    return x[:, :length]


def _scan_layers(
    module: nn.Module, block: Block, x: jax.Array, shared: tuple[jax.Array | None, ...]
) -> tuple[jax.Array, Sequence[jax.Array]]:
    """Loop form of `run_layers`: returns the last output, and all outputs if they are sown."""
    spec, params = block.spec, nn.unbox(module.variables["params"])
    layers = [params[f"layers_{i}"] for i in range(spec.depth)]
    if block.kernel == "tpu":
        layers = [
            {**layer, "attention": join_parts(layer["attention"], spec.heads)} for layer in layers
        ]
        if spec.remat == "block" and not module.is_mutable_collection("intermediates"):
            mask, _, bias = shared  # kernels have no dropout and do not need the rows

            def apply(x: jax.Array, params: Any, mask: Any, bias: Any) -> jax.Array:
                y: Any = block.apply({"params": params}, x, mask, None, bias)
                return constrain(y)

            return loop_layers(apply, x, layers, mask, bias), ()
    stacked = stack_layers(layers)
    keys = jax.random.split(module.make_rng("dropout"), spec.depth) if block.dropout else None
    sown = module.is_mutable_collection("intermediates")

    def body(x: jax.Array, layer: tuple[Any, jax.Array | None]) -> tuple[jax.Array, Any]:
        weights, key = layer
        rngs = None if key is None else {"dropout": key}
        y: Any = block.apply({"params": weights}, x, *shared, rngs=rngs)
        y = constrain(y)
        return y, y if sown else None

    if spec.remat != "none":
        # XLA cannot merge the two passes of a loop, so `jax.checkpoint` needs no barrier.
        body = jax.checkpoint(body, policy=_POLICIES[spec.remat], prevent_cse=False)
    x, outputs = jax.lax.scan(body, x, (stacked, keys))
    return x, outputs if sown else ()


def stored_rows(module: nn.Module, name: str, default: int) -> int:
    """Returns the rows of the parameter `name` of `module`; `default` before initialization."""
    if not module.has_variable("params", name):
        return default
    return nn.unbox(module.get_variable("params", name)).shape[0]
