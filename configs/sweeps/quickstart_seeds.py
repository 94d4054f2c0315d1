"""The quickstart with several seeds: how far its numbers spread.

big-retrieval sweep --sweep=configs/sweeps/quickstart_seeds.py:runlocal
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal (two seeds, a minute or two on two CPU cores), seeds (3), steps."""
    args = recipe.parse_arg(arg, seeds=0, steps=0)
    config = f"configs/quickstart.py{':runlocal' if args.runlocal else ''}"
    return Sweep(
        runs=[Entry("quickstart", config, {"total_steps": args.steps} if args.steps else {})],
        seeds=range(args.seeds or (2 if args.runlocal else 3)),
        metrics=("retrieval/test/*/R@?", "zeroshot/*/accuracy"),
    )
