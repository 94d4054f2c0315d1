"""VDR on generated scenes: what its nonparametric entry and its mask do, for two CPU cores.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", sections
3.2, 3.3 and 5.3, in miniature: patches of a small vision transformer and captions over a learned
vocabulary, nothing published, nothing downloaded. `clip` is the dense model of the same towers.
"""

from big_retrieval import config
from big_retrieval.config import recipe


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal; model (vdr, clip); steps (250); top_k (16), terms that the gate leaves;
    nobag: without the nonparametric entry; mask (none, paper, code)."""
    args = recipe.parse_arg(arg, model="vdr", steps=250, top_k=16, nobag=False, mask="none")
    recipe.one_of("model", args.model, ("vdr", "clip"))
    recipe.one_of("mask", args.mask, ("none", "paper", "code"))
    c = recipe.base()

    # Run
    c.total_steps, c.batch_size, c.dtype = args.steps, 128, "float32"
    c.log_every, c.eval_every, c.checkpoint_every = 10, 0, 250

    # Model
    size = {"width": 64, "depth": 2, "heads": 2, "mlp": 256, "activation": "gelu_tanh"}
    c.towers.image = recipe.entry(config.ViT(), patch=8, embedding_std=0.5, **size)
    c.towers.text = recipe.entry(config.Bert(), norm="pre", embedding_std=0.5, **size)
    recipe.image_text(c, dim=64, size=32, length=20)
    c.fields.image.crop_scale, c.fields.image.flip = (1.0, 1.0), 0.0
    c.tokenizer.vocab_size = 512
    if args.model == "vdr":
        make_lexical(c, args)

    # Optimiser
    c.optimizer.lr, c.optimizer.weight_decay = 4e-3, 0.05
    c.optimizer.schedule.warmup_steps = 20

    # Data: 1,000 pairs whose combinations never occurred in training
    c.labels.duplicates = False  # as in the paper: records with the same text are negatives
    c.evals.test = recipe.entry(config.Retrieval(), data=config.Scenes(split="test"))
    c.evals.test.modes = ("bag",) if args.model == "vdr" else ()
    return recipe.runlocal(c) if args.runlocal else c


def make_lexical(c: recipe.Editable, args: recipe.Editable) -> None:
    """Gives a small image-text model heads over the vocabulary, and VDR's loss.

    Args:
      args: top_k, nobag and mask as above.
    """
    c.towers.image.update(class_tokens=0, pool="none")
    c.towers.text.pool = "none"
    head = config.Lexical(terms="words", activation="elu1p", normalise=True, top_k=args.top_k)
    c.fields.text.head = recipe.entry(head, keep_input_terms=True)
    c.fields.image.head = recipe.entry(head, tied=False, layer_norm=False)
    c.topology = "inner"
    recipe.main_loss(c, config.Vdr(), top_k=args.top_k, bag=not args.nobag, bag_norm=True)
    if args.mask != "none":
        paper = args.mask == "paper" or args.nobag
        c.losses.main.mask.update(
            apply="gated" if paper else "bag", source="gate" if paper else "bag"
        )
