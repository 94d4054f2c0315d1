"""Latent target decoding with VSRN: graph layers and a GRU over the regions of an image.

"Reducing Predictive Feature Suppression in Resource-Constrained Contrastive Image-Caption
Retrieval" (docs/LTD.md), Table 3; VSRN is "Visual Semantic Reasoning for Image-Text Matching". The
authors' jobs train with InfoNCE on COCO and with the triplet loss on Flickr30k, of which the paper
says nothing. Word vectors are never trained, as in their code.

Needs GloVe's word vectors, the vectors of the captions (`big-retrieval targets`) and the regions:
for COCO Karpathy's split file and the folder that `examples/convert_regions.py` makes of the
published bottom-up files; for Flickr30k the regions and captions that SCAN and VSRN publish.
"""

from big_retrieval import config
from big_retrieval.config import recipe
from configs import ltd_coco, ltd_f30k


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: name (coco, flickr30k); data (data/NAME); regions (the folder data/coco/regions,
    or one for Flickr30k's split file; without it Flickr30k is data/scan/f30k_precomp); loss
    (infonce on COCO, triplet on Flickr30k); targets (coco_targets.npy, scan_targets.npy);
    the others as configs/ltd_f30k.py and, on COCO, as configs/ltd_coco.py."""
    glove = "data/glove.840B.300d.txt"
    own = {"name": "coco", "data": "", "regions": "", "glove": glove, "loss": ""}
    args = recipe.parse_arg(arg, **ltd_f30k.ARGUMENTS | ltd_coco.FILES | own)
    recipe.one_of("name", args.name, ("coco", "flickr30k"))
    coco = args.name == "coco"
    args.data = args.data or f"data/{args.name}"
    args.loss = args.loss or ("infonce" if coco else "triplet")
    published = not coco and not args.regions
    targets = {"coco": "coco_targets.npy", "flickr30k": "f30k_targets.npy"}[args.name]
    args.targets = args.targets or ("scan_targets.npy" if published else targets)
    c = recipe.base()
    ltd_f30k.schedule(c, epochs=30)

    # Model: VSRN's image encoder ends with a batch norm whatever the loss
    c.towers.regions = recipe.entry(config.RegionGraph(), normalise_regions=coco)
    c.fields.image = recipe.entry(config.RegionField(), head=config.Projection(dim=None))
    ltd_f30k.words(c, args, config.Mlp(dim=1024, batch_norm=args.loss == "triplet"))
    ltd_f30k.objective(c, args)

    # Optimiser
    c.optimizer.groups.words = recipe.group("text/token_embedding", frozen=True)
    c.optimizer.schedule.type = "constant"
    c.optimizer.phases.second = recipe.phase(start_epoch=15, lr=2e-5)

    # Data
    train = "train+restval" if coco else "train"
    ltd_f30k.data(c, args, args.name, train, args.regions or f"{args.data}/regions")
    if coco:
        ltd_coco.evaluators(c, args)
    elif published:
        scan = config.Precomputed(
            path="data/scan/f30k_precomp", how_to_get="see `big-retrieval data get scan`"
        )
        c.data = recipe.entry(scan, each="captions")
        for split, file in (("val", "dev"), ("test", "test")):
            c.evals[split].data = recipe.entry(scan, split=file)
    return recipe.runlocal(c) if args.runlocal else c
