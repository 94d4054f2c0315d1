"""Images with several captions each, whose embeddings are known."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from big_retrieval import parallel
from big_retrieval.config import ArrayField, TextField
from big_retrieval.data.fields.reader import Tools
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import Bound, bound
from tests.evals.preset import PresetEncoder
from tests.helpers import tiny

TOKENIZER = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
INNER = TOPOLOGIES["inner"]


class Known(PresetEncoder):
    """Gives the embeddings [n, N] of the fields, whatever is read."""

    def __init__(self, **embeddings: np.ndarray) -> None:
        super().__init__(None, parallel.make_mesh(tiny(batch_size=8), jax.devices()[:1]), 8)  # type: ignore
        self._embeddings = embeddings

    def embeddings(self, weights: Any, field: str, batches: Any) -> tuple[np.ndarray, np.ndarray]:
        records = np.concatenate([batch["record"][batch["valid"]] for batch in batches])
        return self._embeddings[field][:, None], records


def evaluator(part: Any, source: Records, **embeddings: np.ndarray) -> Bound:
    """An evaluator of fields `image`, made of a number, and `text`."""
    fields = {
        "image": ArrayField(side="document", column="number"),
        "text": TextField(length=8),
    }
    readers = {name: each.build(Tools(TOKENIZER, fields=fields)) for name, each in fields.items()}
    return bound(part, source, readers, INNER, Known(**embeddings))


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
    """A file of Crisscrossed Captions: id of a caption, number of an image, score."""
    lines = ["caption,image,agg_score,sampling_method"]
    lines += [
        f"COCO_val2014:sentid:{caption},COCO_val2014_{image:012d}.jpg,{score},c2i_intrasim"
        for caption, image, score in pairs
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)
