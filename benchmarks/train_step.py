"""The training step of a small CLIP on this machine against the same step in PyTorch.

    python -m benchmarks.train_step
    python -m benchmarks.train_step --batch=16 --depth=2 --rounds=3 --json
    python -m benchmarks.train_step --width=768 --depth=12 --image-size=224 --dtype=bfloat16

Forward, backward, clipping and AdamW, unrolled layers, through the step that `big_retrieval.main`
compiles. The peer (`benchmarks.torch_clip`, where PyTorch is installed) starts
from the same parameters and sees the same batch; the losses of the first steps are compared.
"plain" is PyTorch here; it does not tell its temporary memory. On a CPU under Linux the benchmark
starts itself anew with `ENVIRONMENT`, for both sides; a variable that is set stays as it is.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import measure

ENVIRONMENT = {
    # Freed memory stays with the process: else every step pays the kernel for fresh pages, which
    # is up to a third of its CPU seconds. One arena, because only the main one can keep as much.
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967296"
    ":glibc.malloc.trim_threshold=17179869184:glibc.malloc.arena_max=1",
    # PyTorch's threads sleep while they wait. On a machine that others use too they would else burn
    # CPU seconds in a busy loop, twice what the step needs, and the comparison would flatter us.
    "OMP_WAIT_POLICY": "PASSIVE",
}
CHECKED_STEPS = 3  # whose losses are compared


def flags() -> argparse.Namespace:
    """The command line."""
    parser = measure.parser(__doc__)
    parser.add_argument("--batch", type=int, default=64, help="pairs")
    parser.add_argument("--width", type=int, default=256, help="of both towers; 64 per head")
    parser.add_argument("--depth", type=int, default=6, help="layers of each tower")
    parser.add_argument("--image-size", type=int, default=128, help="pixels; patches of 16")
    parser.add_argument("--length", type=int, default=77, help="tokens of a text")
    parser.add_argument("--vocab", type=int, default=30_000, help="rows of the word table")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--as-is", action="store_true", help="leave the environment alone")
    return parser.parse_args()


def restart(args: argparse.Namespace) -> str:
    """Starts this process anew under `ENVIRONMENT`, once; returns what it runs under."""
    import jax

    wanted = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    on_cpu = jax.default_backend() == "cpu"  # one arena would make compilers for GPUs wait for it
    if wanted and on_cpu and not args.as_is and sys.platform == "linux":
        command = [sys.executable, "-m", "benchmarks.train_step", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | wanted)
    return " ".join(f"{n}={os.environ[n]}" for n in ENVIRONMENT if n in os.environ) or "as it was"


def make_config(args: argparse.Namespace) -> Any:
    """The small CLIP as a config of the package."""
    from big_retrieval.config import (
        Bert,
        Config,
        ImageField,
        Optimizer,
        Projection,
        Schedule,
        TextField,
        ViT,
    )

    if args.width % 64 or args.image_size % 16:
        raise SystemExit("--width must be a multiple of 64 and --image-size of 16.")
    sizes: Any = {"width": args.width, "depth": args.depth}
    sizes |= {"heads": args.width // 64, "mlp": 4 * args.width}
    head = Projection(dim=args.width)
    return Config(
        total_steps=1000,
        batch_size=args.batch,
        dtype=args.dtype,
        fields={
            "image": ImageField(size=args.image_size, head=head),
            "text": TextField(length=args.length, head=head),
        },
        towers={"image": ViT(patch=16, **sizes), "text": Bert(vocab_size=args.vocab, **sizes)},
        optimizer=Optimizer(lr=1e-4, schedule=Schedule(type="constant")),
    )


def make_arrays(args: argparse.Namespace) -> dict[str, Any]:
    """A random batch: pixels, ids and texts of a quarter of the length or more."""
    import numpy as np

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (args.batch, args.image_size, args.image_size, 3), np.uint8)
    ids = rng.integers(1, args.vocab, (args.batch, args.length), np.int32)
    lengths = rng.integers(max(1, args.length // 4), args.length + 1, (args.batch, 1))
    mask = np.arange(args.length) < lengths  # [B, L]
    return {"pixels": pixels, "ids": np.where(mask, ids, 0), "mask": mask}


def compile_ours(config: Any, vocab: int) -> tuple[Any, Any]:
    """The parts of a run and its compiled step; nothing of the model is allocated."""
    import jax

    from big_retrieval import parallel
    from big_retrieval.config.checks import check
    from big_retrieval.train.build import build_model
    from big_retrieval.train.step import abstract_batch, compile_step

    check(config)
    mesh = parallel.make_mesh(config, jax.devices()[:1])
    parts = build_model(config, mesh, vocab_size=vocab, total_steps=config.total_steps)
    return parts, compile_step(parts.steps[0], parts.abstract, abstract_batch(config, mesh), mesh)


def our_step(parts: Any, compiled: Any, arrays: Mapping[str, Any]) -> tuple[Any, Callable[[], Any]]:
    """Our initial parameters as numpy arrays, and a call that takes a step on the batch."""
    import jax
    import numpy as np

    from big_retrieval import parallel

    size = len(arrays["ids"])
    fields = {
        "image": {"pixels": arrays["pixels"]},
        "text": {"ids": arrays["ids"], "mask": arrays["mask"]},
    }
    numbers = {"record": np.arange(size), "valid": np.ones(size, bool)}
    with parallel.use(parts.mesh):
        state = parts.draw()
    batch = parallel.to_batch({**fields, **numbers}, parts.mesh, size)
    params = jax.tree.map(np.array, state.params)  # copies: the step reuses the buffers

    def step() -> float:
        nonlocal state
        state, metrics = compiled(state, batch)
        return float(jax.block_until_ready((state, metrics))[1]["loss"])

    return params, step


def time_both(args: argparse.Namespace, config: Any, parts: Any, compiled: Any) -> dict[str, Any]:
    """Compares the losses of the first steps, then takes steps in turn."""
    import jax

    from benchmarks import torch_clip

    arrays = make_arrays(args)
    params, step = our_step(parts, compiled, arrays)
    steps, version = {"ours": step}, "none: pip install torch"
    if torch_clip.available():
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        device = "cuda" if jax.devices()[0].platform == "gpu" else "cpu"
        steps["torch"], version = torch_clip.make_step(
            config, params, arrays, threads, device=device
        )
    losses = {name: [call() for _ in range(CHECKED_STEPS)] for name, call in steps.items()}
    for number, row in enumerate(zip(*losses.values(), strict=True), 1):
        told = ", ".join(f"{name} {loss:.6f}" for name, loss in zip(losses, row, strict=True))
        print(f"loss of step {number}: {told}")
    seconds = measure.interleaved(steps, args.rounds)
    out: dict[str, Any] = {
        "torch": version,
        "cpu_seconds": seconds["ours"].cpu,
        "wall_seconds": seconds["ours"].wall,
        "loss": losses["ours"][-1],
    }
    names = ("torch_cpu_seconds", "plain_cpu_seconds", "torch_wall_seconds", "torch_loss")
    out |= dict.fromkeys((*names, "loss_difference", "ratio", "wall_ratio"))
    if "torch" in steps:
        peer = seconds["torch"]
        pairs = list(zip(losses["ours"], losses["torch"], strict=True))
        out |= dict(zip(names, (peer.cpu, peer.cpu, peer.wall, losses["torch"][-1]), strict=True))
        out["loss_difference"] = max(abs(a - b) / abs(b) for a, b in pairs)
        out["ratio"], out["wall_ratio"] = (
            seconds["ours"].cpu / peer.cpu,
            out["wall_seconds"] / peer.wall,
        )
    return out


def main() -> None:
    """Compiles our step, and takes steps in turn unless told not to."""
    args = flags()
    environment = restart(args)
    config = make_config(args)
    parts, compiled = compile_ours(config, args.vocab)
    row: dict[str, Any] = {
        "benchmark": "train_step",
        "machine": measure.machine(),
        "environment": environment,
        **{n: getattr(args, n) for n in ("batch", "width", "depth", "image_size", "length")},
        "vocab": args.vocab,
        "parameters": sum(parts.parameters.values()),
        "temp_bytes": measure.temp_bytes(compiled),
        "plain_temp_bytes": None,
    }
    if not args.compile_only:
        row |= time_both(args, config, parts, compiled)
    measure.report(row, args.json)


if __name__ == "__main__":
    main()
