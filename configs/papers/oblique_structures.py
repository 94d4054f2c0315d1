"""The oblique paper's ablation of structures: 512 dimensions cut into spheres in eight ways.

"Design of the Topology for Contrastive Visual-Textual Alignment", section 4.3: the sphere, Ob(n, m)
(one class token, cut into m blocks of n) and Multi(n, m) (m class tokens of n dimensions). `scenes`
cuts 128 dimensions in six ways, with generated scenes, on two CPU cores.

    big-retrieval sweep --sweep=configs/papers/oblique_structures.py:runlocal
    big-retrieval sweep --sweep=configs/papers/oblique_structures.py:scenes,seeds=3
"""

from typing import Any

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep, published

STRUCTURES = (
    "sphere", "ob-256-2", "ob-64-8", "ob-16-32", "ob-4-128", "multi-256-2", "multi-64-8",
    "multi-16-32",
)  # fmt: skip
OF_SCENES = ("sphere", "ob-64-2", "ob-16-8", "ob-4-32", "multi-64-2", "multi-16-8")
# The columns of the paper's two tables. The paper does not name the data of the retrieval; its
# recalls of images are multiples of 0.1, as of Flickr30k's 1,000.
COLUMNS = (
    "retrieval/flickr30k/image_to_text/R@1", "retrieval/flickr30k/text_to_image/R@1",
    "zeroshot/imagenet/accuracy", "linear_probe/imagenet_probe/accuracy",
)  # fmt: skip
SMALL = (  # of scenes and of `runlocal`
    "retrieval/*/R@1", "*/accuracy", "geometry/*/positive_distance",
    "geometry/*/negative_distance", "geometry/*/beyond_bound", "logit_scale",
)  # fmt: skip
PAPER = published(COLUMNS, {
    "sphere": "48.3 31.45 30.62 60.38",
    "ob-256-2": "48.0 32.25 30.33 60.52",
    "ob-64-8": "52.3 32.89 30.70 60.32",
    "ob-16-32": "50.4 33.01 30.93 60.79",
    "ob-4-128": "48.2 32.91 30.57 59.99",
    "multi-256-2": "49.2 32.29 30.04 61.59",
    "multi-64-8": "54.0 34.27 31.93 62.41",
    "multi-16-32": "54.0 33.43 30.88 63.71",
})  # fmt: skip


def sweep_of(args: Any, runs: dict[str, str], paper: Any) -> Sweep:
    """The sweep of some runs.

    Args:
      runs: name -> further arguments of the config.
      paper: the paper's numbers; left out where the data are not the paper's.
    """
    name = "scenes_oblique" if args.scenes else "oblique_s16_yfcc15m"
    own = f"steps={args.steps}" if args.scenes else f"benchmarks={args.benchmarks}"
    own = "runlocal" if args.runlocal else own
    entries = [Entry(row, f"configs/{name}.py:{own},{given}") for row, given in runs.items()]
    seeds = range(args.seeds)
    if args.scenes or args.runlocal:
        return Sweep(runs=entries, seeds=seeds, metrics=SMALL)
    if args.benchmarks == "none":
        metrics = tuple(metric for metric in SMALL if metric != "*/accuracy")
        return Sweep(runs=entries, seeds=seeds, metrics=metrics)
    metrics = (*COLUMNS, "zeroshot/*/accuracy", "*/*/R-mean")
    return Sweep(runs=entries, seeds=seeds, metrics=metrics, paper=paper)


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: runlocal (shows that all of them train, not which is best); scenes; steps, of
    scenes (200); benchmarks (tfds, folders or none), as of the config; seeds (1)."""
    args = recipe.parse_arg(arg, scenes=False, steps=200, benchmarks="tfds", seeds=1)
    names = OF_SCENES if args.scenes else STRUCTURES
    return sweep_of(args, {name: f"structure={name}" for name in names}, PAPER)
