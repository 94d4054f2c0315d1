"""Latent target decoding on COCO: as configs/ltd_f30k.py, with COCO's 5,000 test images.

"Reducing Predictive Feature Suppression in Resource-Constrained Contrastive Image-Caption
Retrieval" (docs/LTD.md), the base model of Tables 1 and 2.

    big-retrieval targets --config=ltd_coco --out=coco_targets.npy \\
        --encoder=sentence-transformers/all-mpnet-base-v2

Two more evaluators run at the end: Crisscrossed Captions, whose ratings are the published file
data/coco/sits_test.csv, and nDCG by ROUGE-L and by SPICE, the paper's, whose values TERN's authors
publish as data/coco/coco-test-rougeL.npy and coco-test-spice.npy. The metric of their ROUGE-L is
`rougeL_tern`. With rouge=computed it is `rougeL`, the F-measure of the package rouge-score, which
gives nDCG that differs by 0.001 to 0.002. The arguments ratings=none and spice=none do without the
other files.
"""

from typing import Any

from big_retrieval import config
from big_retrieval.config import recipe
from configs import ltd_f30k

FILES = {"ratings": "", "rouge": "", "spice": ""}


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: those of configs/ltd_f30k.py, where data is data/coco and targets
    coco_targets.npy; ratings (the file DATA/sits_test.csv; none: no Crisscrossed Captions); rouge
    (the file DATA/coco-test-rougeL.npy; computed: from the captions); spice (the file
    DATA/coco-test-spice.npy; none: nDCG by ROUGE-L only)."""
    glove = "data/glove.840B.300d.txt"
    own = {"data": "data/coco", "glove": glove, "targets": "coco_targets.npy"}
    args = recipe.parse_arg(arg, **ltd_f30k.ARGUMENTS | FILES | own)
    return ltd_f30k.base(args, "coco", "train+restval", evaluators)


def evaluators(c: recipe.Editable, args: Any) -> None:
    """Crisscrossed Captions and nDCG on the test images, at the end of the run."""
    test = c.evals.test.data
    if args.ratings != "none":
        c.evals.cxc = recipe.entry(
            config.CrisscrossedCaptions(), every=0, min_score=0.0,  # all, as the authors' code
            files=(args.ratings or f"{args.data}/sits_test.csv",),
        )  # fmt: skip
        c.evals.cxc.data = test
    rouge = f"rougeL_tern={args.rouge or f'{args.data}/coco-test-rougeL.npy'}"
    spice = () if args.spice == "none" else (args.spice or f"{args.data}/coco-test-spice.npy",)
    rouge = "rougeL" if args.rouge == "computed" else rouge
    relevance = (rouge, *(f"spice={file}" for file in spice))
    c.evals.ndcg = recipe.entry(config.CaptionNdcg(), relevance=relevance)
    c.evals.ndcg.data = test
