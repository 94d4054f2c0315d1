"""The recall of models that could learn a shortcut instead of scenes; see examples/shortcut.py.

    for digits in 2 3; do big-retrieval targets --config=examples/shortcut.py:digits=$digits \\
        --encoder=MINILM --out=cued_$digits.npy; done
    big-retrieval sweep --sweep=configs/sweeps/shortcut_ltd.py --workdir=runs/shortcut
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep

MODES = ("mode=contrastive", "mode=dual", "mode=constraint,eta=0.2", "mode=constraint,eta=0.1")


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal; targets (cued_, the beginning of both files' names); steps (400); seeds
    (3)."""
    args = recipe.parse_arg(arg, targets="cued_", steps=400, seeds=3)
    own = f"steps={args.steps}" + (",runlocal" if args.runlocal else "")
    runs = [Entry("no-cue", f"examples/shortcut.py:digits=0,{own}")]
    for digits in (2, 3):
        for mode in MODES:
            name = f"{digits}-digits-{mode.removeprefix('mode=').replace(',', '-')}"
            given = f"digits={digits},{mode},targets={args.targets}{digits}.npy"
            runs.append(Entry(name, f"examples/shortcut.py:{given},{own}"))
    cued = () if args.runlocal else ("retrieval/cued/rsum",)
    metrics = ("retrieval/test/rsum", *cued, "target/loss", "target/violations")
    return Sweep(runs=runs, seeds=range(args.seeds), metrics=metrics)
