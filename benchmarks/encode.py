"""Encoding texts and images on a CPU: ours beside sentence-transformers, onnxruntime, transformers.

    python -m benchmarks.encode --model=FOLDER --texts=questions.jsonl --column=text
    python -m benchmarks.encode --model=FOLDER --texts=answers.parquet --column=answer \\
        --onnx=FOLDER
    python -m benchmarks.encode --model=FOLDER --texts=questions.jsonl --every=20 --calls=5
    python -m benchmarks.encode --model=FOLDER --texts=questions.jsonl --index
    python -m benchmarks.encode --images=128 --peers=transformers

`--model` is a folder of sentence-transformers, `--onnx` the same model as `big-retrieval import`
and `big-retrieval export --to=onnx` write it. Images are generated JPEG files of 300 x 300 pixels,
their model is a vision transformer of ViT-B/32's size with random weights.

Every run is a process of its own, and the sides take turns. The table compares calls with all
values that come behind a first one (`--calls`, of which it takes the median): of ours with the same
values, and what that took more, compilation above all, stands apart; of peers with one batch. Peers
get batches of `--batch` texts of like length, padded to the longest, which is what
sentence-transformers does by itself. Threads that wait do not spin. `--index` compares whole
processes that write an index (`benchmarks/encode_index.py`).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import encode_index, measure
from benchmarks.encode_peers import PEERS

OURS = encode_index.OURS


def flags() -> argparse.Namespace:
    """The command line."""
    parser = measure.parser(__doc__)
    parser.set_defaults(rounds=3)
    parser.add_argument("--model", default="", help="folder of sentence-transformers")
    parser.add_argument("--texts", default="", help="file of texts: JSONL, CSV, Parquet")
    parser.add_argument("--column", default="text", help="of the texts")
    parser.add_argument("--count", type=int, default=0, help="of the first texts; 0: all")
    parser.add_argument("--every", type=int, default=1, help="of so many texts one is taken")
    parser.add_argument("--onnx", default="", help="folder of `big-retrieval export --to=onnx`")
    parser.add_argument("--images", type=int, default=0, help="files that are generated")
    parser.add_argument("--peers", default="sentence-transformers", help=f"of: {', '.join(PEERS)}")
    parser.add_argument("--batch", type=int, default=32, help="texts or images of a peer's batch")
    parser.add_argument("--calls", type=int, default=1, help="calls behind the first one")
    parser.add_argument("--index", action="store_true", help="build an index of the texts")
    parser.add_argument("--side", default="", help="for the benchmark itself: what a process runs")
    parser.add_argument("--folder", default="", help="for the benchmark itself: inputs, results")
    return parser.parse_args()


def ours(args: argparse.Namespace) -> Callable[[Sequence[str]], np.ndarray]:
    """Our side: what encodes texts, or image files."""
    import big_retrieval

    place = f"{args.folder}/vit" if args.images else args.model
    model = big_retrieval.import_model(place)
    name = next(iter(model.config.encoded))
    return lambda values: np.asarray(model.encode(values, name)).reshape(len(values), -1)


def one_side(args: argparse.Namespace) -> None:
    """A process of its own: loads, encodes, says what it took, and leaves the embeddings."""
    if args.index:
        print(json.dumps(encode_index.one_side(args)))
        return
    values = json.loads((Path(args.folder) / "values.json").read_text())
    start = time.process_time()
    encode = ours(args) if args.side == OURS else PEERS[args.side](args)
    row: dict[str, Any] = {"load": time.process_time() - start}
    start = time.process_time()
    encode(values if args.side == OURS else values[: args.batch])
    row["first"] = time.process_time() - start
    cpus, walls, found = [], [], None
    for _ in range(args.calls):
        cpu, wall = time.process_time(), time.perf_counter()
        found = encode(values)
        cpus.append(time.process_time() - cpu)
        walls.append(time.perf_counter() - wall)
    np.save(Path(args.folder) / f"{args.side}.npy", np.asarray(found))
    print(json.dumps({**row, "cpu": statistics.median(cpus), "wall": statistics.median(walls)}))


def prepare(args: argparse.Namespace, folder: Path) -> int:
    """Writes what all sides encode, and the model of images; returns how many there are."""
    from big_retrieval import config as configs
    from big_retrieval.data.build import make_source

    if args.images:
        from benchmarks.encode_peers import write_vit
        from benchmarks.input_pipeline import write_images

        write_images(folder, args.images, 300, 300)
        write_vit(folder / "vit")
        values = [str(folder / f"{number}.jpg") for number in range(args.images)]
    else:
        pairs = configs.Pairs(path=args.texts, image="", text=args.column)
        values = list(make_source(pairs).captions())
        values = values[: args.count or None][:: args.every]
    (folder / "values.json").write_text(json.dumps(values))
    if args.index:
        encode_index.prepare(args, values, folder)
    return len(values)


def run_side(args: argparse.Namespace, side: str, folder: Path) -> dict[str, float]:
    """Runs a side in a process of its own; returns its CPU and wall seconds."""
    shared = ("model", "onnx", "images", "batch", "calls")
    command = [sys.executable, "-m", "benchmarks.encode", f"--side={side}", f"--folder={folder}"]
    command += [f"--{name}={getattr(args, name)}" for name in shared]
    command += ["--index"] if args.index else []
    shutil.rmtree(folder / "index", ignore_errors=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Interleaved rounds of all sides, as one row."""
    count = prepare(args, folder)
    sides = [OURS, *filter(None, args.peers.split(","))]
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for number in range(args.rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
            runs[side].append(run_side(args, side, folder))
            print(f"round {number + 1}, {side}: {runs[side][-1]}", file=sys.stderr, flush=True)
    row: dict[str, Any] = {"values": count}
    for side, found in runs.items():
        median = {key: statistics.median(run[key] for run in found) for key in found[0]}
        if args.index:
            row |= {f"{side}_{name}": seconds for name, seconds in median.items()}
            continue
        row |= {f"{side}_cpu": median["cpu"], f"{side}_wall": median["wall"]}
        if side == OURS:
            row["ours_first_call_more"] = median["first"] - median["cpu"]
    mine = np.load(folder / f"{OURS}.npy")
    for side in sides[1:]:
        pairs = zip(runs[OURS], runs[side], strict=True)
        ratios = sorted(a["cpu"] / b["cpu"] for a, b in pairs)
        row[f"{side}_ratio"] = statistics.median(ratios)
        row[f"{side}_ratios"] = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        row[f"{side}_difference"] = float(np.abs(mine - np.load(folder / f"{side}.npy")).max())
    return row


def main() -> None:
    """Compares, and reports; or runs one side."""
    measure.let_threads_sleep()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    args = flags()
    if args.side:
        one_side(args)
        return
    unknown = set(filter(None, args.peers.split(","))) - set(PEERS)
    if args.index and (args.images or set(args.peers.split(",")) - set(encode_index.SIDES)):
        raise SystemExit("--index is of texts, and its only peer is sentence-transformers")
    if unknown or bool(args.texts and args.model) == bool(args.images):
        raise SystemExit(f"give --model and --texts, or --images; peers are {', '.join(PEERS)}")
    row: dict[str, Any] = {"benchmark": "encode", "machine": measure.machine()}
    if not args.compile_only:
        with tempfile.TemporaryDirectory() as folder:
            row |= compare(args, Path(folder))
    measure.report(row, args.json)


if __name__ == "__main__":
    main()
