"""Latent target decoding on emoji: no decoder, a decoder with a weight, and with five bounds.

big-retrieval sweep --sweep=configs/sweeps/emoji_ltd.py:data=FOLDER,targets=FILE --workdir=runs/ltd
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep

ETAS = (0.6, 0.5, 0.45, 0.4, 0.35)


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal; data (the folder, data/emoji); targets (targets.npy); steps (600); seeds
    (3)."""
    args = recipe.parse_arg(arg, data="data/emoji", targets="targets.npy", steps=600, seeds=3)
    files = f"data={args.data},targets={args.targets},steps={args.steps}"
    own = "runlocal" if args.runlocal else files
    modes = {"contrastive": "mode=contrastive", "dual": "mode=dual"}
    modes |= {f"eta={eta}": f"mode=constraint,eta={eta}" for eta in ETAS}
    runs = [Entry(name, f"configs/emoji_ltd.py:{mode},{own}") for name, mode in modes.items()]
    return Sweep(
        runs=runs, seeds=range(args.seeds),
        metrics=("retrieval/*/rsum", "decoder/loss", "decoder/violations", "decoder/multiplier"),
    )  # fmt: skip
