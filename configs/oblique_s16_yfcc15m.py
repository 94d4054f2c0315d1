"""The oblique paper's ablations: ViT-S/16 on YFCC15M, any structure and topology.

"Design of the Topology for Contrastive Visual-Textual Alignment", section 4.3 and its tables: 224
pixels, context 77, 512 dimensions in all. The training recipe is not published; what is marked
"ours" follows DeCLIP's and SLIP's public ones for the same data.
"""

from typing import Any

from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.errors import UserError

STRUCTURES = "sphere, euclidean, ob-N-M (one class token, cut into M blocks of N) or multi-N-M"


def get_config(arg: str = "") -> recipe.Editable:
    """The ablation tables by arguments.

    Arguments: runlocal; structure: multi-64-8 (default), ob-64-8, sphere, ...; topology: oblique
    (default for ob and multi), geodesic, sphere, euclidean; logit_scale: its start, the
    tables' tau (14.3, 202, 1); fixed: no gradient for it; batch (4096); benchmarks (tfds, folders
    or none: where ImageNets come from; COCO and Flickr30k with them); redcaps: JSON lines of
    RedCaps' pairs, for distances out of the domain ("": COCO's).
    """
    args = recipe.parse_arg(
        arg, structure="multi-64-8", topology="", logit_scale=1 / 0.07, fixed=False, batch=4096,
        benchmarks="tfds", redcaps="",
    )  # fmt: skip
    c = recipe.base()

    # Run
    c.total_epochs, c.batch_size = 32, args.batch  # ours
    c.log_every, c.eval_every, c.checkpoint_every = 50, 5000, 1000

    # Model
    c.towers.image = recipe.vit("S/16", scan=True)
    c.towers.text = recipe.entry(config.Bert(), scan=True)
    recipe.image_text(c, dim=512, size=224, length=77)
    c.fields.image.update(crop_scale=(0.5, 1.0), flip=0.5)  # ours
    shape(c, args, dimensions=512)

    # Optimiser: ours
    c.optimizer.update(lr=1e-3, weight_decay=0.1, clip_norm=1.0)
    c.optimizer.schedule.warmup_steps = 2500

    # Data
    c.labels.duplicates = False  # as in the paper: records with the same text are negatives
    c.tokenizer.path = "bert-base-uncased"
    # The YFCC100M subset of Cui et al. 2022 (DeCLIP's 15.3M pairs)
    yfcc15m = config.Tar(
        path="data/yfcc15m/*.tar", how_to_get="see `big-retrieval data get yfcc15m`"
    )
    c.data = recipe.entry(yfcc15m)
    validation = recipe.entry(config.Pairs(), path="data/yfcc15m/validation.jsonl")
    c.evals.validation = recipe.entry(config.Retrieval(), data=validation)
    recipe.image_benchmarks(c, "data", args.benchmarks)
    c.evals.in_domain = recipe.entry(config.Geometry(), data=validation)
    if args.redcaps:
        redcaps = recipe.entry(config.Pairs(), path=args.redcaps)
        c.evals.out_of_domain = recipe.entry(config.Geometry(), data=redcaps)
    elif "coco" in c.evals:
        c.evals.out_of_domain = recipe.entry(config.Geometry(), data=c.evals.coco.data)
    return recipe.runlocal(c) if args.runlocal else c


def shape(c: recipe.Editable, args: Any, dimensions: int) -> None:
    """Sets class tokens, heads, topology and logit scale.

    Args:
      dimensions: of the sphere and of Euclidean space.
    """
    kind, n, m = _structure(args.structure, dimensions)
    for name in ("image", "text"):
        c.towers[name].class_tokens = m if kind == "multi" else 1
        c.fields[name].head.dim = n * m if kind == "ob" else n
        c.fields[name].head.spheres = m if kind == "ob" else None
    c.topology = args.topology or {"sphere": "sphere", "euclidean": "euclidean"}.get(
        kind, "oblique"
    )
    # The ablations' starts lie above 100/m and 100, so no bound can have been in force.
    c.losses.main.logit_scale.max = None
    c.losses.main.logit_scale.init = args.logit_scale
    c.losses.main.logit_scale.learnable = not args.fixed


def _structure(text: str, dimensions: int) -> tuple[str, int, int]:
    """(kind, n, m) of a structure's name."""
    if text in ("sphere", "euclidean"):
        return text, dimensions, 1
    kind, *sizes = text.split("-")
    if kind not in ("ob", "multi") or len(sizes) != 2 or not all(s.isdigit() for s in sizes):
        raise UserError(f"config argument structure is {text!r}; it must be {STRUCTURES}.")
    return kind, int(sizes[0]), int(sizes[1])
