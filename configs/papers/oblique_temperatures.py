"""The oblique paper's four topologies by four temperature schemes: 16 runs, section 4.3.

"Design of the Topology for Contrastive Visual-Textual Alignment": the logit scale starts at 14.3,
202 or 1 and is learned, or stays at 1. The starts are lost in the paper's published text; these are
the reading that fits its tables best. `scenes` makes the same runs with generated scenes, on two
CPU cores.

    big-retrieval sweep --sweep=configs/papers/oblique_temperatures.py:runlocal
    big-retrieval sweep --sweep=configs/papers/oblique_temperatures.py:scenes,seeds=3
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Sweep, published
from configs.papers.oblique_structures import COLUMNS, sweep_of

SCHEMES = {
    "start=14.3": "logit_scale=14.2857",
    "start=202": "logit_scale=202",
    "start=1": "logit_scale=1",
    "fixed=1": "logit_scale=1,fixed",
}
PAPER = published(COLUMNS, {
    "start=14.3,sphere": "48.3 31.45 30.62 60.38",
    "start=14.3,euclidean": "47.9 32.29 30.36 59.90",
    "start=14.3,geodesic": "50.7 32.35 30.79 60.43",
    "start=14.3,oblique": "52.3 32.89 30.70 60.32",
    "start=202,sphere": "46.8 31.13 29.60 59.82",
    "start=202,euclidean": "48.5 32.69 30.68 59.74",
    "start=202,geodesic": "50.7 31.59 30.34 59.60",
    "start=202,oblique": "50.3 33.37 30.23 59.76",
    "start=1,sphere": "49.0 30.33 28.59 59.56",
    "start=1,euclidean": "47.4 30.71 29.85 60.09",
    "start=1,geodesic": "49.9 32.49 30.21 60.61",
    "start=1,oblique": "50.9 32.71 30.50 60.66",
    "fixed=1,sphere": "5.1 3.461 4.04 45.37",
    "fixed=1,euclidean": "47.6 30.43 29.51 59.20",
    "fixed=1,geodesic": "4.1 2.921 3.10 21.67",
    "fixed=1,oblique": "30.3 18.48 21.20 57.93",
})  # fmt: skip


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal; scenes; scheme (all; or one, such as start=14.3); steps, of scenes
    (200); benchmarks (tfds, folders or none), as of the config; seeds (1)."""
    args = recipe.parse_arg(arg, scenes=False, scheme="all", steps=200, benchmarks="tfds", seeds=1)
    recipe.one_of("scheme", args.scheme, ("all", *SCHEMES))
    oblique = "ob-16-8" if args.scenes else "ob-64-8"
    topologies = {
        "sphere": "structure=sphere",
        "euclidean": "structure=euclidean",
        "geodesic": f"structure={oblique},topology=geodesic",
        "oblique": f"structure={oblique}",
    }
    runs = {
        f"{scheme},{name}": f"{which},{scale}"
        for scheme, scale in SCHEMES.items()
        if args.scheme in ("all", scheme)
        for name, which in topologies.items()
    }
    return sweep_of(args, runs, {row: PAPER[row] for row in runs})
