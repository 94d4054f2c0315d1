"""Images per second from files to batches: read, decode, crop, flip, tokenise, batch.

    python -m benchmarks.input_pipeline --images=256 --image-size=500x375 --threads=2

Generated JPEG files and captions in a JSONL source go through the pipeline of a training run.
"exact" decodes large files whole, "opencv" decodes and resizes with OpenCV. "plain" is the least
that any pipeline must do for the same images: read, decode with Pillow and resize, in one thread.
"torch" is a PyTorch DataLoader that does the same work as ours with Pillow. With --step-seconds a
consumer takes so long for every batch, and `data_wait` is the share of time that it waits. CPU
seconds include worker processes.
"""

import argparse
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags as absl_flags
from PIL import Image

from benchmarks import measure, torch_images
from big_retrieval import config as configs
from big_retrieval.data.build import make_source
from big_retrieval.data.fields.images import ImageReader
from big_retrieval.data.fields.texts import TextReader
from big_retrieval.data.images.decoding import Decoder
from big_retrieval.data.order import Order
from big_retrieval.data.pipeline import Reading, Timed, train_batches
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.data.text.wordpiece import learn_wordpiece
from big_retrieval.runtime.clock import cpu_seconds

WORDS = ("a", "an", "old", "small", "red", "green", "dog", "cat", "house", "tree", "near", "on")


def flags() -> argparse.Namespace:
    """The command line."""
    parser = measure.parser(__doc__)
    parser.add_argument("--images", type=int, default=256, help="files that are generated")
    parser.add_argument("--image-size", default="500x375", help="of the files, in pixels")
    parser.add_argument("--size", type=int, default=224, help="of the images in a batch")
    parser.add_argument("--batch", type=int, default=64, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=8, help="batches of a round")
    parser.add_argument("--threads", type=int, default=2, help="threads of each process")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: threads only")
    parser.add_argument("--torch-workers", type=int, default=2, help="of the DataLoader")
    parser.add_argument("--decoder", default="pillow", help="of the run with --step-seconds")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="of an imitated step")
    return parser.parse_args()


def write_images(folder: Path, count: int, width: int, height: int) -> RecordSource:
    """Smooth random pictures as JPEG files of a usual size in bytes, with captions."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(count):
        coarse = rng.integers(0, 256, (height // 12, width // 12, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        picture.save(folder / f"{number}.jpg", quality=90)
        caption = " ".join(rng.choice(WORDS, 12))
        lines.append(json.dumps({"image": f"{number}.jpg", "captions": [caption]}))
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    return make_source(configs.Pairs(path=str(folder / "pairs.jsonl")))


def pipeline(
    args: argparse.Namespace, source: RecordSource, decoder: Decoder, reduced: bool
) -> Iterator[dict[str, Any]]:
    """One round of batches as training reads them."""
    tokenizer = wordpiece_tokenizer(learn_wordpiece(source.captions(), 200))
    fields = {
        "image": ImageReader(configs.ImageField(size=args.size), decoder, reduced),
        "text": TextReader(configs.TextField(length=77), tokenizer),
    }
    return train_batches(
        source,
        fields=fields,
        order=Order(len(source), 0),
        batch_size=args.batch,
        rows=np.arange(args.batch),
        start_batch=0,
        stop_batch=args.batches,
        reading=Reading(args.threads, args.workers),
    )


def plain(args: argparse.Namespace, folder: Path) -> None:
    """Decodes and resizes as many images, and nothing else."""
    for number in range(args.batch * args.batches):
        with Image.open(folder / f"{number % args.images}.jpg") as picture:
            whole = (args.size, args.size)
            np.asarray(picture.convert("RGB").resize(whole, Image.Resampling.BICUBIC))


def readers(args: argparse.Namespace, folder: Path) -> dict[str, Callable[[], Any]]:
    """What is compared: each reads as many images."""
    width, height = (int(side) for side in args.image_size.split("x"))
    source = write_images(folder, args.images, width, height)

    def ours(decoder: Decoder, reduced: bool) -> Callable[[], Any]:
        return lambda: [None for _ in pipeline(args, source, decoder, reduced)]

    found: dict[str, Callable[[], Any]] = {
        "ours": ours("pillow", True),
        "exact": ours("pillow", False),
        "plain": lambda: plain(args, folder),
    }
    if importlib.util.find_spec("cv2") is not None:
        found["opencv"] = ours("opencv", True)
    if torch_images.available():
        found["torch"] = lambda: torch_images.read(
            folder, args.images, args.size, args.batch, args.batches, args.torch_workers
        )
    return found


def measure_rounds(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Medians over interleaved rounds, the first of which does not count."""
    compared = readers(args, folder)
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in compared}
    for _ in range(args.rounds + 1):
        for name, read in compared.items():
            cpu, wall = cpu_seconds(), time.perf_counter()
            read()
            rounds[name].append((cpu_seconds() - cpu, time.perf_counter() - wall))
    row: dict[str, Any] = {}
    images = args.batch * args.batches
    for name, seconds in rounds.items():
        cpu, wall = np.median(seconds[1:], axis=0)
        prefix = "" if name == "ours" else f"{name}_"
        row |= {
            f"{prefix}images_per_second": images / wall,
            f"{prefix}images_per_cpu_second": images / cpu,
            f"{prefix}cpu_seconds": float(cpu),
            f"{prefix}wall_seconds": float(wall),
        }
    if args.step_seconds:
        row["data_wait"] = data_wait(args, folder)
    return row


def data_wait(args: argparse.Namespace, folder: Path) -> float:
    """Share of the time that a step of `--step-seconds`, taken elsewhere, waits for batches."""
    width, height = (int(side) for side in args.image_size.split("x"))
    source = write_images(folder, args.images, width, height)
    batches = Timed(pipeline(args, source, args.decoder, True))
    next(batches)
    batches.lap()
    start = time.perf_counter()
    for _ in batches:
        time.sleep(args.step_seconds)
    return batches.lap() / (time.perf_counter() - start)


def main() -> None:
    """Generates the files, reads them in rounds, and reports."""
    args = flags()
    absl_flags.FLAGS.mark_as_parsed()  # Grain's worker processes read absl flags
    row: dict[str, Any] = {
        "benchmark": "input_pipeline",
        "machine": measure.machine(),
        **{name: getattr(args, name) for name in ("image_size", "size", "batch", "threads")},
        "workers": args.workers,
        "temp_bytes": None,  # nothing here is compiled
        "plain_temp_bytes": None,
    }
    if not args.compile_only:
        with tempfile.TemporaryDirectory() as folder:
            row |= measure_rounds(args, Path(folder))
    measure.report(row, args.json)


if __name__ == "__main__":
    main()
