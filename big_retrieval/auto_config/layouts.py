"""JSON files with a whole data set: COCO's captions and Karpathy's split files."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from big_retrieval.config import Karpathy
from big_retrieval.data.sources import Record
from big_retrieval.errors import UserError
from big_retrieval.io import durable
from big_retrieval.io.regular import read_text

PEEKED = 2**16  # bytes at the start and the end of a file
COCO = (b'"image_id"', b'"caption"')
KARPATHY = (b'"sentences"', b'"filename"', b'"images"')
SPLITS = {"train": ("train", "restval"), "validation": ("val",), "test": ("test",)}  # Karpathy's


def has_layout(file: Path, keys: Sequence[bytes]) -> bool:
    """Returns True if a JSON file contains all keys near its start or end."""
    if file.suffix.lower() != ".json" or not file.is_file():
        return False
    with file.open("rb") as opened:
        content = opened.read(PEEKED)
        opened.seek(max(0, file.stat().st_size - PEEKED))
        content += opened.read()
    return all(key in content for key in keys)


def write_coco(file: Path, images: str, out: Path) -> None:
    """Writes COCO's captions as JSON lines, a line per image with captions.

    The pictures of captions_NAME.json are in the folder NAME of `images`, if it exists, or else in
    `images`. If `images` is empty, they are in the folder NAME next to the file's folder, if it
    exists, or else in the file's folder.
    """
    split = (Path(images) if images else file.parent.parent) / file.stem.removeprefix("captions_")
    root = split if split.is_dir() else Path(images or file.parent)
    content = _read(file)
    try:
        lines = [json.dumps(row) + "\n" for row in _coco_rows(content, root.absolute())]
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(file, error) from None
    durable.make_folder(out.parent)
    durable.write_bytes(out, "".join(lines).encode())


def _coco_rows(content: Any, root: Path) -> Iterator[Record]:
    captions: dict[int, list[str]] = {}
    for entry in content["annotations"]:
        captions.setdefault(entry["image_id"], []).append(entry["caption"].strip())
    for image in content["images"]:
        if image["id"] in captions:
            yield {"image": str(root / image["file_name"]), "captions": captions[image["id"]]}


def karpathy_sources(file: Path, images: str) -> dict[str, Karpathy]:
    """Returns split -> source of a Karpathy split file; raises a UserError without train or val."""
    content = _read(file)
    try:
        names = {image["split"] for image in content["images"]}
    except (KeyError, TypeError) as error:
        raise _damaged(file, error) from None
    if not {"train", "val"} <= names:
        raise UserError(
            f"--data: {file} has the splits {', '.join(sorted(names))}. Name the split of each "
            "image: train, val or test."
        )
    options = {"path": str(file), "images": images, "captions": 0, "skip_missing": True}
    splits = {x: "+".join(name for name in y if name in names) for x, y in SPLITS.items()}
    return {name: Karpathy(split=split, **options) for name, split in splits.items() if split}


def _read(file: Path) -> Any:
    try:
        return json.loads(read_text(file, "utf-8-sig", "replace"))
    except (ValueError, RecursionError) as error:
        raise _damaged(file, error) from None


def _damaged(file: Path, error: Exception) -> UserError:
    return UserError(
        f"--data: {file} cannot be read as captions of COCO or as a Karpathy split file "
        f"({type(error).__name__}: {error}). Correct it, or give another file."
    )
