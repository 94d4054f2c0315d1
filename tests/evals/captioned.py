"""Images with several captions each, and preset embeddings."""

from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config import ArrayField, TextField
from big_retrieval.data.fields.reader import Tools
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import TOKENIZER, Bound, PresetEncoder, bound


def evaluator(part: Any, source: Records, **embeddings: np.ndarray) -> Bound:
    """An evaluator of embeddings [n, N] of the fields `image`, read from a number, and `text`."""
    fields = {
        "image": ArrayField(side="document", column="number"),
        "text": TextField(length=8),
    }
    readers = {name: x.build(Tools(TOKENIZER, fields=fields)) for name, x in fields.items()}
    encoder = PresetEncoder(**{name: x[:, None] for name, x in embeddings.items()})
    return bound(part, source, readers, TOPOLOGIES["inner"], encoder)


def records(captions: list[list[str]]) -> Records:
    """An image for each list of captions, with the columns of a Karpathy source."""
    ids = iter(range(1000, 10**6))
    rows = [
        {
            "captions": texts,
            "number": 0.0,
            "filename": f"COCO_val2014_{number:012d}.jpg",
            "sentids": [next(ids) for _ in texts],
        }
        for number, texts in enumerate(captions)
    ]
    return Records(Rows(rows, "coco"), image=(), text="captions")


def write_pairs(path: Path, pairs: list[tuple[int, int, float]]) -> str:
    """Writes a file of Crisscrossed Captions: caption id, image id, score."""
    lines = ["caption,image,agg_score,sampling_method"]
    lines += [
        f"COCO_val2014:sentid:{caption},COCO_val2014_{image:012d}.jpg,{score},c2i_intrasim"
        for caption, image, score in pairs
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)
