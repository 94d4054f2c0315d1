"""Layers and training steps as the compilers of TPUs and GPUs see them, without the chips.

    python -m benchmarks.chips --targets=v5e-16,v5e-256 --compare
    python -m benchmarks.chips --layers --targets= --big-vision=../big_vision
    python -m benchmarks.chips --targets=h100-8 --write

Compiles ahead of time for devices that need not exist: TPUs with the extra plan-tpu, GPUs with
plan-gpu, one kind per call. Cycles are the TPU compiler's estimate, plus Pallas kernels by their
schedule and 10% for waits, plus scatters, gathers and sorts by rules of `compiled.unestimated`.
Collectives are not in them, only in the wire bytes and the MFU. Nothing is measured. The last
numbers are in benchmarks/chips.json: `--compare` prints changes, `--write` updates the rows of this
call.
"""

import argparse
import importlib.metadata
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from big_retrieval.compiled.figures import total_cycles
from big_retrieval.errors import UserError
from big_retrieval.plan import environment, targets
from big_retrieval.runtime import chips
from big_retrieval.runtime.chips import Chip

RESULTS = Path(__file__).parent / "chips.json"
TARGETS = "v5e-16,v5e-256,v5p-64"
CONFIGS = (
    "oblique_b16",
    "oblique_b16:batch=24576,microbatch=2048",
    "vdr_cm_yfcc15m",
    "vdr_t2t_msmarco",
    "gcl_gs10m:scratch",
)
BATCHES, LENGTHS = (128, 64, 32), (212, 197)
LAYER_CHIP = "v5e"
# Steps of tests/plan/test_chip_costs.py, and what must not grow in them. After a change that makes
# one more expensive on purpose, run these flags with --write.
TEST_FLAGS = (
    "--targets=v5e-4",
    "--configs=oblique_b16:batch=2048,microbatch=512;vdr_cm_yfcc15m:batch=1024",
    "--depth=2",
)
LIMITED = ("cycles", "hbm_bytes", "all_reduce_bytes")
Row = dict[str, Any]


