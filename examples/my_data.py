"""A source of your own: a folder of JSON files, each with the path of an image and its captions.

    python examples/my_data.py pictures                  # writes a folder of this form, to try it
    cd anywhere && big-retrieval train --config=PATH/my_data.py:data=pictures
    big-retrieval evaluate --run=RUN --plugins=PATH/my_data.py

    pictures/cat.json    {"file": "img/cat.jpg", "captions": ["a cat", "a sleeping animal"]}
    pictures/img/cat.jpg

A source is a frozen dataclass, whose fields are its keys, and what its `build` returns: records by
index, which `big_retrieval/data/sources.py` describes. Where records are rows with the path (or the
content) of an image and with texts, as here, `Records` makes them of a `Table`, whose `row` reads
one row and nothing more. Images are then decoded in threads or worker processes at the
size that is needed, and a file that is damaged costs its own record, which the run names and
counts. Evaluators, mixtures (`config.Mixture`) and sweeps take the source as they take ours.
"""

import json
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.stores.json_files import parse_object
from big_retrieval.errors import Damaged, UserError


@config.register("source")
@dataclass(frozen=True)
class JsonFolder(config.Source):
    """One record for each JSON file of a folder, in the order of their names."""

    type: Literal["json_folder"] = "json_folder"
    folder: str = ""
    image: str = "file"  # key of the image's path, which starts from the folder
    text: str = "captions"  # key of one text or a list of texts
    split: str = ""  # only files whose name begins so, such as "train_"

    def check(self, path: str) -> Iterator[str]:
        """What is wrong with the keys, a sentence each; asked before anything is opened."""
        for key in ("folder", "image", "text"):
            if not getattr(self, key):
                yield f"{path}.{key} is empty; name your {key}."

    def build(self) -> Records:
        """The records; opened by the run, by evaluators and by commands."""
        table = JsonFiles(Path(self.folder), self.split)
        return Records(table, image=(self.image,), text=self.text, root=self.folder)

    def runlocal(self) -> config.Source:
        """`:runlocal` reads the folder where one is given, and generated data where none is."""
        return self if self.folder else super().runlocal()


class JsonFiles(Table):
    """The files as rows. Holds their names alone, and can be pickled for worker processes."""

    def __init__(self, folder: Path, split: str):
        self.name = folder.name
        self._folder = folder.absolute()
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}; give one with a JSON file an image.")
        self._names = sorted(path.name for path in folder.glob(f"{split}*.json"))
        if not self._names:
            raise UserError(f"{folder} has no file {split}*.json; give each image one.")

    def __len__(self) -> int:
        return len(self._names)

    def place(self, index: int) -> str:
        """Where a row stands, for messages."""
        return str(self._folder / self._names[index])

    def row(self, index: int, columns: Collection[str] | None = None) -> dict[str, Any]:
        """One row. Any exception makes it a damaged record; `Damaged` gives a reason."""
        row, reason = parse_object(Path(self.place(index)).read_bytes())
        if reason is not None:
            raise Damaged(self.place(index), reason)
        return row


def get_config(arg: str = "") -> recipe.Editable:
    """A small model. Arguments: data (the folder; without it `:runlocal` alone works); runlocal."""
    args = recipe.parse_arg(arg, data="")
    c = recipe.small()
    c.total_epochs, c.total_steps, c.batch_size = 20, None, 64
    c.data = recipe.entry(JsonFolder(), folder=args.data, split="train_" if args.data else "")
    c.evals.test.data = recipe.entry(JsonFolder(), folder=args.data, split="test_")
    return recipe.runlocal(c) if args.runlocal else c


def main(folder: str, train: int = 400, test: int = 100) -> None:
    """Writes a folder of generated images with their JSON files."""
    from PIL import Image

    (Path(folder) / "img").mkdir(parents=True)
    parts = {"train": config.Scenes(count=train), "test": config.Scenes(split="test", count=test)}
    for split, part in parts.items():
        scenes = part.build()
        for number in range(len(scenes)):
            record, name = scenes[number], f"{split}_{number:04d}"
            Image.fromarray(record["image"]).save(Path(folder) / "img" / f"{name}.png")
            row = {"file": f"img/{name}.png", "captions": record["captions"]}
            (Path(folder) / f"{name}.json").write_text(json.dumps(row))


if __name__ == "__main__":
    main(sys.argv[1])
