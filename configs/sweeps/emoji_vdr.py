"""VDR on emoji and BERT's whole vocabulary: nonparametric entry, mask, and the dense model beside.

big-retrieval sweep --sweep=configs/sweeps/emoji_vdr.py:data=FOLDER --workdir=runs/emoji
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep
from configs.sweeps.scenes_vdr import RUNS


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal, data (the folder, data/emoji), vocab (BERT's: a file, folder or hub
    name), steps (400), seeds (3)."""
    args = recipe.parse_arg(arg, data="data/emoji", vocab="bert-base-uncased", steps=400, seeds=3)
    own = f"data={args.data},vocab={args.vocab},steps={args.steps}"
    own = "runlocal" if args.runlocal else own
    return Sweep(
        runs=[Entry(name, f"configs/emoji_vdr.py:{what},{own}") for name, what in RUNS.items()],
        seeds=range(args.seeds),
        metrics=("retrieval/test*/R@*", "retrieval/test*/words@5"),
    )
