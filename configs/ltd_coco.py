"""Latent target decoding on COCO: as configs/ltd_f30k.py, with COCO's 5,000 test images.

"Reducing Predictive Feature Suppression in Resource-Constrained Contrastive Image-Caption
Retrieval" (docs/LTD.md), the base model of Tables 1 and 2.

    big-retrieval targets --config=ltd_coco --encoder=all-mpnet-base-v2 --out=coco_targets.npy
"""

from big_retrieval.config import recipe
from configs import ltd_f30k

CAPTIONS = 566_435  # five of each of 113,287 images, `restval` included


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: as configs/ltd_f30k.py; data is data/coco, targets coco_targets.npy."""
    glove = "data/glove.840B.300d.txt"
    own = {"data": "data/coco", "glove": glove, "targets": "coco_targets.npy"}
    args = recipe.parse_arg(arg, **ltd_f30k.ARGUMENTS | own)
    return ltd_f30k.base(args, "coco", "train+restval", CAPTIONS)
