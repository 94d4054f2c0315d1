"""GCL on Marqo-GS-10M: graded weights, and products of an image and a title.

"Generalized contrastive learning" (docs/GCL.md): fine-tuning of published encoders with lr 1e-4,
batches of 2,048 (up to 24,576 in the paper's study), 20 epochs, inverse weights, one learned scale
for all terms. Needs the data as published: query_0_product_id_0.csv and its kin, corpus_1.json,
corpus_2.json and the images. The schedule's warm-up is not published; 2,000 steps are ours.
"""

from big_retrieval import config
from big_retrieval.config import recipe

PUBLISHED = {  # of the image-text encoders: size, vector, text tower's width and heads, weights
    "vit_b32": ("B/32", 512, 512, 8, "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"),
    "vit_b16": ("B/16", 512, 512, 8, "laion/CLIP-ViT-B-16-laion2B-s34B-b88K"),
    "vit_l14": ("L/14", 768, 768, 12, "laion/CLIP-ViT-L-14-laion2B-s32B-b82K"),
}
ROBERTA = "FacebookAI/roberta-base"
BERTS = {  # of the text encoders: width, layers, heads, other keys, weights
    "e5": (1024, 24, 16, {"token_types": 2, "epsilon": 1e-12}, "intfloat/e5-large-v2"),
    "roberta": (768, 12, 12, {"token_types": 1}, ROBERTA),
    # open_clip's, trained on LAION-2B beside an image tower, and its projection behind the mean
    "roberta_clip": (
        768, 12, 12, {"token_types": 1}, "laion/CLIP-ViT-B-32-roberta-base-laion2B-s12B-b32k",
    ),
}  # fmt: skip
SPLITS = {"in_domain": (0, 0), "novel_query": (1, 0), "novel_document": (0, 1), "zero_shot": (1, 1)}


def get_config(arg: str = "") -> recipe.Editable:
    """The tables by arguments.

    Arguments: runlocal; data (data/marqo-gs-10m); sets: the queries of the evaluations (test: half
    of each split, ours, dev: the other half; authors-test, authors-dev: the authors' sets, whose
    files they publish beside the pairs); encoder (vit_b32, vit_b16, vit_l14, e5, roberta,
    roberta_clip: open_clip's, with its projection); fields (multi, image, title); image (0.5), the
    weight of the image, gamma; weight (inverse); loss (wce, wsig); scale: where the logit scale
    starts (checkpoint: that of the published weights; usual: 1 / 0.07, of wsig, whose default
    this is, 10); decay (0.02); batch (2048); microbatch (0: all); scratch (random weights instead
    of the published ones).
    """
    args = recipe.parse_arg(
        arg, data="data/marqo-gs-10m", sets="test", encoder="vit_b32", fields="multi", image=0.5,
        weight="inverse", loss="wce", scale="", decay=0.02, batch=2048, microbatch=0,
        scratch=False,
    )  # fmt: skip
    recipe.one_of("sets", args.sets, ("test", "dev", "authors-test", "authors-dev"))
    args.scale = args.scale or ("usual" if args.loss == "wsig" else "checkpoint")
    recipe.one_of("scale", args.scale, ("checkpoint", "usual"))
    recipe.one_of("encoder", args.encoder, (*PUBLISHED, *BERTS))
    fields = ("multi", "title") if args.encoder in BERTS else ("multi", "image", "title")
    recipe.one_of("fields", args.fields, fields)
    recipe.one_of("loss", args.loss, ("wce", "wsig"))
    c = recipe.base()

    # Run
    c.total_epochs, c.batch_size, c.microbatch = 20, args.batch, args.microbatch or None
    c.log_every, c.eval_every, c.checkpoint_every = 50, 0, 1000

    # Model
    (_text_only if args.encoder in BERTS else _image_text)(c, args)

    # Objective: Eq. 5 of weighted terms, with one learned scale
    c.labels = recipe.entry(
        config.PairLabels(), query="query", document="product_id", score="score_linear",
        weight=args.weight,
    )  # fmt: skip
    recipe.main_loss(c, config.Contrastive(), divide_by="rows")
    if args.loss == "wsig":
        recipe.main_loss(c, config.Sigmoid(), weight_inside=True, bias=-10.0)
    if args.loss == "wsig" and args.scale == "usual":
        c.losses.main.logit_scale.init = 10.0  # SigLIP's

    # Optimiser: betas, epsilon and warm-up are ours, and no clipping, as it would undo the scale of
    # the weights
    c.optimizer.lr, c.optimizer.weight_decay, c.optimizer.clip_norm = 1e-4, args.decay, None
    c.optimizer.schedule.warmup_steps = 2000

    # Data
    for name, (query, product) in SPLITS.items():
        c.evals[name] = recipe.entry(config.Ranking(), dev_share=0.5, shown=6)  # as in Figure 4
        files = f"{args.data}/query_{query}_product_id_{product}"
        if args.sets.startswith("authors-"):
            kind = args.sets.removeprefix("authors-")
            c.evals[name].query_file = f"{files}_gt_{kind}.json"
        else:
            c.evals[name].queries = args.sets
        c.evals[name].data = recipe.entry(
            config.Graded(),
            path=f"{files}.csv",
            query="query", document="product_id", score="score_linear",
            documents=f"{args.data}/corpus_{product + 1}.json",
            text=("query", "title"), image="image_local", root=args.data,
            how_to_get="see `big-retrieval data get marqo-gs-10m`; data=FOLDER says where",
        )  # fmt: skip
        if args.fields == "multi" and args.encoder in PUBLISHED:
            c.evals[name].documents = ("image", "title", "image=0.9,title=0.1")
    c.data = c.evals.in_domain.data.copy_and_resolve_references()
    return recipe.runlocal(c) if args.runlocal else c