def flags(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--targets", default=TARGETS, help="chips to compile steps for, e.g. v5e-16,v5p-64")
    add("--configs", default=";".join(CONFIGS), help="configs of the steps, separated by ;")
    add("--set", default="", help="config keys for all steps, e.g. mesh.fsdp=4,dtype=float32")
    add("--depth", type=int, default=0, help="layers of every tower; 0 for the config's")
    add("--layers", action="store_true", help=f"compile single layers for one {LAYER_CHIP} chip")
    add("--batches", default=",".join(map(str, BATCHES)), help="images per call of the layers")
    add("--lengths", default=",".join(map(str, LENGTHS)), help="tokens per image of the layers")
    add("--big-vision", default="", help="folder of a checkout of big_vision; empty leaves it out")
    add("--results", type=Path, default=RESULTS, help="JSON file of the last numbers")
    add("--compare", action="store_true", help="print changes against --results")
    add("--write", action="store_true", help="store the rows of this call in --results")
    add("--json", action="store_true", help="print the rows as JSON in the last line")
    return parser.parse_args(argv)


def make_row(figures: Row, pairs: float) -> Row:
    """The costs of a program on one device.

    Args:
      figures: from `plan.compiling` or `compiled.figures`.
      pairs: pairs, or images times layers, that one device processes.
    """
    row: Row = {
        "hbm_bytes": figures["total_bytes"],
        "temp_bytes": figures["temp_bytes"],
        "wire_bytes": round(figures["wire_bytes"]),
        "exposed_wire_bytes": round(figures["exposed_wire_bytes"]),
        "all_reduce_bytes": round(figures["wire_bytes_by_collective"].get("all-reduce", 0)),
    }
    if figures["loops_of_unknown_length"]:
        row["loops_of_unknown_length"] = figures["loops_of_unknown_length"]
    if figures["cycles"] is not None:
        kernels = figures["kernel_cycles"]
        if kernels is None:
            raise UserError("The TPU compiler wrote no schedules of the kernels: unset TPU flags.")
        row["cycles"], row["kernel_cycles"] = total_cycles(figures) or 0, kernels
        row["unestimated_cycles"] = figures["unestimated_cycles"]
        row["cycles_per_pair"] = round(row["cycles"] / pairs)
    return row


def layer_rows(args: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    """Costs of one layer of each library."""
    import jax

    from benchmarks import chip_layers
    from big_retrieval import parallel
    from big_retrieval.compiled.figures import compiled_figures
    from big_retrieval.plan.targets import target_devices

    devices = target_devices(*chips.parse(f"{LAYER_CHIP}-1"))
    axes: Any = (jax.sharding.AxisType.Auto,) * len(parallel.AXES)
    mesh = jax.make_mesh((1, 1, 1), parallel.AXES, devices=devices, axis_types=axes)
    models = chip_layers.MODELS
    if args.big_vision:
        sys.path.append(args.big_vision)
    else:
        models = models[:-1]
    sizes = itertools.product(args.lengths.split(","), args.batches.split(","), models)
    for length, batch, model in sizes:
        schedules = environment.empty_schedules()
        compiled = chip_layers.compile_layers(model, int(batch), int(length), mesh)
        figures = compiled_figures(compiled, schedules)
        row = make_row(figures, int(batch) * chip_layers.DEPTH)
        yield f"layer {LAYER_CHIP} {model} B={batch} L={length}", row


def step_rows(args: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    """Costs of training steps."""
    for target in filter(None, args.targets.split(",")):
        for name in args.configs.split(";"):
            depth = f"depth={args.depth}" if args.depth else ""
            key = " ".join(filter(None, (target, name, args.set, depth)))
            yield key, step_costs(args, name, *chips.parse(target))


def build(config: Any, devices: Sequence[Any]) -> Any:
    """The model and steps of a config on some devices, as a `BuiltModel`; nothing is allocated."""
    from big_retrieval import parallel
    from big_retrieval.plan.vocabulary import vocabulary
    from big_retrieval.train.build import build_model

    words = vocabulary(config).size
    mesh = parallel.make_mesh(config, devices)
    return build_model(config, mesh, vocab_size=words, total_steps=1000)


def step_costs(args: argparse.Namespace, name: str, chip: Chip, count: int) -> Row:
    """Costs of one training step on each of `count` devices."""
    from big_retrieval.plan.compiling import compile_plan
    from big_retrieval.plan.targets import target_devices
    from big_retrieval.train.step_figures import pair_flops, step_times

    parts = build(load_config(name, args.set, args.depth), target_devices(chip, count))
    config, figures = parts.config, compile_plan(parts)
    if figures["temp_bytes"] is None:  # the compiler refuses a step that does not fit
        return {"hbm_bytes": figures["total_bytes"], "compile_seconds": figures["seconds"]}
    row = make_row(figures, config.batch_size / count)
    row["compile_seconds"] = figures["seconds"]
    operations = {"towers": config.batch_size * pair_flops(config, parts.model)}
    times = step_times(chip, count, operations, figures)
    shares = {name: times[name] for name in ("mfu", "compute_mfu")}
    return row | {name: round(share, 4) for name, share in shares.items() if share is not None}


def load_config(name: str, changes: str, depth: int) -> Any:
    """A checked config with keys changed."""
    from big_retrieval import config as configs
    from big_retrieval.cli.config_file import run_config_file
    from big_retrieval.config.checks import check

    config = run_config_file(name)
    for change in filter(None, changes.split(",")):
        key, _, value = change.partition("=")
        *path, last = key.split(".")
        entry: Any = config
        for part in path:
            entry = entry[part]
        entry[last] = int(value) if value.isdigit() else value
    for tower in config.towers.values() if depth else ():
        tower.depth = depth
    config = configs.load(config)
    check(config)
    return config


def format_changes(row: Row, old: Row) -> str:
    """Changes of a row against an older one, as text; only those above 0.5%."""
    found = []
    for name in (*LIMITED, "wire_bytes"):
        before, after = old.get(name), row.get(name)
        if before and after is not None and abs(after / before - 1) > 0.005:
            found.append(f"{name} {after / before - 1:+.1%}")
    return ", ".join(found) or "unchanged"


def format_row(key: str, row: Row) -> str:
    """One line of text."""
    columns = [f"{row['hbm_bytes'] / 2**30:6.2f} GiB"]
    if "wire_bytes" not in row:
        return f"{key:<62} {columns[0]}: does not fit"
    if "cycles" in row:
        kernels, ours = (
            row[f"{part}_cycles"] / row["cycles"] for part in ("kernel", "unestimated")
        )
        shares = f"{kernels:.0%} kernels, {ours:.0%} scatter, gather, sort"
        columns.append(f"{row['cycles_per_pair'] / 1e3:9,.1f}k cycles/pair ({shares})")
    if "mfu" in row:
        columns.append(f"MFU {row['mfu']:.1%} ({row['compute_mfu']:.1%} without transfers)")
    wire = f"wire {row['wire_bytes'] / 2**20:8,.1f} MiB"
    columns.append(f"{wire} ({row['exposed_wire_bytes'] / 2**20:,.1f} exposed)")
    return f"{key:<62} " + "  ".join(columns)


def versions() -> dict[str, str]:
    """Versions of the compilers that are installed."""
    names = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "flax")
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_rows(path: Path, rows: dict[str, Row]) -> None:
    """Stores rows in a JSON file; other rows of the file stay."""
    old = json.loads(path.read_text()) if path.exists() else {}
    content = {
        "versions": {**old.get("versions", {}), **versions()},
        "rows": {**old.get("rows", {}), **rows},
    }
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Compiles what the flags name, prints a line each, and compares or stores the rows."""
    args = flags()
    old = json.loads(args.results.read_text()) if args.results.exists() else {}
    rows: dict[str, Row] = {}
    layers = [f"{LAYER_CHIP}-1"] if args.layers else []
    for target in filter(None, [*layers, *args.targets.split(",")]):
        chip, count = chips.parse(target)
        if reason := targets.missing(chip):
            raise UserError(reason)
        environment.prepare(chip, count)
    sources = [layer_rows(args)] if args.layers else []
    for key, row in itertools.chain(*sources, step_rows(args)):
        rows[key] = row
        line = format_row(key, row)
        if args.compare and key in old.get("rows", {}):
            line += f"  [{format_changes(row, old['rows'][key])}]"
        print(line, flush=True)
        if args.write:
            write_rows(args.results, {key: row})
    if args.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
