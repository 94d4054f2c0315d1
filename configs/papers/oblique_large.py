"""Table 2 of "Design of the Topology for Contrastive Visual-Textual Alignment": Multi(32,16) and
CLIP with ViT-B/16 on 500M pairs, and published weights; a run's name is its row.

The published weights, also the authors' own, are evaluated and not trained. open_clip's are those
of LAION-400M, whose accuracies on ImageNet are the paper's.

    big-retrieval sweep --sweep=configs/papers/oblique_large.py --workdir=runs/oblique2
    big-retrieval sweep --sweep=configs/papers/oblique_large.py:runlocal --workdir=runs/try
"""

from big_retrieval.config import recipe
from big_retrieval.sweep import Entry, Sweep, published

WEIGHTS = {
    "clip-vit_b16-openai": "openai/clip-vit-base-patch16",
    "clip-vit_b16-open_clip": "timm/vit_base_patch16_clip_224.laion400m_e32",
    "clip-vit_b16-authors": "clip-mtob/vit-b16_e32_f32k",
    "multi-32-16-authors": "clip-mtob/vit-b16_mt-ob-32-16_e32_f32k_2",
    "clip-vit_l14-openai": "openai/clip-vit-large-patch14",
    "clip-vit_l14-open_clip": "timm/vit_large_patch14_clip_224.laion400m_e32",
}
TRAINED = {"clip-vit_b16": "clip_b16", "multi-32-16": "oblique_b16"}
COLUMNS = (
    *(f"zeroshot/{name}/accuracy" for name in ("imagenet", "imagenet_v2", "imagenet_a")),
    "zeroshot/imagenet_r/accuracy",
    *(
        f"retrieval/{name}/{metric}"
        for name in ("flickr30k", "coco")
        for metric in ("image_to_text/R@1", "text_to_image/R@1", "R-mean")
    ),
)
# The paper marks COCO's columns by an asterisk, which the published text does not explain.
CLIP = "69.5 61.4 49.5 70.6 84.2 61.7 86.4 64.1 43.9 72.4"
MULTI = "76.4 68.0 55.8 75.2 85.2 66.3 88.3 63.8 42.9 72.4"
PAPER = published(COLUMNS, {
    "clip-vit_b16-openai": "68.7 61.9 50.1 77.7 81.9 62.1 86.1 55.4 38.4 66.3",
    "clip-vit_b16-open_clip": "67.0 59.6 33.2 77.9 83.2 65.5 87.6 52.4 38.4 62.4",
    "clip-vit_b16": CLIP,
    "clip-vit_b16-authors": CLIP,
    "multi-32-16": MULTI,
    "multi-32-16-authors": MULTI,
    "clip-vit_l14-openai": "75.5 69.7 70.7 87.9 85.0 65.2 87.7 56.3 36.5 65.2",
    "clip-vit_l14-open_clip": "72.7 65.6 46.6 84.8 87.6 70.3 90.1 59.7 43.0 70.0",
})  # fmt: skip


def get_sweep(arg: str = "") -> Sweep:
    """Arguments: microbatch (2048; 0: all rows at once); benchmarks (tfds or folders), as of the
    configs; runlocal (the published weights are replaced by untrained models); seeds (1)."""
    args = recipe.parse_arg(arg, microbatch=2048, benchmarks="tfds", seeds=1)
    recipe.one_of("benchmarks", args.benchmarks, ("tfds", "folders"))
    own = "runlocal" if args.runlocal else f"benchmarks={args.benchmarks}"
    runs = [
        Entry(
            name,
            f"configs/{'oblique' if name.startswith('multi') else 'clip'}_b16.py:{own}",
            evaluate="--untrained" if args.runlocal else f"--init={weights}",
        )
        for name, weights in WEIGHTS.items()
    ]
    micro = f",microbatch={args.microbatch}" if args.microbatch else ""
    runs += [Entry(name, f"configs/{file}.py:{own}{micro}") for name, file in TRAINED.items()]
    metrics = ("retrieval/*/R@1", "retrieval/*/R-mean", "zeroshot/*accuracy")
    paper = {} if args.runlocal else PAPER
    return Sweep(runs=runs, seeds=range(args.seeds), metrics=metrics, paper=paper)
