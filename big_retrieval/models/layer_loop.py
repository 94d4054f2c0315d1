"""Loop over layers that stores gradients in the order in which it computes them.

The transpose of `lax.scan` writes the gradients of the parameters from the last layer to the
first. XLA for TPUs does not see that this fills the arrays, so it sets them to zero before: in two
layers of width 768, 254 thousand cycles, 2% of the forward and backward pass of 32 images. Here
the backward pass writes from the first place to the last.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

# Computes a layer: (x, parameters, mask, bias) -> x of the same shape and type.
Layer = Callable[[jax.Array, Any, jax.Array | None, jax.Array | None], jax.Array]


def loop_layers(
    layer: Layer,
    x: jax.Array,
    params: Sequence[Any],
    mask: jax.Array | None,
    bias: jax.Array | None,
) -> jax.Array:
    """Applies layers one after the other; the backward pass computes all of a layer again.

    Values and gradients are those of `lax.scan` with `jax.checkpoint(layer)`. Gradients reach `x`,
    `params` and `bias`. There is no forward-mode derivative.

    Args:
      layer: computes one layer; the same for all.
      x: input of the first layer.
      params: parameters of each layer, with equal shapes.
      mask: passed to each layer.
      bias: passed to each layer.
    """
    depth = len(params)

    @jax.custom_vjp
    def run(x: jax.Array, params: Any, mask: Any, bias: Any) -> jax.Array:
        return jax.lax.scan(lambda x, p: (layer(x, p, mask, bias), None), x, _stack(params))[0]

    def forward(x: jax.Array, params: Any, mask: Any, bias: Any) -> tuple[jax.Array, Any]:
        stacked = _stack(params)
        y, inputs = jax.lax.scan(lambda x, p: (layer(x, p, mask, bias), x), x, stacked)
        return y, (inputs, stacked, mask, bias)

    def backward(residuals: Any, dy: jax.Array) -> Any:
        inputs, stacked, mask, bias = residuals

        def step(carry: Any, place: jax.Array) -> tuple[Any, Any]:
            index, (dy, dbias) = depth - 1 - place, carry
            take = functools.partial(jax.lax.dynamic_index_in_dim, index=index, keepdims=False)
            x, p = jax.tree.map(take, (inputs, stacked))
            _, pull = jax.vjp(lambda x, p, bias: layer(x, p, mask, bias), x, p, bias)
            dx, dp, more = pull(dy)
            return (dx, jax.tree.map(jnp.add, dbias, more)), dp

        start = dy, jax.tree.map(jnp.zeros_like, bias)
        (dx, dbias), stack = jax.lax.scan(step, start, jnp.arange(depth))  # last layer first
        dparams = [jax.tree.map(lambda a, i=i: a[depth - 1 - i], stack) for i in range(depth)]
        return dx, dparams, None, dbias

    run.defvjp(forward, backward)
    return run(x, list(params), mask, bias)


def _stack(params: Sequence[Any]) -> Any:
    """Parameters with a first axis of layers, [depth, ...] each."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