def _image_text(c: recipe.Editable, args: recipe.Editable) -> None:
    """CLIP's two towers; queries and titles share the text tower and its projection."""
    size, dim, width, heads, weights = PUBLISHED[args.encoder]
    head, cheap = config.Projection(dim=dim), {"remat": "block", "scan": True}
    c.towers.text = recipe.entry(
        config.Bert(), width=width, heads=heads, mlp=4 * width, norm="pre", causal=True,
        pool="last", **cheap,
    )  # fmt: skip
    c.fields.query = recipe.entry(config.TextField(), column="query", head=head)
    if args.fields != "image":
        c.fields.title = recipe.entry(
            config.TextField(), side="document", column="title", head=head, shares_head="query",
            weight=1 - args.image, optional=args.fields == "multi",
        )  # fmt: skip
    if args.fields != "title":
        c.towers.image = recipe.vit(size, **cheap)
        c.fields.image = recipe.entry(
            config.ImageField(), head=head, weight=args.image, optional=args.fields == "multi"
        )
        c.fields.image.update(crop_scale=(0.9, 1.0), flip=0.0)  # ours: open_clip's
    c.tokenizer.type, c.tokenizer.path = "clip", weights
    if args.scratch:
        return
    whole = args.scale == "checkpoint"  # with the logit scale
    for name in ("model",) if whole else c.towers:
        c.init[name] = recipe.entry(config.Init(), path=weights)


def _text_only(c: recipe.Editable, args: recipe.Editable) -> None:
    """One text encoder for queries and titles, the only field: the mean of all positions."""
    width, depth, heads, more, weights = BERTS[args.encoder]
    c.towers.text = recipe.entry(
        config.Bert(), width=width, depth=depth, heads=heads, mlp=4 * width, pool="mean",
        final_norm=False, remat="block", scan=True, **more,
    )  # fmt: skip
    said = ("query: ", "passage: ") if args.encoder == "e5" else ("", "")
    clip = args.encoder == "roberta_clip"
    mlp = config.Mlp(hidden=640, dim=512, activation="gelu")
    for name, side, prefix in zip(("query", "title"), ("query", "document"), said, strict=True):
        c.fields[name] = recipe.entry(
            config.TextField(),
            side=side,
            column=name,
            head=mlp if clip else config.Projection(dim=None),
            shares_head="query" if clip and name == "title" else "",
            prefix=prefix,
        )
    c.tokenizer.type, c.tokenizer.path = "auto", ROBERTA if clip else weights
    if not args.scratch:
        name = "model" if clip and args.scale == "checkpoint" else "text"  # with the logit scale
        c.init[name] = recipe.entry(config.Init(), path=weights, head=clip)
