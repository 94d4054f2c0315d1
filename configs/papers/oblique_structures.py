"""The oblique paper's ablation of structures: 512 dimensions cut into spheres in eight ways.

"Design of the Topology for Contrastive Visual-Textual Alignment", section 4.3: the sphere, Ob(n, m)
(one class token, cut into m blocks of n) and Multi(n, m) (m class tokens of n dimensions).

    big-retrieval sweep --sweep=configs/papers/oblique_structures.py:runlocal
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep

STRUCTURES = (
    "sphere", "ob-256-2", "ob-64-8", "ob-16-32", "ob-4-128", "multi-256-2", "multi-64-8",
    "multi-16-32",
)  # fmt: skip


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal (shows that all of them train, not which is best), seeds (default 1)."""
    args = recipe.parse_arg(arg, seeds=1)
    small = ",runlocal" if args.runlocal else ""
    runs = [
        Entry(name, f"configs/oblique_s16_yfcc15m.py:structure={name}{small}")
        for name in STRUCTURES
    ]
    return Sweep(runs=runs, seeds=range(args.seeds), metrics=("retrieval/*/R@1", "*/accuracy"))
