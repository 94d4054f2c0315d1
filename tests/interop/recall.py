"""A trained model's recall by PyTorch alone, against what the run has measured.

    python -m tests.interop.recall --run=RUN [--eval=test] [--python=PATH]

RUN is a run on generated scenes, such as those of configs/quickstart.py and
configs/scenes_vdr.py. It is exported by --to=torch; the evaluator's records are written to a file;
torch_recall.py, which knows nothing of this package, encodes and ranks them. Prints both recalls;
ends with 1 where they differ by more than equal scores allow.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import big_retrieval
from big_retrieval.data.build import make_source
from big_retrieval.exporting.export import write
from big_retrieval.inference.load import TrainedModel
from big_retrieval.io.manifest import read_meta
from tests.interop.export_all import PYTHON

SCRIPT = Path(__file__).with_name("torch_recall.py")


def write_records(model: TrainedModel, name: str, file: Path) -> None:
    """Writes the images and texts of an evaluator."""
    each: Any = model.config.evals[name]
    source = make_source(each.data)
    texts = [source[i]["captions"] for i in range(len(source))]
    np.savez(
        file,
        images=np.stack([np.asarray(source[i]["image"]) for i in range(len(source))]),
        texts=np.array([text for own in texts for text in own]),
        owners=np.repeat(np.arange(len(texts)), [len(own) for own in texts]),
    )


def compare(run: Path, name: str, python: str, folder: Path) -> dict[str, tuple[float, ...]]:
    """Metric -> ours, that of PyTorch, and its bounds.

    Args:
      run: its folder.
      name: of an evaluator in the config.
      python: see `export_all`.
      folder: for the export and the records.
    """
    model = big_retrieval.load(run)
    write(model, to="torch", out=folder / "export")
    write_records(model, name, folder / "records.npz")
    args = [python, str(SCRIPT), str(folder / "export"), str(folder / "records.npz")]
    done = subprocess.run(args, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    results = read_meta(model.folder)["metrics"]  # of the checkpoint
    if (run / "results.json").is_file():  # the run is finished
        results = json.loads((run / "results.json").read_text())
    theirs = json.loads(done.stdout)
    return {key: (results[f"retrieval/{name}/{key}"], *theirs[key]) for key in theirs}


def wrong(found: dict[str, tuple[float, ...]]) -> list[str]:
    """Metrics in which the two sides differ by more than equal scores allow."""
    rounding = 1e-9  # of the mean of ones and zeros
    return [
        key
        for key, (ours, _, least, most) in found.items()
        if not least - rounding <= ours <= most + rounding
    ]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--eval", default="test")
    parser.add_argument("--python", default=PYTHON)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = compare(args.run, args.eval, args.python, Path(place))
    print("| metric | ours | PyTorch alone | least | most |\n| --- | --- | --- | --- | --- |")
    for key, values in found.items():
        print(f"| {key} | {' | '.join(f'{value:.4f}' for value in values)} |")
    differ = wrong(found)
    print(f"differ: {', '.join(differ)}" if differ else "equal")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
