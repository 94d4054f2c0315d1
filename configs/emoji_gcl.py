"""Graded relevance on emoji: keyword queries, documents of a name and drawings, scores 1 to 100.

GCL ("Generalized contrastive learning", docs/GCL.md) in miniature, for two CPU cores. Needs a
folder with emoji_gcl_triples.parquet (query_id, doc_id, score, split), emoji_gcl_queries.jsonl
(query_id, text), emoji_gcl_docs.jsonl (doc_id, title, corpus, image_ids) and emoji_images.npz
(images uint8 [n, 64, 64, 3], image_id). Trained on the pairs of known queries and known documents;
evaluated on these (in_domain), on new queries, on new documents, and on both (zero_shot).
"""

from big_retrieval import config
from big_retrieval.config import recipe

SPLITS = {  # name -> its name in the file, corpus
    "in_domain": ("train", "A"),
    "novel_query": ("novel_query", "A"),
    "novel_document": ("novel_corpus", "B"),
    "zero_shot": ("zero_shot", "B"),
}


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal, data (the folder, data/emoji), fields (multi, image, title), weight
    (inverse, or constant, linear, inverse_sqrt, piecewise), loss (wce, wsig), steps (400), batch
    (256), microbatch (0: none), m (class tokens, 1)."""
    args = recipe.parse_arg(
        arg, data="data/emoji", fields="multi", weight="inverse", loss="wce", steps=400, batch=256,
        microbatch=0, m=1,
    )  # fmt: skip
    recipe.one_of("fields", args.fields, ("multi", "image", "title"))
    recipe.one_of("loss", args.loss, ("wce", "wsig"))
    c = recipe.base()

    # Run
    c.total_steps, c.batch_size = args.steps, args.batch
    c.microbatch = args.microbatch or None
    c.log_every, c.eval_every, c.checkpoint_every = 20, 0, 200
    c.dtype = "float32"

    # Model: queries and titles share the text tower and its head
    size = {"width": 64, "depth": 2, "heads": 2, "mlp": 256, "class_tokens": args.m}
    head = config.Projection(dim=64 // args.m)
    c.towers.text = recipe.entry(config.Bert(), norm="pre", activation="gelu_tanh", **size)
    c.fields.query = recipe.entry(config.TextField(), column="text", length=9, head=head)
    if args.fields != "image":
        c.fields.title = recipe.entry(
            config.TextField(), side="document", column="title", length=16, head=head,
            shares_head="query", weight=0.5,
        )  # fmt: skip
    if args.fields != "title":
        c.towers.image = recipe.entry(
            config.ViT(), patch=8, activation="gelu_tanh", embedding_std=0.5, **size
        )
        c.fields.image = recipe.entry(config.ImageField(), size=32, head=head, weight=0.5)
        c.fields.image.update(crop_scale=(0.7, 1.0), crop_ratio=(0.85, 1.18))
    c.topology = "oblique" if args.m > 1 else "sphere"
    c.losses.main.logit_scale.init = 5.0

    # Objective
    c.labels = recipe.entry(
        config.PairLabels(), query="query_id", document="doc_id", score="score", weight=args.weight
    )
    recipe.main_loss(c, config.Contrastive(), divide_by="rows")
    if args.loss == "wsig":
        recipe.main_loss(c, config.Sigmoid(), weight_inside=True)

    # Optimiser: without clipping, Adam absorbs the scale of the weights
    c.optimizer.lr, c.optimizer.weight_decay, c.optimizer.clip_norm = 2e-3, 0.05, None
    c.optimizer.schedule.warmup_steps = 20

    # Data
    c.tokenizer.vocab_size = 8192
    triples = config.Graded(
        path=f"{args.data}/emoji_gcl_triples.parquet",
        document="doc_id",
        queries=f"{args.data}/emoji_gcl_queries.jsonl",
        documents=f"{args.data}/emoji_gcl_docs.jsonl",
        text=("text", "title"),
        image="image_ids",
        images=f"{args.data}/emoji_images.npz",
        how_to_get="make the four files as configs/emoji_gcl.py says",
    )
    for name, (split, corpus) in SPLITS.items():
        c.evals[name] = recipe.entry(config.Ranking())
        c.evals[name].data = recipe.entry(
            triples, where=(f"split={split}",), where_documents=(f"corpus={corpus}",)
        )
        if args.fields == "multi":
            c.evals[name].documents = ("image", "title")
    c.data = c.evals.in_domain.data.copy_and_resolve_references()
    # Settings were chosen on a fifth of the new queries; the others are the test.
    c.evals.novel_query.queries = c.evals.zero_shot.queries = "test"
    c.evals.dev = c.evals.novel_query.copy_and_resolve_references()
    c.evals.dev.update(queries="dev", every=100)
    return recipe.runlocal(c) if args.runlocal else c
