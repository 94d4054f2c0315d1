"""CLIP with BERT as its text tower on YFCC15M: the dense baseline of VDR's image-text model.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", section
4.3 and Table 3: the same towers, data and recipe as vdr_cm_yfcc15m.py, one vector of 512 a side.

ImageNet's class names and prompts are read from data/prompts.json; docs/VDR.md says how to make it.
"""

from big_retrieval import config
from big_retrieval.config import recipe


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal; epochs (20); lr (2e-4); batch (4096); microbatch (0: all at once);
    scratch: text, too. The ablations of the paper are epochs=5,lr=5e-4."""
    args = recipe.parse_arg(arg, epochs=20, lr=2e-4, batch=4096, microbatch=0, scratch=False)
    c = recipe.base()

    # Run
    c.total_epochs, c.batch_size, c.microbatch = args.epochs, args.batch, args.microbatch or None
    c.log_every, c.eval_every, c.checkpoint_every = 50, 5000, 1000

    # Model: images from scratch, texts from the published BERT
    c.towers.image = recipe.vit("B/32", activation="quick_gelu", remat="block", scan=True)
    c.towers.text = recipe.bert(remat="block", scan=True)
    recipe.image_text(c, dim=512, size=224, length=77)
    # Ours: crops, flips but for texts that say "left" or "right", and BERT's dropout of 0.1
    c.fields.image.update(crop_scale=(0.5, 1.0), flip=0.5)
    c.tokenizer.path = "bert-base-uncased"
    if not args.scratch:
        c.init.text = recipe.entry(config.Init(), path="bert-base-uncased", head=False)

    # Optimiser; betas, epsilon, weight decay and no clipping are CLIP's: ours
    c.optimizer.lr, c.optimizer.rule.b2, c.optimizer.rule.eps = args.lr, 0.98, 1e-6
    c.optimizer.weight_decay, c.optimizer.clip_norm = 0.2, None
    c.optimizer.schedule.warmup_steps = 15_300_000 // args.batch  # an epoch

    # Data
    c.labels.duplicates = False  # as in the paper: records with the same text are negatives
    # The YFCC100M subset of Cui et al. 2022 (DeCLIP's 15.3M pairs)
    yfcc15m = config.Tar(
        path="data/yfcc15m/*.tar", how_to_get="see `big-retrieval data get yfcc15m`"
    )
    c.data = recipe.entry(yfcc15m)
    for name in ("coco", "flickr30k"):
        karpathy = config.Karpathy(
            path=f"data/{name}/dataset_{name}.json",
            split="test",
            how_to_get=f"see `big-retrieval data get {name}`",
        )
        c.evals[name] = recipe.entry(config.Retrieval(), data=karpathy)
    imagenet = config.Tfds(name="imagenet2012:5.1.0", split="validation")
    c.evals.imagenet = recipe.entry(
        config.ZeroShot(), data=imagenet, label="label", file="data/prompts.json#imagenet",
        ensemble="embeddings",  # as CLIP's
    )  # fmt: skip
    return recipe.runlocal(c) if args.runlocal else c
