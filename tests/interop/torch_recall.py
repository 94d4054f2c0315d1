"""Recall of an export of `--to=torch`, by PyTorch alone: nothing of big_retrieval is imported.

    python torch_recall.py FOLDER RECORDS

RECORDS is an .npz file: images uint8 [R, S, S, 3], texts [T], and owners [T], the record of each
text. Prints a JSON object: `image_to_text/R@1` and so on, both ways, for ranks 1, 5 and 10 -> the
recall where equal scores count against a model, and the least and the largest one that scores
which differ by the noise of float32 allow.
"""

import json
import sys

import numpy as np
import torch

NOISE = 1e-5  # of scores, by the largest one


def recalls(scores: torch.Tensor, right: torch.Tensor, direction: str) -> dict[str, list[float]]:
    """Of scores [queries, documents]; right, bool of the same shape, marks the right answers."""
    noise = NOISE * scores.abs().max()
    best = scores.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
    found = {}
    margins = (0.0, noise, -noise)  # a wrong answer with nearly the same score: in front or behind
    ranks = [1 + ((scores >= best - margin) & ~right).sum(1) for margin in margins]
    for k in (1, 5, 10):
        found[f"{direction}/R@{k}"] = [(rank <= k).double().mean().item() for rank in ranks]
    return found


def main() -> None:
    """Encodes, ranks, prints."""
    folder, records = sys.argv[1:]
    sys.path.insert(0, folder)
    from model import RetrievalModel  # the export's own

    with np.load(records, allow_pickle=False) as file:
        images, texts, owners = file["images"], file["texts"], torch.tensor(file["owners"])
    model = RetrievalModel.load(folder)
    of_images = model.encode_images(list(images), "image")
    of_texts = model.encode_texts([str(text) for text in texts], "text")
    scores = model.scores(of_texts, of_images)  # [T, R]
    right = owners[:, None] == torch.arange(len(images))
    found = recalls(scores.T, right.T, "image_to_text")
    print(json.dumps(found | recalls(scores, right, "text_to_image")))


if __name__ == "__main__":
    main()
