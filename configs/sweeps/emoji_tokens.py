"""One class token on the sphere against four on the oblique manifold, on emoji; three seeds.

big-retrieval sweep --sweep=configs/sweeps/emoji_tokens.py:data=FOLDER --workdir=runs/tokens
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal, data (the folder, data/emoji), steps (300), seeds (3)."""
    args = recipe.parse_arg(arg, data="data/emoji", steps=300, seeds=3)
    own = "runlocal" if args.runlocal else f"data={args.data},steps={args.steps}"
    runs = [Entry(f"tokens={m}", f"configs/emoji.py:m={m},probe,{own}") for m in (1, 4)]
    metrics = ("retrieval/test*/*/R@1", "retrieval/test*/*/R@10", "zeroshot/*/accuracy")
    return Sweep(runs=runs, seeds=range(args.seeds), metrics=(*metrics, "linear_probe/*/accuracy"))
