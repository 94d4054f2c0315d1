"""A folder of pictures, perhaps with captions in text files of the same name, as rows."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from big_retrieval.data.formats.folders import IMAGES, walk
from big_retrieval.data.formats.tables import Rows
from big_retrieval.errors import UserError

CAPTIONS = (".txt", ".caption", ".json")
KEYS = ("captions", "caption", "text")  # of a JSON file beside a picture
MOST_CAPTION = 2**16  # bytes of a text file; longer ones are no captions


def open_pictures(folder: Path) -> Rows:
    """All pictures below a folder, as `picture_rows`; paths start from the folder that it is in.

    Args:
      folder: of the pictures.

    Raises:
      UserError: it has none.
    """
    whole = folder.absolute()
    files = walk(whole)
    images = [file for file in files if file.suffix.lower() in IMAGES]
    if not images:
        raise UserError(
            f"{folder} is a folder without array_record shards and without pictures; give "
            "files (.csv, .tsv, .jsonl, .parquet, .npz, .tar), a folder of pictures, or one that "
            "`big-retrieval data convert` made."
        )
    texts = [file for file in files if file.suffix.lower() in CAPTIONS]
    rows, _ = picture_rows(images, texts, whole)
    for row in rows:
        row["image"] = f"{whole.name}/{row['id']}"
    return Rows(rows, folder.name)


def picture_rows(
    images: Sequence[Path], texts: Sequence[Path], folder: Path
) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each picture: its path, captions, name, folder, and as "id" the path in `folder`.

    The captions of a picture are the lines of the text file of its name, beside it or, where none
    is there, in another folder whose path below ends alike (images/a/cat.jpg, texts/a/cat.txt).

    Args:
      images: paths of pictures.
      texts: paths of text files.
      folder: that all are in.

    Returns:
      The rows, with "captions" where some picture has a text file, and what to say about them.
    """
    beside = {file.with_suffix(""): file for file in reversed(texts)}
    beside |= {file.with_suffix("").with_suffix(""): file for file in texts if _double(file)}
    by_name: dict[str, list[Path]] = {}
    for file in texts:
        by_name.setdefault(file.stem, []).append(file)
    rows, without, elsewhere = [], 0, 0
    for image in images:
        own = beside.get(image.with_suffix(""))
        if own is None:
            own = _elsewhere(image, by_name, folder)
            elsewhere += own is not None
        captions = read_captions(own) if own else []
        without += not captions
        rows.append(
            {
                "image": str(image),
                "captions": captions,
                "name": " ".join(image.stem.replace("_", " ").replace("-", " ").split()),
                "folder": " ".join(image.parent.name.replace("_", " ").split()),
                "id": image.relative_to(folder).as_posix(),
            }
        )
    if without == len(rows):
        for row in rows:
            del row["captions"]
        return rows, []
    notes = [f"{len(rows):,} pictures, {len(rows) - without:,} with a text file of their name"]
    if elsewhere:
        notes.append(f"{elsewhere:,} of these text files are in another folder than the picture")
    return rows, notes


def _double(file: Path) -> bool:
    """Whether a text file is named after the whole name of a picture, such as cat.jpg.txt."""
    return file.with_suffix("").suffix.lower() in IMAGES


def _elsewhere(image: Path, by_name: Mapping[str, list[Path]], folder: Path) -> Path | None:
    """The only text file of the picture's name, or that whose folders are the same from below."""
    found = by_name.get(image.stem, [])
    if len(found) < 2:
        return found[0] if found else None

    def shared(file: Path) -> int:
        pairs = zip(reversed(image.parent.parts), reversed(file.parent.parts), strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), 0)

    best = max(found, key=shared)
    return best if shared(best) and sum(shared(x) == shared(best) for x in found) == 1 else None


def read_captions(file: Path) -> list[str]:
    """The lines of a text file that are not empty, or what a JSON file has under one of `KEYS`.

    Files are UTF-8, else Windows-1252.
    """
    with file.open("rb") as opened:
        data = opened.read(MOST_CAPTION)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
    if file.suffix == ".json":
        return _of_json(text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def _of_json(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    value = next((found[key] for key in KEYS if key in found), "") if type(found) is dict else ""
    several = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [each.strip() for each in several if isinstance(each, str) and each.strip()]
