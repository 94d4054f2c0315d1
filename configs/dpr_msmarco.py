"""DPR on MS MARCO passages: the dense baseline of VDR's text-to-text model.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", section
4.1 and Table 3: two BERTs, [CLS] against [CLS], one hard negative, 20 epochs at batch 256. The
clipping, betas and dropout are those of its authors' code.
"""

from typing import Any

from big_retrieval import config
from big_retrieval.config import recipe

TRAIN_QUERIES = 502_939  # of MS MARCO's, with a right passage
ENCODERS = {"bert": "bert-base-uncased", "mbert": "bert-base-multilingual-uncased"}
ARGUMENTS: dict[str, Any] = {
    "encoder": "bert", "epochs": 20, "batch": 256, "microbatch": 0, "negatives": 1,
    "data": "data/msmarco", "beir": "data/beir", "sets": "all",
}  # fmt: skip


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal; encoder (bert; mbert: the multilingual one, Table 8); epochs (20); batch
    (256); microbatch (0: all at once); negatives (1); data (data/msmarco); beir (data/beir); sets
    of BEIR (all, none, or names: scifact+fiqa)."""
    args = recipe.parse_arg(arg, **ARGUMENTS)
    recipe.one_of("encoder", args.encoder, tuple(ENCODERS))
    c = recipe.base()

    # Run
    c.total_epochs, c.batch_size, c.microbatch = args.epochs, args.batch, args.microbatch or None
    c.log_every, c.eval_every, c.checkpoint_every = 50, 0, 2000

    # Model: an encoder for each side
    weights = ENCODERS[args.encoder]
    for field, side, column, title in (
        ("query", "query", "query", ""),
        ("passage", "document", "text", "title"),
    ):
        c.towers[field] = recipe.bert(remat="block", scan=True)
        c.init[field] = recipe.entry(config.Init(), path=weights, head=False)
        c.fields[field] = recipe.entry(
            config.TextField(), side=side, tower=field, column=column, title=title, length=256,
            head=config.Projection(dim=None),
        )  # fmt: skip
    c.tokenizer.path = weights
    c.topology = "inner"
    c.losses.main.logit_scale.update(init=1.0, learnable=False, max=None)

    # Optimiser
    c.optimizer.update(lr=2e-5, weight_decay=0.0, clip_norm=2.0)
    c.optimizer.rule.update(b1=0.9, b2=0.999, eps=1e-8)
    c.optimizer.schedule.update(type="linear", warmup_steps=TRAIN_QUERIES // args.batch, floor=1e-7)

    # Data
    c.labels.duplicates = False  # as in the paper: records with the same text are negatives
    c.data = recipe.entry(
        config.Triples(),
        path=f"{args.data}/hard-negatives.jsonl",
        queries=f"{args.data}/queries.train.tsv",
        documents=f"{args.data}/collection.tsv",
        how_to_get="see `big-retrieval data get msmarco`; data=FOLDER says where; or find "
        "negatives with big-retrieval mine --bm25 "
        f"--data={args.beir}/msmarco --out=FILE, which brings its texts in DPR's form, and give "
        "--config.data.type=dpr --config.data.path=FILE",
    )
    c.negatives.count = args.negatives
    recipe.beir(c, args.beir, args.sets)
    return recipe.runlocal(c) if args.runlocal else c
