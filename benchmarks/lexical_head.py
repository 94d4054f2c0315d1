"""The fused lexical head against the plain one: memory and CPU seconds, forward and backward.

    python -m benchmarks.lexical_head --batch=32 --length=77 --dim=512 --vocab=29522
    python -m benchmarks.lexical_head --batch=4096 --dim=768 --dtype=bfloat16 --compile-only

Layer norm, projection with a bias, activation, masked maximum over the positions; gradients of the
positions and of all parameters. The plain form is what the definition says, by XLA and its own
derivative; that of PyTorch, where it is installed, is the one of sentence-transformers (activation,
mask, maximum).
"""

import argparse
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import measure

NEAR = 1e-5  # logits of order 1 that differ by less may change places by rounding


def flags() -> argparse.Namespace:
    """The command line."""
    parser = measure.parser(__doc__)
    parser.add_argument("--batch", type=int, default=32, help="texts")
    parser.add_argument("--length", type=int, default=77, help="positions of a text")
    parser.add_argument("--dim", type=int, default=512, help="width of a position")
    parser.add_argument("--vocab", type=int, default=29522, help="columns")
    parser.add_argument("--block", type=int, default=None, help="columns at once; default: auto")
    parser.add_argument("--activation", choices=["elu1p", "log1p_relu"], default="log1p_relu")
    parser.add_argument("--backward", choices=["auto", "sparse", "dense"], default="auto")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out")
    return parser.parse_args()


