"""JSON files that hold a whole data set: COCO's captions and Karpathy's split files."""

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
    """Returns True if a JSON file has these keys near its start or end."""
    if file.suffix.lower() != ".json" or not file.is_file():
        return False
    with file.open("rb") as opened:
        content = opened.read(PEEKED)
        opened.seek(max(0, file.stat().st_size - PEEKED))
        content += opened.read()
    return all(key in content for key in keys)


def write_coco(file: Path, images: str, out: Path) -> None:
    """Writes COCO's captions as JSON lines, a line for each image that has captions.

    Pictures of annotations/captions_NAME.json are in NAME next to `annotations`, or in `images`;
    else paths start from the file's own folder.

    Raises:
      UserError: the file has another form.
    """
    split = (Path(images) if images else file.parent.parent) / file.stem.removeprefix("captions_")
    root = split if split.is_dir() else Path(images or file.parent)
    whole = _read(file)
    try:
        lines = [json.dumps(row) + "\n" for row in _coco_rows(whole, root.absolute())]
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(file, error) from None
    durable.make_folder(out.parent)
    durable.write_bytes(out, "".join(lines).encode())


def _coco_rows(whole: Any, root: Path) -> Iterator[Record]:
    captions: dict[int, list[str]] = {}
    for entry in whole["annotations"]:
        captions.setdefault(entry["image_id"], []).append(entry["caption"].strip())
    for image in whole["images"]:
        if image["id"] in captions:
            path = str(root / image["file_name"])
            yield {"image": path, "captions": captions[image["id"]]}


def karpathy_sources(file: Path, images: str) -> dict[str, Karpathy]:
    """Returns split -> source of a Karpathy split file.

    Raises:
      UserError: the file has another form, or lacks training or validation images.
    """
    whole = _read(file)
    try:
        names = {image["split"] for image in whole["images"]}
    except (KeyError, TypeError) as error:
        raise _damaged(file, error) from None
    if not {"train", "val"} <= names:
        raise UserError(
            f"--data: {file} has the splits {', '.join(sorted(names))}. Name the split of each "
            "image: train, val or test."
        )
    source = {"path": str(file), "images": images, "captions": 0, "skip_missing": True}
    found = {x: "+".join(name for name in own if name in names) for x, own in SPLITS.items()}
    return {name: Karpathy(split=split, **source) for name, split in found.items() if split}


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
