"""Lists of runs: `big-retrieval sweep --sweep=configs/sweeps/X.py[:arg]`."""

from big_retrieval.sweep.spec import Entry, Sweep, published

__all__ = ["Entry", "Sweep", "published"]
