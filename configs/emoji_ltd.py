"""Latent target decoding on the drawings and names of configs/emoji.py, for two CPU cores.

Needs the files of configs/emoji.py, and the vectors of a sentence encoder for all training
captions, which the first command makes:

    big-retrieval targets --config=emoji_ltd:data=FOLDER --encoder=MINILM --out=targets.npy
    big-retrieval train --config=emoji_ltd:data=FOLDER,targets=targets.npy,eta=0.4
"""

from big_retrieval import config
from big_retrieval.config import recipe
from configs import emoji

MODES = ("contrastive", "dual", "constraint")


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal; data (the folder, data/emoji); targets (file of vectors); mode
    (constraint, dual, contrastive); eta (0.4), the bound; beta (1.0), the weight; steps (600)."""
    args = recipe.parse_arg(
        arg, data="data/emoji", targets="targets.npy", mode="constraint", eta=0.4, beta=1.0,
        steps=600,
    )  # fmt: skip
    recipe.one_of("mode", args.mode, MODES)
    c = emoji.get_config(f"data={args.data},steps={args.steps},m=1")
    c.batch_size, c.eval_every, c.best_metric = 128, 0, ""
    for tower in c.towers.values():
        tower.depth = 2
    for field in c.fields.values():
        field.head.dim = 128
    c.evals = {name: c.evals[name] for name in ("test_style", "test_entity")}
    if args.mode != "contrastive":
        c.fields.target = recipe.entry(
            config.ArrayField(), shape=(384,), aligned_with="text", file=args.targets
        )
        c.losses.decoder = recipe.entry(config.LatentTarget(), hidden=512)
    if args.mode == "dual":
        c.losses.decoder.weight = args.beta
    if args.mode == "constraint":
        c.losses.decoder.constraint.bound = args.eta
    return recipe.runlocal(c) if args.runlocal else c
