"""VDR on drawings of emoji and their names: a small real data set, for two CPU cores.

The data and evaluations of emoji.py, towers a little shallower; representations over BERT's whole
vocabulary, most of whose terms never occur, or a dense vector (`model=clip`).
"""

from big_retrieval.config import recipe
from configs import emoji, scenes_vdr


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal; data (the folder, data/emoji); vocab (BERT's vocabulary: a file, folder
    or hub name); model (vdr, clip); steps (600); top_k (64), terms that the gate leaves; nobag:
    without the nonparametric entry; mask (none, paper, code); bias: where that of the terms
    starts (-6), as with 0 all 29,523 are active and embeddings alike; lr (4e-3)."""
    args = recipe.parse_arg(
        arg, data="data/emoji", vocab="bert-base-uncased", model="vdr", steps=600, top_k=64,
        nobag=False, mask="none", bias=-6.0, lr=4e-3,
    )  # fmt: skip
    recipe.one_of("model", args.model, ("vdr", "clip"))
    recipe.one_of("mask", args.mask, ("none", "paper", "code"))
    c = emoji.get_config(f"data={args.data},steps={args.steps},m=1")
    c.batch_size, c.eval_every, c.best_metric = 128, 0, ""
    for tower in c.towers.values():
        tower.depth = 2
    c.tokenizer.path = args.vocab
    c.losses.main.logit_scale.init = 1 / 0.07
    c.optimizer.lr, c.optimizer.schedule.warmup_steps = args.lr, 20
    for name in [name for name in c.evals if name == "caltech" or name.startswith("groups_")]:
        del c.evals[name]
    if args.model == "clip":
        return recipe.runlocal(c) if args.runlocal else c

    scenes_vdr.make_lexical(c, args)
    for field in c.fields.values():
        field.head.update(use_bias=True, bias_init=args.bias)
    for each in c.evals.values():
        each.modes = ("bag",)
    return recipe.runlocal(c) if args.runlocal else c
