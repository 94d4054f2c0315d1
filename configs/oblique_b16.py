"""The oblique paper's large run: ViT-B/16 with 16 class tokens of 32 dimensions, Multi(32,16).

"Design of the Topology for Contrastive Visual-Textual Alignment", Table 2. Known from the paper
and the published weights: the model (139,368,449 parameters), 224 pixels, context 77, training from
scratch on about 500M pairs, logit scale at most 100/16, and by the weights' name 32 epochs at batch
32k. The optimiser's recipe is not published; what is marked "ours" follows common CLIP practice.
"""

from big_retrieval import config
from big_retrieval.config import recipe


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal, n (dimensions, 32), m (class tokens, 16), batch (32768), microbatch,
    benchmarks (tfds, folders or none: where ImageNets come from; COCO and Flickr30k with them).

    `microbatch` is the number of rows encoded at a time, over all devices; 0 (default): all. On few
    devices it makes the batch fit: `batch=24576,microbatch=2048` runs on one of 141 GB.
    """
    args = recipe.parse_arg(arg, n=32, m=16, batch=32768, microbatch=0, benchmarks="tfds")
    c = recipe.base()

    # Run
    c.total_epochs, c.batch_size, c.microbatch = 32, args.batch, args.microbatch or None
    c.log_every, c.eval_every, c.checkpoint_every = 50, 5000, 1000

    # Model
    c.towers.image = recipe.vit("B/16", class_tokens=args.m, remat="block", scan=True)
    c.towers.text = recipe.entry(config.Bert(), class_tokens=args.m, remat="block", scan=True)
    recipe.image_text(c, dim=args.n, size=224, length=77)
    c.fields.image.update(crop_scale=(0.5, 1.0), flip=0.5)  # ours
    c.topology = "oblique"
    c.losses.main.logit_scale.max = 100 / args.m  # as published
    c.losses.main.logit_scale.init = (
        1 / 0.07 / args.m
    )  # ours: CLIP's start, for scores m times as wide

    # Optimiser: ours
    c.optimizer.update(lr=1e-3, weight_decay=0.1, clip_norm=1.0)
    c.optimizer.schedule.warmup_steps = 2500

    # Data
    c.labels.duplicates = False  # as in the paper: records with the same text are negatives
    c.tokenizer.path = "bert-base-uncased"
    pairs = config.Pairs(
        path="data/pairs/train.jsonl",
        how_to_get="write your own pairs (the paper's 500M are not public), one JSON object a "
        'line: {"image": "relative/path.jpg", "captions": ["..."]}',
    )
    c.data = recipe.entry(pairs)
    validation = recipe.entry(pairs, path="data/pairs/validation.jsonl")
    c.evals.validation = recipe.entry(config.Retrieval(), data=validation)
    recipe.image_benchmarks(c, "data", args.benchmarks)
    return recipe.runlocal(c) if args.runlocal else c
