"""DPR on MS MARCO passages: the dense baseline of VDR's text-to-text model.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", section
4.1 and Table 3: two BERTs, [CLS] against [CLS], one hard negative, 20 epochs at batch 256. The
clipping, betas and dropout are those of its authors' code.

The paper draws "one negative passage provided by the MS MARCO dataset". MS MARCO's triples are
BM25's passages for 400,282 of the queries; `triples` reads them, grouped by query. The default is
ours: BM25's passages of sentence-transformers' hard negatives, which have all 502,939 queries, the
"around 500 thousand" of the paper.
"""

from typing import Any

from big_retrieval import config
from big_retrieval.config import recipe

QUERIES = 502_939  # of MS MARCO's for training, with a right passage
TRIPLES_QUERIES = 400_282  # of these in qidpidtriples.train.full.2.tsv
TRIPLES_READ = 32  # of the about 1,000 lines of a query
# Table 8 says multilingual BERT of 110k terms. Uncased, with 105,879, is ours; cased has 119,547.
ENCODERS = {"bert": "bert-base-uncased", "mbert": "bert-base-multilingual-uncased"}
ARGUMENTS: dict[str, Any] = {
    "encoder": "bert", "epochs": 20, "batch": 256, "microbatch": 0, "negatives": 1,
    "systems": "bm25", "triples": "", "data": "data/msmarco", "beir": "data/beir", "sets": "all",
}  # fmt: skip


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal; encoder (bert; mbert: the multilingual one, Table 8); epochs (20); batch
    (256); microbatch (0: all at once); negatives (1); systems that found the negatives (bm25; names
    joined by +; all: BM25 and 12 dense models); triples (a file in DATA of MS MARCO's own triples
    of ids, whose negatives replace the systems: qidpidtriples.train.full.2.tsv); data
    (data/msmarco); beir (data/beir); sets of BEIR (all, none, or names: scifact+fiqa)."""
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
    warmup_steps = queries(args) // args.batch  # an epoch
    c.optimizer.schedule.update(type="linear", warmup_steps=warmup_steps, floor=1e-7)

    # Data
    c.labels.duplicates = False  # as in the paper: records with the same text are negatives
    c.data = recipe.entry(
        config.Triples(),
        path=f"{args.data}/{args.triples or 'hard-negatives.jsonl'}",
        queries=f"{args.data}/queries.train.tsv",
        documents=f"{args.data}/collection.tsv",
        how_to_get="see `big-retrieval data get msmarco` (data=FOLDER says where), or mine "
        f"negatives (`big-retrieval mine --bm25 --data={args.beir}/msmarco --out=FILE`) and give "
        "--config.data.type=dpr --config.data.path=FILE",
    )
    if args.triples:
        c.data.by_query = TRIPLES_READ
    elif args.systems != "all":
        c.data.lists = tuple(args.systems.split("+"))
    c.negatives.count = args.negatives
    recipe.beir(c, args.beir, args.sets)
    return recipe.runlocal(c) if args.runlocal else c


def queries(args: Any) -> int:
    """Returns the number of queries for training, which an epoch has once each."""
    return TRIPLES_QUERIES if args.triples else QUERIES
