"""GCL on the emoji data with batches of 64 to 1,024 pairs, 64 of them encoded at a time.

All runs see the same number of pairs; memory for activations is that of 64 pairs in each.

    big-retrieval sweep --sweep=configs/sweeps/emoji_gcl_batch.py:data=FOLDER
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep

BATCHES = (64, 128, 256, 512, 1024)
ROWS = 64  # encoded at a time


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal, data (the folder, data/emoji), pairs (102400, in all), seeds (1)."""
    args = recipe.parse_arg(arg, data="data/emoji", pairs=102_400, seeds=1)
    runs = []
    for batch in BATCHES:
        own = f"data={args.data},batch={batch},microbatch={ROWS},steps={args.pairs // batch}"
        changes = {"batch_size": batch, "microbatch": ROWS} if args.runlocal else {}
        arg_ = "runlocal" if args.runlocal else own
        runs.append(Entry(f"batch-{batch}", f"configs/emoji_gcl.py:{arg_}", changes))
    splits = ("in_domain", "novel_query", "novel_document", "zero_shot")
    return Sweep(
        runs=runs,
        seeds=range(args.seeds),
        metrics=tuple(f"ranking/{split}/{m}" for split in splits for m in ("nDCG@10", "ERR")),
    )
