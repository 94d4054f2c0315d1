"""The blockwise contrastive loss against the plain one: memory, CPU seconds, bytes on the wire.

    python -m benchmarks.contrastive --batch=8192 --dim=512
    python -m benchmarks.contrastive --batch=24576 --devices=8 --mode=ring --compile-only

Value and gradients of both sides and of the scale. The plain form holds all [B, B] logits; with
several devices it is what XLA makes of it under jit with sharded rows. Seconds of several virtual
CPU devices say nothing about real ones.
"""

import argparse
import contextlib
from collections.abc import Callable
from typing import Any

from benchmarks import measure


def flags() -> argparse.Namespace:
    """The command line."""
    parser = measure.parser(__doc__)
    parser.add_argument("--batch", type=int, default=4096, help="pairs, over all devices")
    parser.add_argument("--dim", type=int, default=512, help="numbers of an embedding, all tokens")
    parser.add_argument("--tokens", type=int, default=1, help="class tokens of an embedding")
    parser.add_argument("--topology", default="sphere", help="as in a config")
    parser.add_argument("--loss", choices=["softmax", "sigmoid"], default="softmax")
    parser.add_argument("--block", type=int, default=None, help="rows of a block; default: auto")
    parser.add_argument("--devices", type=int, default=1, help="virtual ones where there are fewer")
    parser.add_argument("--mode", choices=["auto", "gather", "ring"], default="auto")
    return parser.parse_args()


def variants(args: argparse.Namespace) -> dict[str, Callable[..., Any]]:
    """The plain loss and ours: (query, document, t) -> loss."""
    import jax
    import jax.numpy as jnp

    from big_retrieval.config.topologies import topology_part
    from big_retrieval.losses.contrastive import contrastive_loss, sigmoid_loss
    from big_retrieval.losses.pairwise import Execution, PairBatch

    top = topology_part(args.topology)
    execution = Execution(args.mode, args.block)

    def plain(query: jax.Array, document: jax.Array, t: jax.Array) -> jax.Array:
        logits = jnp.exp(t) * top.score(query, document)  # [B, B]
        if args.loss == "sigmoid":
            signs = 2 * jnp.eye(args.batch) - 1
            return -jnp.sum(jax.nn.log_sigmoid(signs * (logits - 10.0))) / args.batch
        partitions = jax.nn.logsumexp(logits, axis=1) + jax.nn.logsumexp(logits, axis=0)
        return jnp.mean(0.5 * partitions - jnp.diagonal(logits))

    def ours(query: jax.Array, document: jax.Array, t: jax.Array) -> jax.Array:
        common: Any = {"topology": top, "logit_scale": jnp.exp(t), "execution": execution}
        if args.loss == "sigmoid":
            return sigmoid_loss(PairBatch(query, document, bias=-10.0, **common))[0]
        return contrastive_loss(PairBatch(query, document, **common))[0]

    return {"plain": plain, "ours": ours}


def compile_both(args: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    """Compiles value and gradients of both; returns them and where the sides live, if sharded."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    devices = jax.devices()[: args.devices]
    if len(devices) < args.devices or args.batch % args.devices or args.dim % args.tokens:
        raise SystemExit(
            f"--devices {args.devices}: there are {len(jax.devices())}, they must divide --batch "
            f"{args.batch}, and --tokens {args.tokens} must divide --dim {args.dim}."
        )
    rows = whole = out = None
    context: Any = contextlib.nullcontext()
    if args.devices > 1:
        axes = (AxisType.Auto,)
        mesh = jax.make_mesh((args.devices,), ("data",), devices=devices, axis_types=axes)
        rows, whole = (
            NamedSharding(mesh, PartitionSpec("data")),
            NamedSharding(mesh, PartitionSpec()),
        )
        out, context = (whole, (rows, rows, whole)), jax.set_mesh(mesh)
    side = jax.ShapeDtypeStruct(shape(args), jnp.float32, sharding=rows)
    t = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
    compiled = {}
    with context:
        for name, loss in variants(args).items():
            step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)), out_shardings=out)
            compiled[name] = step.lower(side, side, t).compile()
    return compiled, rows


def shape(args: argparse.Namespace) -> tuple[int, int, int]:
    """Of one side's embeddings, [B, M, N]."""
    return args.batch, args.tokens, args.dim // args.tokens


def time_both(args: argparse.Namespace, compiled: dict[str, Any], rows: Any) -> dict[str, float]:
    """Runs both in turn on random embeddings."""
    import jax
    import jax.numpy as jnp

    from big_retrieval.config.topologies import topology_part

    def draw(key: jax.Array) -> jax.Array:
        return topology_part(args.topology).project(jax.random.normal(key, shape(args)))

    draw = jax.jit(draw, out_shardings=rows)
    first, second = jax.random.split(jax.random.key(0))
    t = jnp.asarray(2.0)
    if rows is not None:
        t = jax.device_put(t, jax.sharding.NamedSharding(rows.mesh, jax.sharding.PartitionSpec()))
    inputs = (draw(first), draw(second), t)
    calls = {name: lambda run=run: run(*inputs) for name, run in compiled.items()}
    seconds = measure.interleaved(calls, args.rounds)
    got, expected = (jax.device_get(calls[name]()) for name in ("ours", "plain"))
    return {
        "cpu_seconds": seconds["ours"].cpu,
        "plain_cpu_seconds": seconds["plain"].cpu,
        "wall_seconds": seconds["ours"].wall,
        "plain_wall_seconds": seconds["plain"].wall,
        "difference": measure.difference(got, expected),
    }


def main() -> None:
    """Compiles both, and runs them in turn unless told not to."""
    args = flags()
    measure.use_devices(args.devices)
    from big_retrieval.compiled.program import read_program

    compiled, rows = compile_both(args)
    wire = read_program(compiled["ours"].as_text()).wire_bytes
    row: dict[str, Any] = {
        "benchmark": "contrastive",
        "machine": measure.machine(),
        **{name: getattr(args, name) for name in ("batch", "dim", "tokens", "topology", "loss")},
        "devices": args.devices,
        "mode": args.mode,
        "temp_bytes": measure.temp_bytes(compiled["ours"]),
        "plain_temp_bytes": measure.temp_bytes(compiled["plain"]),
        "received_bytes": sum(wire.values()),
        **{f"{kind.replace('-', '_')}_bytes": received for kind, received in wire.items()},
    }
    if not args.compile_only:
        row |= time_both(args, compiled, rows)
    measure.report(row, args.json)


if __name__ == "__main__":
    main()
