"""Grad-CAM on generated scenes: does the map point at the object that a text names?

    big-retrieval sweep --sweep=configs/sweeps/pointing_game.py:runlocal

Four class tokens, one class token, and the four before any training.
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal, seeds (default 3)."""
    args = recipe.parse_arg(arg, seeds=3)
    small = ",runlocal" if args.runlocal else ""
    config = "examples/pointing_game.py"
    untrained = {"total_steps": 1, "optimizer.lr": 1e-12, "optimizer.schedule.warmup_steps": 0}
    return Sweep(
        runs=[
            Entry("tokens-4", f"{config}:tokens=4{small}"),
            Entry("tokens-1", f"{config}:tokens=1{small}"),
            Entry("untrained", f"{config}:tokens=4{small}", untrained),
        ],
        seeds=range(args.seeds),
        metrics=("pointing_game/pointing/*", "retrieval/*/R@1"),
    )
