"""Latent target decoding on COCO: as configs/ltd_f30k.py, with COCO's 5,000 test images.

"Reducing Predictive Feature Suppression in Resource-Constrained Contrastive Image-Caption
Retrieval" (docs/LTD.md), the base model of Tables 1 and 2.

    big-retrieval targets --config=ltd_coco --out=coco_targets.npy \\
        --encoder=sentence-transformers/all-mpnet-base-v2

Evaluated by Crisscrossed Captions' ratings and by nDCG, too: data/coco/sits_test.csv is published
with the ratings, data/coco/coco-test-spice.npy with TERN.
"""

from typing import Any

from big_retrieval import config
from big_retrieval.config import recipe
from configs import ltd_f30k

FILES = {"ratings": "", "spice": ""}
CAPTIONS = 566_435  # five of each of 113,287 images, `restval` included


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: as configs/ltd_f30k.py, where data is data/coco and targets coco_targets.npy;
    ratings (DATA/sits_test.csv) and spice (DATA/coco-test-spice.npy), or none."""
    glove = "data/glove.840B.300d.txt"
    own = {"data": "data/coco", "glove": glove, "targets": "coco_targets.npy"}
    args = recipe.parse_arg(arg, **ltd_f30k.ARGUMENTS | FILES | own)
    return ltd_f30k.base(args, "coco", "train+restval", CAPTIONS, evaluators)


def evaluators(c: recipe.Editable, args: Any) -> None:
    """Crisscrossed Captions and nDCG on the test images, at the end of the run."""
    test = c.evals.test.data
    if args.ratings != "none":
        c.evals.cxc = recipe.entry(
            config.CrisscrossedCaptions(), every=0,
            files=(args.ratings or f"{args.data}/sits_test.csv",),
        )  # fmt: skip
        c.evals.cxc.data = test
    spice = () if args.spice == "none" else (args.spice or f"{args.data}/coco-test-spice.npy",)
    relevance = ("rougeL", *(f"spice={file}" for file in spice))
    c.evals.ndcg = recipe.entry(config.CaptionNdcg(), relevance=relevance)
    c.evals.ndcg.data = test
