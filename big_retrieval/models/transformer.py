"""Transformer blocks and the stack of them, unrolled or scanned, with or without recomputation.

Whatever the execution, the parameters of layer i are `layers_i/{ln_1, attention/{query, key, value,
out}, ln_2, mlp/{fc1, fc2}}` in the tree of the module that calls `run_layers`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.spmd import with_logical_constraint

from big_retrieval.errors import UserError
from big_retrieval.models.attention import Attention, join_parts
from big_retrieval.models.attention_choice import TILES, Kernel, choose_kernel, pad_tokens
from big_retrieval.models.layer_loop import loop_layers
from big_retrieval.models.layers import BlockInit, Dtype, FeedForward, LayerNorm, dropout
from big_retrieval.runtime.platform import traced_platform

Norm = Literal["pre", "post"]
Remat = Literal["none", "block", "dots"]

# What the backward pass of a block may keep: None keeps only the block's input.
_POLICIES: dict[str, Callable[..., bool] | None] = {
    "block": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class Block(nn.Module):
    """One transformer layer.

    Pre-LN:  x += attention(ln_1(x)); x += mlp(ln_2(x)).
    Post-LN: x = ln_1(x + attention(x)); x = ln_2(x + mlp(x)).

    Dropout (BERT's places): attention weights and the two residual branches; with `inner_dropout`
    behind the activation of the MLP, too (PyTorch's own layers).
    """

    heads: int
    hidden: int
    inits: BlockInit
    norm: Norm = "pre"
    activation: str = "gelu"
    epsilon: float = 1e-5
    causal: bool = False
    kernel: Kernel = "plain"  # see `Attention`
    tokens: int | None = None  # see `Attention`
    dropout: float = 0.0
    inner_dropout: bool = False
    deterministic: bool = True
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        rows: jax.Array | None = None,
        bias: jax.Array | None = None,
    ) -> jax.Array:
        """[B, L, W] -> [B, L, W] in `dtype`.

        Args:
          x: [B, L, W].
          mask: [B, L], true at the keys that count; None: all.
          rows: see `layers.dropout`.
          bias: see `Attention`.
        """
        types: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        ln_1, ln_2 = (LayerNorm(self.epsilon, name=name, **types) for name in ("ln_1", "ln_2"))
        attention = Attention(
            self.heads,
            self.inits,
            self.dropout,
            self.causal,
            self.deterministic,
            self.kernel,
            self.tokens,
            name="attention",
            **types,
        )
        mlp = FeedForward(
            self.hidden,
            self.inits,
            self.activation,
            self.dropout if self.inner_dropout else 0.0,
            self.deterministic,
            name="mlp",
            **types,
        )

        def drop(y: jax.Array) -> jax.Array:
            return dropout(y, self.dropout, self.deterministic, rows)

        if self.norm == "pre":
            x = x + drop(attention(ln_1(x), mask, rows, bias))
            return x + drop(mlp(ln_2(x), rows))
        if self.norm == "post":
            x = ln_1(x + drop(attention(x, mask, rows, bias)))
            return ln_2(x + drop(mlp(x, rows)))
        raise UserError(f"norm {self.norm!r} is unknown; known: 'pre', 'post'.")


def block_keys(spec: Any, inits: BlockInit, train: bool, **types: Dtype) -> dict[str, Any]:
    """The settings of a tower's layers for `run_layers`.

    Args:
      spec: of a `config.Transformer`.
      inits: initial values.
      train: whether dropout is on.
      **types: `dtype` and `param_dtype`.
    """
    same = ("heads", "norm", "activation", "epsilon", "causal", "dropout", "inner_dropout")
    keys = {key: getattr(spec, key) for key in same}
    keys["attention"] = getattr(spec, "attention", "plain")
    return {**keys, "hidden": spec.mlp, "inits": inits, "deterministic": not train, **types}


def run_layers(
    tower: nn.Module,
    block: dict[str, Any],
    x: jax.Array,
    mask: jax.Array | None = None,
    *,
    rows: jax.Array | None = None,
    bias: jax.Array | None = None,
    depth: int,
    scan: bool = False,
    remat: Remat = "none",
) -> jax.Array:
    """Runs `depth` blocks; called in the compact method of `tower`, which owns the parameters.

    With `scan` the layers' parameters are stacked on the fly and one compiled block runs over them:
    the same numbers and gradients as unrolled (other random bits where dropout is on), with a
    compile time and a program size that do not grow with the depth. On GPUs, layers without
    `remat="block"` are unrolled: filling and reading the arrays that hold what the backward pass
    needs of all layers took 38 of 147 ms of a step.

    Outputs of the blocks are sown as intermediates "layer_outputs", a tuple of `depth` arrays
    [B, L, W].

    Args:
      tower: the calling module.
      block: from `block_keys`, or attributes of `Block` and `attention`, the tower's choice, which
        sets `kernel` and `tokens`.
      x: [B, L, W].
      mask: [B, L] for attention, or None.
      rows: see `layers.dropout`.
      bias: the same in every layer; see `Attention`.
      depth: number of layers, 1 or more.
      scan: run the layers as a loop.
      remat: what the backward pass computes again: "none"; "block", all of a block; "dots", all but
        the products with parameters.

    Returns:
      [B, L, W].

    Raises:
      UserError: `remat` or a value of `block` is unknown.
    """
    if remat != "none" and remat not in _POLICIES:
        raise UserError(f"remat {remat!r} is unknown; known: 'none', 'block', 'dots'.")
    length = x.shape[1]
    block, x, mask, bias = _choose_kernel(tower, block, x, mask, bias)
    x, rest = _constrain(x), (mask, rows, bias)
    loop = scan and (remat == "block" or traced_platform() != "gpu")
    if loop and not tower.is_initializing():
        x, outputs = _scan_layers(tower, Block(**block, parent=None), x, rest, depth, remat)
    else:
        cls = Block if remat == "none" else nn.remat(Block, policy=_POLICIES[remat])
        outputs = []
        for i in range(depth):
            x = _constrain(cls(**block, name=f"layers_{i}")(x, *rest))
            outputs.append(x)
    for output in outputs:  # [B, L, W]
        tower.sow("intermediates", "layer_outputs", _first(output, length))
    return _first(x, length)


def _choose_kernel(
    tower: nn.Module,
    block: dict[str, Any],
    x: jax.Array,
    mask: jax.Array | None,
    bias: jax.Array | None,
) -> tuple[dict[str, Any], jax.Array, jax.Array | None, jax.Array | None]:
    """Attributes of `Block` with the kernel of attention, and arrays padded to its lengths.

    The kernels exclude the padding from the keys, so it changes neither outputs nor gradients.
    """
    block = dict(block)
    choice = block.pop("attention", "plain")
    if tower.is_initializing():
        return block, x, mask, bias
    layer = Block(**block, parent=None)
    rate = 0.0 if layer.deterministic else layer.dropout
    keys: dict[str, Any] = {"causal": layer.causal, "dropout": rate, "bias": bias}
    block["kernel"] = choose_kernel(choice, x.shape, layer.heads, layer.dtype, **keys)
    block["tokens"] = x.shape[1]
    if padding := -x.shape[1] % TILES[block["kernel"]]:
        x, mask, bias = pad_tokens(padding, x, mask, bias)
    return block, x, mask, bias


def _scan_layers(
    tower: nn.Module,
    block: Block,
    x: jax.Array,
    rest: tuple[jax.Array | None, ...],
    depth: int,
    remat: Remat,
) -> tuple[jax.Array, Sequence[jax.Array]]:
    """Loop form of `run_layers`: returns the last output, and all of them if they are sown.

    `block` is unbound; `rest` holds mask, rows and bias.
    """
    params = nn.unbox(tower.variables["params"])
    layers = [params[f"layers_{i}"] for i in range(depth)]
    if block.kernel == "tpu":
        joined = [join_parts(layer["attention"], block.heads) for layer in layers]
        layers = [{**layer, "attention": a} for layer, a in zip(layers, joined, strict=True)]
        if remat == "block" and not tower.is_mutable_collection("intermediates"):
            mask, _, bias = rest  # kernels have no dropout, thus no use for the numbers of rows

            def apply(x: jax.Array, params: Any, mask: Any, bias: Any) -> jax.Array:
                y: Any = block.apply({"params": params}, x, mask, None, bias)
                return _constrain(y)

            return loop_layers(apply, x, layers, mask, bias), ()
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)  # [depth, ...] each
    random = block.dropout > 0.0 and not block.deterministic
    keys = jax.random.split(tower.make_rng("dropout"), depth) if random else None
    wanted = tower.is_mutable_collection("intermediates")

    def body(x: jax.Array, layer: tuple[Any, jax.Array | None]) -> tuple[jax.Array, Any]:
        weights, key = layer
        rngs = None if key is None else {"dropout": key}
        y: Any = block.apply({"params": weights}, x, *rest, rngs=rngs)
        y = _constrain(y)
        return y, y if wanted else None

    if remat != "none":  # inside a loop nothing can be shared, so no barrier against it is needed
        body = jax.checkpoint(body, policy=_POLICIES[remat], prevent_cse=False)
    x, outputs = jax.lax.scan(body, x, (stacked, keys))
    return x, outputs if wanted else ()


def _first(x: jax.Array, length: int) -> jax.Array:
    """The first `length` tokens of [B, L, W]."""
    return x if x.shape[1] == length else x[:, :length]


def _constrain(x: jax.Array) -> jax.Array:
    """Names the axes of [B, L, W] activations for the mesh."""
    return with_logical_constraint(x, ("batch", "length", "embed_act"))


def stored_rows(tower: nn.Module, name: str, default: int) -> int:
    """Rows of the table that `tower` has as parameter `name`; `default` when it has none yet."""
    if not tower.has_variable("params", name):
        return default
    return nn.unbox(tower.get_variable("params", name)).shape[0]
