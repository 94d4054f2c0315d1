"""The model that `make quickstart` trains: in about four minutes on two CPU cores, offline.

Oblique topology, four class tokens of 16 dimensions, on generated scenes of two coloured shapes;
tested on 1,000 pairs whose combinations of shapes and colours never occurred in training.
"""

from big_retrieval import config
from big_retrieval.config import recipe


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal, steps (default 1400)."""
    args = recipe.parse_arg(arg, steps=1400)
    c = recipe.base()

    # Run
    c.total_steps, c.batch_size = args.steps, 128
    c.log_every, c.eval_every, c.checkpoint_every = 10, 350, 350
    c.best_metric = "retrieval/validation/image_to_text/R@1"
    c.dtype = "float32"

    # Model
    size = {"width": 64, "depth": 3, "heads": 2, "mlp": 256, "class_tokens": 4}
    # Towers this small learn where things are much sooner from large position embeddings.
    start = {"activation": "gelu_tanh", "embedding_std": 0.5}
    c.towers.image = recipe.entry(config.ViT(), patch=8, **size, **start)
    c.towers.text = recipe.entry(config.Bert(), norm="pre", **size, **start)
    recipe.image_text(c, dim=16, size=32, length=20)
    c.fields.image.crop_scale, c.fields.image.flip = (1.0, 1.0), 0.0
    c.topology = "oblique"
    c.losses.main.logit_scale.init = 5.0

    # Optimiser
    c.optimizer.lr, c.optimizer.weight_decay = 2e-3, 0.05
    c.optimizer.schedule.warmup_steps = 60

    # Data
    c.tokenizer.vocab_size = 512
    c.evals.validation = recipe.entry(config.Retrieval(), data=config.Scenes(split="validation"))
    c.evals.test = recipe.entry(config.Retrieval(), data=config.Scenes(split="test"), every=0)
    c.evals.colours = recipe.entry(config.ZeroShot(), label="colour", every=0)
    shapes = config.Scenes(split="shapes")
    c.evals.shapes = recipe.entry(config.ZeroShot(), data=shapes, label="shape", every=0)
    return recipe.runlocal(c) if args.runlocal else c
