"""The loop over layers of `loop_layers`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval.models.layer_loop import loop_layers

DEPTH, ROWS, WIDTH = 3, 4, 5


def test_loop_layers_equals_layers_one_after_the_other() -> None:
    random = np.random.default_rng(0)
    x, bias, *kernels = (
        jnp.asarray(random.normal(size=shape), jnp.float32)
        for shape in [(ROWS, WIDTH), (WIDTH,), *[(WIDTH, WIDTH)] * DEPTH]
    )
    params = [{"kernel": kernel} for kernel in kernels]
    mask = jnp.arange(ROWS) < 3

    def layer(x: jax.Array, params: Any, mask: Any, bias: Any) -> jax.Array:
        return x + jnp.where(mask[:, None], jnp.sin(x @ params["kernel"] + bias), 0)

    def unrolled(x: jax.Array, params: Any, mask: Any, bias: Any) -> jax.Array:
        for part in params:
            x = layer(x, part, mask, bias)
        return x

    def run(apply: Any) -> Any:
        y, pull = jax.vjp(lambda *args: apply(*args[:2], mask, args[2]), x, params, bias)
        return y, pull(jnp.cos(y))

    compute = jax.jit(run, static_argnums=0)
    results = compute(lambda *args: loop_layers(layer, *args)), compute(unrolled)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), *results)
