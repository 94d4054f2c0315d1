"""GCL on the emoji data: weight functions, and documents of one field or two; Tables 1 to 3.

big-retrieval sweep --sweep=configs/sweeps/emoji_gcl.py:data=FOLDER --workdir=runs/gcl
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep

WEIGHTS = ("constant", "linear", "inverse", "inverse_sqrt", "piecewise")
RUNS = (
    *(("multi", weight) for weight in WEIGHTS),
    *((fields, weight) for fields in ("title", "image") for weight in ("constant", "inverse")),
)


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal, data (the folder, data/emoji), steps (250), seeds (3)."""
    args = recipe.parse_arg(arg, data="data/emoji", steps=250, seeds=3)
    own = "runlocal" if args.runlocal else f"data={args.data},steps={args.steps}"
    runs = [
        Entry(f"{fields}-{weight}", f"configs/emoji_gcl.py:fields={fields},weight={weight},{own}")
        for fields, weight in RUNS
    ]
    splits = ("in_domain", "novel_query", "novel_document", "zero_shot")
    return Sweep(
        runs=runs,
        seeds=range(args.seeds),
        metrics=tuple(
            f"ranking/{split}/{m}" for split in splits for m in ("nDCG@10", "ERR", "RBP@0.9")
        ),
    )
