"""Files that tests of `train --data` and `evaluate --data` write, and what sources read of them."""

import csv
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from big_retrieval.auto_config.columns import DataFlags
from big_retrieval.auto_config.prepare import TrainingRequest, load_config, prepare
from big_retrieval.config import Config
from big_retrieval.config.checks import check
from big_retrieval.data.build import make_source
from big_retrieval.data.images.decoding import picture

WORDS = ["red", "green", "blue", "old", "new", "tall", "small", "round", "cat", "dog"]
WORDS += ["house", "tree", "car"]


def caption(number: int) -> str:
    return f"a {WORDS[number % 13]} {WORDS[number // 13 % 13]} number {number}"


def question(number: int) -> str:
    return f"what is {caption(number)}"


def answer(number: int) -> str:
    return f"the answer to {number} is that {caption(number)} is what it is"


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, (20, 20, 3), dtype=np.uint8)


def png(number: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels(number)).save(out, "PNG")
    return out.getvalue()


def pictures(folder: str, numbers: Sequence[int], name: str = "{}.png") -> None:
    for number in numbers:
        path = Path(folder, name.format(number))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))


def table(path: str, columns: Sequence[str], rows: Any, separator: str = ",") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(columns)
        writer.writerows(rows)


def json_lines(path: str, rows: Sequence[Any]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def tar_of(path: str, samples: Mapping[int, Mapping[str, bytes]]) -> None:
    """Writes a shard of pictures and further members of each sample: ending -> content."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number, members in samples.items():
            for ending, data in {"png": png(number), **members}.items():
                info = tarfile.TarInfo(f"{number}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def run(data: str = "data", init: str = "", workdir: str = "run", **flags: Any) -> Config:
    """Returns the checked config for some data."""
    config = load_config(prepare(TrainingRequest(data, DataFlags(**flags), init), Path(workdir)))
    check(config)
    return config


def records(source: Any) -> list[tuple[bytes, tuple[str, ...]]]:
    """Returns decoded images and captions of all records."""
    built = make_source(source)
    rows = map(built.__getitem__, range(len(built)))
    return [(picture(row["image"]).tobytes(), row["captions"]) for row in rows]


def all_records(config: Config) -> list[tuple[bytes, tuple[str, ...]]]:
    """Returns the records for training and validation, sorted."""
    return sorted(records(config.data) + records(config.evals["validation"].data))


def expected(numbers: Sequence[int]) -> list[tuple[bytes, tuple[str, ...]]]:
    return sorted((pixels(number).tobytes(), (caption(number),)) for number in numbers)