def shapes(args: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """Of everything that has a gradient."""
    return {
        "hidden": (args.batch, args.length, args.dim),
        "kernel": (args.vocab, args.dim),
        "bias": (args.vocab,),
        "ln_scale": (args.dim,),
        "ln_bias": (args.dim,),
    }


def draw(args: argparse.Namespace) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Random inputs, mask [B, L] and the weights [B, V] of the sum that is differentiated.

    Weights are 0 where the two largest logits are closer than rounding errors can tell: the maximum
    has no one derivative there, and two right programs may differ.
    """
    rng = np.random.default_rng(0)
    x = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes(args).items()}
    x["kernel"] *= args.dim**-0.5
    x["bias"] *= 0.1
    x["ln_scale"] = 1 + 0.1 * x["ln_scale"]
    x["ln_bias"] *= 0.1
    lengths = rng.integers(max(1, args.length // 8), args.length, (args.batch, 1), endpoint=True)
    weights = rng.standard_normal((args.batch, args.vocab), np.float32)
    mask = np.arange(args.length) < lengths
    return x, mask, weights * (gaps(x, mask) > NEAR)


def gaps(x: dict[str, np.ndarray], mask: np.ndarray) -> np.ndarray:
    """How far the largest logit of every column is above the second, [B, V]."""
    hidden = x["hidden"] - x["hidden"].mean(-1, keepdims=True)  # [B, L, D]
    hidden /= np.sqrt(np.square(hidden).mean(-1, keepdims=True) + 1e-5)
    hidden = hidden * x["ln_scale"] + x["ln_bias"]
    out = np.full((mask.shape[0], x["kernel"].shape[0]), np.inf, np.float32)
    for row, (vectors, keep) in enumerate(zip(hidden, mask, strict=True)):
        if keep.sum() > 1:
            top = np.partition(vectors[keep] @ x["kernel"].T, -2, axis=0)[-2:]  # [2, V]
            out[row] = top[1] - top[0]
    return out


def variants(args: argparse.Namespace) -> dict[str, Callable[..., Any]]:
    """The plain head and ours: (inputs, mask, weights) -> sum of weights times output."""
    import jax
    import jax.numpy as jnp

    from big_retrieval.config import Lexical
    from big_retrieval.models.layers import LayerNorm
    from big_retrieval.models.lexical import ACTIVATIONS, LexicalHead

    dtype, activation = jnp.dtype(args.dtype), ACTIVATIONS[args.activation]

    def plain(x: dict[str, jax.Array], mask: jax.Array, weights: jax.Array) -> jax.Array:
        norm = {"params": {"scale": x["ln_scale"], "bias": x["ln_bias"]}}
        hidden: Any = LayerNorm(dtype=dtype).apply(norm, x["hidden"])  # [B, L, D]
        logits = jnp.einsum(
            "bld,vd->blv",
            hidden,
            x["kernel"].astype(dtype),
            precision="highest" if args.dtype == "float32" else None,
            preferred_element_type=jnp.float32,
        )  # [B, L, V]
        values = activation(logits + x["bias"])
        return jnp.sum(jnp.max(jnp.where(mask[:, :, None], values, 0), axis=1) * weights)

    head = LexicalHead(
        Lexical(tied=False, activation=args.activation, use_bias=True),
        range(args.vocab),
        args.block,
        args.backward,
        dtype=dtype,
    )

    def ours(x: dict[str, jax.Array], mask: jax.Array, weights: jax.Array) -> jax.Array:
        norm = {"scale": x["ln_scale"], "bias": x["ln_bias"]}
        params = {"ln": norm, "kernel": x["kernel"], "bias": x["bias"]}
        out: Any = head.apply({"params": params}, x["hidden"], mask)  # [B, V]
        return jnp.sum(out * weights)

    return {"plain": plain, "ours": ours}


def compile_both(args: argparse.Namespace) -> dict[str, Any]:
    """Compiles value and gradients of both."""
    import jax
    import jax.numpy as jnp

    x = {n: jax.ShapeDtypeStruct(shape, jnp.float32) for n, shape in shapes(args).items()}
    mask = jax.ShapeDtypeStruct((args.batch, args.length), bool)
    weights = jax.ShapeDtypeStruct((args.batch, args.vocab), jnp.float32)
    return {
        name: jax.jit(jax.value_and_grad(head)).lower(x, mask, weights).compile()
        for name, head in variants(args).items()
    }


def torch_step(
    args: argparse.Namespace, x: dict[str, np.ndarray], mask: np.ndarray, weights: np.ndarray
) -> Callable[[], Any] | None:
    """The same in PyTorch, (value, gradients); None where it is not installed or left out."""
    if args.no_torch:
        return None
    measure.let_threads_sleep()
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        print("PyTorch is not installed: `pip install -e .[torch]` adds its column.")
        return None
    tensors = {name: torch.from_numpy(value).requires_grad_() for name, value in x.items()}
    dtype = getattr(torch, args.dtype)
    keep, share = torch.from_numpy(mask).float(), torch.from_numpy(weights)

    def call() -> Any:
        for tensor in tensors.values():
            tensor.grad = None
        hidden = torch.nn.functional.layer_norm(
            tensors["hidden"], (args.dim,), tensors["ln_scale"], tensors["ln_bias"], 1e-5
        )
        kernel, bias = tensors["kernel"].to(dtype), tensors["bias"].to(dtype)
        logits = torch.nn.functional.linear(hidden.to(dtype), kernel, bias)  # [B, L, V]
        if args.activation == "log1p_relu":
            values = torch.log1p(torch.relu(logits))
        else:
            values = torch.nn.functional.elu(logits) + 1
        pooled = (values * keep[:, :, None]).max(dim=1).values  # [B, V]
        loss = (pooled.float() * share).sum()
        loss.backward()
        return loss.item(), {name: tensor.grad.numpy() for name, tensor in tensors.items()}

    return call


def time_all(args: argparse.Namespace, compiled: dict[str, Any]) -> dict[str, Any]:
    """Runs all in turn on the same random inputs."""
    import jax

    inputs = draw(args)
    arrays = jax.device_put(inputs)
    calls: dict[str, Any] = {
        name: lambda run=run: run(*arrays) for name, run in reversed(compiled.items())
    }
    of_torch = torch_step(args, *inputs)
    if of_torch is not None:
        calls["torch"] = of_torch
    seconds = measure.interleaved(calls, args.rounds)
    got, expected = (jax.device_get(calls[name]()) for name in ("ours", "plain"))
    row = {
        "cpu_seconds": seconds["ours"].cpu,
        "plain_cpu_seconds": seconds["plain"].cpu,
        "torch_cpu_seconds": seconds["torch"].cpu if of_torch else None,
        "wall_seconds": seconds["ours"].wall,
        "plain_wall_seconds": seconds["plain"].wall,
        "torch_wall_seconds": seconds["torch"].wall if of_torch else None,
        "gradient_error": measure.difference(got[1], expected[1]),
        "value_error": measure.difference(got[0], expected[0]),
    }
    if of_torch is not None:
        row["torch_gradient_error"] = measure.difference(of_torch()[1], expected[1])
    return row


def main() -> None:
    """Compiles both, and runs them in turn, with PyTorch, unless told not to."""
    args = flags()
    compiled = compile_both(args)
    names = ("batch", "length", "dim", "vocab", "block", "activation", "backward", "dtype")
    row: dict[str, Any] = {
        "benchmark": "lexical_head",
        "machine": measure.machine(),
        **{name: getattr(args, name) for name in names},
        "temp_bytes": measure.temp_bytes(compiled["ours"]),
        "plain_temp_bytes": measure.temp_bytes(compiled["plain"]),
    }
    if not args.compile_only:
        row |= time_all(args, compiled)
    measure.report(row, args.json)


if __name__ == "__main__":
    main()
