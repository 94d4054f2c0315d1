"""VDR on drawings of emoji and their names: a small real data set, for two CPU cores.

The data and evaluations of emoji.py, towers a little shallower; representations over BERT's whole
vocabulary, most of whose columns never occur, or a dense vector (`model=clip`).
"""

from big_retrieval import config, recipe
from configs import emoji


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal; data (the folder, data/emoji); vocab (BERT's vocabulary: a file, folder
    or hub name); model (vdr, clip); steps (600); top (64), columns that the gate leaves; nobag:
    without the nonparametric entry; mask (none, paper, code)."""
    args = recipe.parse_arg(
        arg, data="data/emoji", vocab="bert-base-uncased", model="vdr", steps=600, top=64,
        nobag=False, mask="none",
    )  # fmt: skip
    recipe.one_of("model", args.model, ("vdr", "clip"))
    recipe.one_of("mask", args.mask, ("none", "paper", "code"))
    c = emoji.get_config(f"data={args.data},steps={args.steps},m=1")
    c.batch_size, c.eval_every, c.best_metric = 128, 0, ""
    for tower in c.towers.values():
        tower.depth = 2
    c.tokenizer.path = args.vocab
    c.temperature.init = 1 / 0.07
    c.optimizer.schedule.warmup_steps = 20
    for name in [name for name in c.evals if name == "caltech" or name.startswith("groups_")]:
        del c.evals[name]
    if args.model == "clip":
        return recipe.runlocal(c) if args.runlocal else c

    # Model and objective: as in vdr_cm_yfcc15m.py
    c.towers.image.update(class_tokens=0, pool="none")
    c.towers.text.pool = "none"
    head = config.Lexical(columns="words", activation="elu1p", normalise=True, top=args.top)
    c.fields.text.head = recipe.entry(head, own_words=True)
    c.fields.image.head = recipe.entry(head, tied=False, layer_norm=False)
    c.topology = "inner"
    c.loss = recipe.entry(config.Vdr(), top=args.top, bag=not args.nobag, bag_norm=True)
    if args.mask != "none":
        paper = args.mask == "paper" or args.nobag
        c.loss.mask.update(apply="gated" if paper else "bag", source="gate" if paper else "bag")
    for each in c.evals.values():
        each.modes = ("bag",)
    return recipe.runlocal(c) if args.runlocal else c
