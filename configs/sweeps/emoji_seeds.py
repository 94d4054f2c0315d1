"""The emoji data with three seeds: recalls on unseen styles, unseen emoji and both.

big-retrieval sweep --sweep=configs/sweeps/emoji_seeds.py:data=FOLDER
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal, data (the folder, data/emoji), steps (1000), seeds (3)."""
    args = recipe.parse_arg(arg, data="data/emoji", steps=1000, seeds=3)
    own = "runlocal" if args.runlocal else f"data={args.data},steps={args.steps}"
    return Sweep(
        runs=[Entry("emoji", f"configs/emoji.py:{own}")],
        seeds=range(args.seeds),
        metrics=("retrieval/test*/R@*", "zeroshot/*/accuracy"),
    )
