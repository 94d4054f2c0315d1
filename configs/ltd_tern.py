"""Latent target decoding with TERN on COCO: transformers over regions and over BERT's words.

"Reducing Predictive Feature Suppression in Resource-Constrained Contrastive Image-Caption
Retrieval" (docs/LTD.md), Table 3; TERN is "Transformer Reasoning Network for Image-Text Matching
and Retrieval". The authors' file names a rate of 0.002, but their code trains with 2e-6.

Needs Karpathy's split file, BERT, the vectors of the captions (`big-retrieval targets`) and the
regions with their boxes, which `examples/convert_regions.py` makes of the published files.
"""

from big_retrieval import config
from big_retrieval.config import recipe
from configs import ltd_coco, ltd_f30k


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: data (data/coco), regions (data/coco/regions), bert (bert-base-uncased; none:
    random weights, and word pieces learned from the captions); mode, decoder, loss, eta, beta,
    targets and size as configs/ltd_f30k.py, ratings, rouge and spice as configs/ltd_coco.py."""
    own = {
        "data": "data/coco", "regions": "data/coco/regions", "bert": "bert-base-uncased",
        "targets": "coco_targets.npy",
    }  # fmt: skip
    args = recipe.parse_arg(arg, **ltd_f30k.ARGUMENTS | ltd_coco.FILES | own)
    c = recipe.base()
    ltd_f30k.schedule(c, epochs=30)

    # Model: the last two layers are those of images and captions alike
    top = config.SharedTransformer(dim=1024)
    c.towers.regions = recipe.entry(config.RegionTransformer())
    c.towers.text = recipe.bert(depth=6, pool="none")
    c.fields.image = recipe.entry(config.RegionField(), boxes="boxes", head=top)
    c.fields.text = recipe.entry(config.TextField(), length=64, head=top, shares_head="image")
    if args.bert != "none":
        c.tokenizer.path = args.bert
        c.init.text = recipe.entry(config.Init(), path=args.bert, head=False, first_layers=True)
    ltd_f30k.objective(c, args)

    # Optimiser
    c.optimizer.lr, c.optimizer.averaging = 2e-6, recipe.entry(config.NoAveraging())
    c.optimizer.schedule.update(type="constant", warmup_steps=1000)

    # Data
    ltd_f30k.data(c, args, "coco", "train+restval", args.regions)
    ltd_coco.evaluators(c, args)
    return recipe.runlocal(c) if args.runlocal else c
