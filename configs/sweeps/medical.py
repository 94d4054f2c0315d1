"""DPR, SPLADE and VDR from one start on medical question answering; VDR without its parts, too.

big-retrieval sweep --sweep=configs/sweeps/medical.py:data=FOLDER --workdir=runs/medical
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep

RUNS = {
    "dpr": "method=dpr",
    "splade": "method=splade",
    "vdr": "method=vdr",
    "vdr-without-bag": "method=vdr,nobag",
}


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal, seeds (3), and those of
    configs/medical.py: data, init, vocab, steps (150), batch (32)."""
    args = recipe.parse_arg(
        arg, data="data/medical", init="sentence-transformers/all-MiniLM-L6-v2",
        vocab="bert-base-uncased", steps=150, batch=32, seeds=3,
    )  # fmt: skip
    own = ",".join(
        f"{key}={getattr(args, key)}" for key in ("data", "init", "vocab", "steps", "batch")
    )
    own = "runlocal" if args.runlocal else own
    return Sweep(
        runs=[Entry(name, f"configs/medical.py:{what},{own}") for name, what in RUNS.items()],
        seeds=range(args.seeds),
        metrics=("ranking/medquad/*nDCG@10", "ranking/liveqa/*nDCG@10"),
    )
