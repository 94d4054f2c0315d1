"""What a folder of data holds: shards that `convert` wrote, or pictures."""

import os
from pathlib import Path

INDEX = "dataset.json"  # of shards, written last
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".ppm")
RUN_FILE = "metrics.jsonl"  # a folder with it is a run, whose pictures are no data


def is_folder_of_shards(folder: Path) -> bool:
    """Returns True if `convert` has written shards into a folder, or begun to.

    A file called dataset.json alone may be a Karpathy split file.
    """
    return any(folder.glob("part-*.array_record*"))


def walk(folder: Path, leave_out: Path | None = None) -> list[Path]:
    """All files below a folder in order, without hidden ones and without those of runs."""
    out = []
    for place, folders, names in os.walk(folder):
        here = Path(place)
        if RUN_FILE in names or (leave_out is not None and here == leave_out.absolute()):
            folders[:] = []
            continue
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        out += [here / name for name in sorted(names) if not name.startswith(".")]
    return out
