"""Drawings of emoji and their names: a small real data set, for two CPU cores.

Needs a folder with emoji_images.npz (arrays images uint8 [n, 64, 64, 3], hexcode, style, split),
emoji_entities.jsonl (hexcode, name, captions, group) and, for classification out of the domain,
caltech101_64.parquet (jpeg, label_name, split). Trained on three drawing styles of most emoji;
tested on two other styles (test_style), on other emoji (test_entity) and on both (test_both).
"""

from big_retrieval import config
from big_retrieval.config import recipe

TESTS = ("test_style", "test_entity", "test_both")


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal, data (the folder, data/emoji), steps (1000), m (class tokens, 4), probe:
    a linear probe on the photographs, too."""
    args = recipe.parse_arg(arg, data="data/emoji", steps=1000, m=4, probe=False)
    c = recipe.base()

    # Run
    c.total_steps, c.batch_size = args.steps, 256
    c.log_every, c.eval_every, c.checkpoint_every = 20, 250, 250
    c.best_metric = "retrieval/val/image_to_text/R@1"
    c.dtype = "float32"

    # Model
    size = {"width": 64, "depth": 3, "heads": 2, "mlp": 256, "class_tokens": args.m}
    start = {"activation": "gelu_tanh", "embedding_std": 0.5}
    c.towers.image = recipe.entry(config.ViT(), patch=8, **size, **start)
    c.towers.text = recipe.entry(config.Bert(), norm="pre", **size, **start)
    recipe.image_text(c, dim=64 // args.m, size=32, length=24)
    c.fields.image.crop_scale, c.fields.image.crop_ratio = (0.7, 1.0), (0.85, 1.18)
    c.topology = "oblique" if args.m > 1 else "sphere"
    c.losses.main.logit_scale.init = 5.0

    # Optimiser
    c.optimizer.lr, c.optimizer.weight_decay = 2e-3, 0.1
    c.optimizer.schedule.warmup_steps = 60

    # Data
    c.labels.duplicates = False  # as docs/RESULTS.md was measured; evaluations have their groups
    c.tokenizer.vocab_size = 4096
    drawings = config.Pairs(
        path=f"{args.data}/emoji_images.npz",
        image="images",
        join=f"{args.data}/emoji_entities.jsonl",
        on="hexcode",
        how_to_get="make emoji_images.npz and emoji_entities.jsonl as configs/emoji.py says",
    )
    c.data = recipe.entry(drawings, where=("split=train",))
    for split in ("val", *TESTS):
        # Each emoji's name is a candidate once, whatever the number of its drawings.
        names = recipe.entry(drawings, where=(f"split={split}",), text="name")
        c.evals[split] = recipe.entry(config.Retrieval(), group="hexcode")
        c.evals[split].data = names
        if split in TESTS:
            c.evals[split].every = 0
            c.evals[f"groups_{split}"] = recipe.entry(
                config.ZeroShot(), label="group", prompts=("{}",), every=0
            )
            c.evals[f"groups_{split}"].data = names
    photographs = config.Pairs(
        path=f"{args.data}/caltech101_64.parquet", image="jpeg", text="", where=("split=test",)
    )
    c.evals.caltech = recipe.entry(config.ZeroShot(), label="label_name", every=0)
    c.evals.caltech.prompts = ("{}", "a photo of a {}.", "a picture of a {}.", "a drawing of a {}.")
    c.evals.caltech.data = recipe.entry(photographs)
    if args.probe:
        c.evals.caltech_probe = recipe.entry(
            config.LinearProbe(), label="label_name", l2=(1.0, 10.0, 100.0)
        )
        c.evals.caltech_probe.data = recipe.entry(photographs)
        c.evals.caltech_probe.train = recipe.entry(photographs, where=("split=train",))
    return recipe.runlocal(c) if args.runlocal else c
