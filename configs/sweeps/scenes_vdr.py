"""VDR on scenes: the nonparametric entry, the contrastive mask, and the dense model beside them.

big-retrieval sweep --sweep=configs/sweeps/scenes_vdr.py --workdir=runs/scenes_vdr
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep

RUNS = {
    "vdr": "model=vdr",
    "without-bag": "nobag",
    "mask": "mask=paper",
    "mask-without-bag": "mask=paper,nobag",
    "clip": "model=clip",
}


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal, steps (250), seeds (3)."""
    args = recipe.parse_arg(arg, steps=250, seeds=3)
    own = "runlocal" if args.runlocal else f"steps={args.steps}"
    runs = [Entry(name, f"configs/scenes_vdr.py:{what},{own}") for name, what in RUNS.items()]
    directions = ("image_to_text/R@1", "text_to_image/R@1")
    metrics = [
        f"retrieval/test/{mode}{direction}" for mode in ("", "bag/") for direction in directions
    ]
    return Sweep(runs=runs, seeds=range(args.seeds), metrics=(*metrics, "retrieval/test/words@5"))
