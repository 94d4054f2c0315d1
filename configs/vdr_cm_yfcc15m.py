"""VDR, image and text: vocabulary-space representations on YFCC15M.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", section
3.3 and Table 3: ViT-B/32 on patches, BERT base, 20 epochs at batch 4,096, 512 terms. What the
paper leaves open is marked "ours"; docs/PAPERS.md says where its authors' code differs. The paper
counts 197M parameters, which leaves no room for a projection of images; ours has one, and 218.7M.
Dropout, crops and flips are ours, too, as marked in clip_bert_yfcc15m.py.
"""

from big_retrieval import config
from big_retrieval.config import recipe
from configs import clip_bert_yfcc15m


def get_config(arg: str = "") -> recipe.Editable:
    """The paper and its ablations (Figure 3) by arguments.

    Arguments: runlocal; epochs (20), lr (2e-4), batch (4096), microbatch (0: all at once) and
    scratch (text, too) as clip_bert_yfcc15m.py; top_k (512), terms that the gate leaves; terms
    (words; ascii: those of the authors' checkpoints); mask (paper, code or none); nobag: without
    the nonparametric entry; mean: mean instead of max pooling; relu: instead of elu1p; own: an own
    projection of the text instead of its word table.
    """
    args = recipe.parse_arg(
        arg, epochs=20, lr=2e-4, batch=4096, microbatch=0, scratch=False, top_k=512, terms="words",
        mask="paper", nobag=False, mean=False, relu=False, own=False,
    )  # fmt: skip
    recipe.one_of("mask", args.mask, ("paper", "code", "none"))
    shared = ("epochs", "lr", "batch", "microbatch", "scratch")
    c = clip_bert_yfcc15m.get_config(",".join(f"{key}={getattr(args, key)}" for key in shared))

    # Model: all positions of both towers, pooled over a vocabulary, to norm 1
    c.towers.image.update(class_tokens=0, pool="none")
    c.towers.text.pool = "none"
    head = config.Lexical(
        terms=args.terms, normalise=True, top_k=args.top_k,
        activation="relu" if args.relu else "elu1p", pooling="mean" if args.mean else "max",
    )  # fmt: skip
    c.fields.text.head = recipe.entry(head, tied=not args.own, keep_input_terms=True)
    # ln_post of the tower stands for the head's norm
    c.fields.image.head = recipe.entry(head, tied=False, layer_norm=False)
    c.topology = "inner"

    # Objective: Eq. 5 of gated texts, and of their bags of words, against images
    recipe.main_loss(c, config.Vdr(), top_k=args.top_k, bag=not args.nobag, bag_norm=True)
    if args.mask != "none":
        apply = "gated" if args.mask == "paper" or args.nobag else "bag"
        source = "gate" if args.mask == "paper" else "bag"
        c.losses.main.mask.update(apply=apply, source=source)
    for name in ("coco", "flickr30k", "imagenet"):
        c.evals[name].modes = ("bag",)
    return recipe.runlocal(c) if args.runlocal else c
