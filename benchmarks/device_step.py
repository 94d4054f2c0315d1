"""The training step of a config on this machine's accelerators: time, MFU, memory, measured.

    python -m benchmarks.device_step --config=oblique_b16:batch=256
    python -m benchmarks.device_step --config=clip_b16:batch=4096,microbatch=1024 --profile=trace

Compiles the step that the trainer would run, on a random batch that stays on the devices: no data
are read. Beside the peak of the allocator stands what the compiler had said. `--profile` prints the
operations that took most of the devices' time in one more step.
"""

import argparse
import collections
import time
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.chips import build, load_config

SHOWN = 15  # operations of a profile


def flags() -> argparse.Namespace:
    """The command line."""
    parser = measure.parser(__doc__)
    # One: the allocator's peak is that of the whole process.
    parser.add_argument("--config", required=True, help="such as clip_b16:batch=1024")
    parser.add_argument("--set", default="", help="config keys, e.g. dtype=float32")
    parser.add_argument(
        "--depth", type=int, default=0, help="layers of every tower; 0: the config's"
    )
    parser.add_argument("--profile", default="", help="folder for a trace of one step")
    return parser.parse_args()


def draw_batch(abstract: Any, words: int) -> Any:
    """A random batch with the shapes, types and shardings of an abstract one."""
    import jax
    import numpy as np

    rng = np.random.default_rng(0)

    def draw(path: Any, x: Any) -> jax.Array:
        name = str(getattr(path[-1], "key", getattr(path[-1], "name", path[-1])))
        if name == "ids":
            value = rng.integers(1, words, x.shape)
        elif name == "mask":
            length = x.shape[-1]
            lengths = rng.integers(max(1, length // 4), length + 1, (*x.shape[:-1], 1))
            value = np.arange(length) < lengths
        elif x.dtype == np.uint8:
            value = rng.integers(0, 256, x.shape, np.uint8)
        elif np.issubdtype(x.dtype, np.integer):
            value = np.broadcast_to(np.arange(x.shape[0]).reshape(-1, *[1] * (x.ndim - 1)), x.shape)
        else:
            value = np.ones(x.shape)
        return jax.device_put(np.asarray(value, x.dtype), x.sharding)

    return jax.tree_util.tree_map_with_path(draw, abstract)


def run(config: Any, rounds: int, profile: str, compile_only: bool) -> dict[str, Any]:
    """Compiles a config's step and takes it `rounds` times, after one step that does not count."""
    import jax
    import numpy as np

    from big_retrieval import parallel
    from big_retrieval.runtime import chips
    from big_retrieval.train.step import abstract_batch, compile_step
    from big_retrieval.train.step_figures import pair_flops

    parts = build(config, jax.devices())
    shapes, start = abstract_batch(parts.config, parts.mesh), time.perf_counter()
    compiled = compile_step(parts.steps[0], parts.abstract, shapes, parts.mesh)
    memory: Any = compiled.memory_analysis()
    row: dict[str, Any] = {
        "batch": config.batch_size,
        "microbatch": config.microbatch,
        "compile_seconds": time.perf_counter() - start,
        "temp_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
    }
    if compile_only:
        return row
    with parallel.use(parts.mesh):
        state = parts.draw()
    batch, losses, seconds = draw_batch(shapes, parts.model.vocab_size), [], []
    for number in range(rounds + 2):
        if profile and number == rounds + 1:
            jax.profiler.start_trace(profile)
        start = time.perf_counter()
        state, metrics = jax.block_until_ready(compiled(state, batch))
        seconds.append(time.perf_counter() - start)
        losses.append(float(metrics["loss"]))
    if profile:
        jax.profiler.stop_trace()
        row["profile"] = operations(profile)
    row["first_loss"], row["last_loss"] = losses[0], losses[-1]
    row["seconds"] = float(np.median(seconds[1 : rounds + 1]))
    row["pairs_per_second"] = config.batch_size / row["seconds"]
    peak = chips.peak_flops(jax.devices()[0])
    if peak is not None:
        work = config.batch_size * pair_flops(parts.config, parts.model)
        row["mfu"] = work / row["seconds"] / peak / parts.mesh.size
    row["peak_bytes"] = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return row


def operations(folder: str) -> list[tuple[str, int, float]]:
    """Operations of the newest trace, by device time: (name, calls, milliseconds)."""
    import jax

    newest = max(Path(folder).glob("**/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    calls: collections.Counter[str] = collections.Counter()
    spent: collections.Counter[str] = collections.Counter()
    for plane in jax.profiler.ProfileData.from_file(str(newest)).planes:
        if "/device:" not in plane.name:
            continue
        for line in plane.lines:
            if line.name.startswith(("Stream", "XLA Ops")):
                for event in line.events:
                    calls[event.name] += 1
                    spent[event.name] += event.duration_ns
    return [(name, calls[name], ns / 1e6) for name, ns in spent.most_common()]


def main() -> None:
    """Measures the config's step."""
    args = flags()
    config = load_config(args.config, args.set, args.depth)
    row = run(config, args.rounds, args.profile, args.compile_only)
    kernels = row.pop("profile", [])
    row = {"benchmark": "device_step", "machine": measure.machine(), "config": args.config, **row}
    measure.report(row, args.json)
    if kernels:
        print(f"{sum(ms for _, _, ms in kernels):9.2f} ms  in all operations of one step")
    for kernel, count, milliseconds in kernels[:SHOWN]:
        print(f"{milliseconds:9.2f} ms  {count:5d}  {kernel}")


if __name__ == "__main__":
    main()
