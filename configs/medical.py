"""Medical question answering, text to text: DPR, SPLADE and VDR of one small size, from one start.

VDR's comparison (docs/VDR.md) in miniature, for two CPU cores. Needs two folders in BEIR's form:
medquad (corpus.jsonl of answers, queries.jsonl, qrels/train.tsv, val.tsv and test.tsv; MedQuAD's
questions and answers) and liveqa (qrels/test.tsv; LiveQA's medical task, zero-shot).
"""

from big_retrieval import config
from big_retrieval.config import recipe

METHODS = ("dpr", "splade", "vdr")


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal; method (vdr, dpr, splade); data (the folder of both, data/medical);
    init (MiniLM-L6: a file, folder or hub name; none: from scratch); vocab (of the tokenizer);
    steps (150); batch (32); lr (2e-5); top_k (256), terms that VDR's gate leaves; nobag: without
    its nonparametric entry; query and document: factors of SPLADE's regulariser (1e-3, 1e-3); bias:
    where that of the terms starts (-4), as MiniLM brings none.
    """
    args = recipe.parse_arg(
        arg, method="vdr", data="data/medical", init="sentence-transformers/all-MiniLM-L6-v2",
        vocab="bert-base-uncased", steps=150, batch=32, top_k=256, nobag=False, query=1e-3,
        document=1e-3, bias=-4.0, lr=2e-5,
    )  # fmt: skip
    recipe.one_of("method", args.method, METHODS)
    c = recipe.base()

    # Run
    c.total_steps, c.batch_size, c.dtype = args.steps, args.batch, "float32"
    c.log_every, c.eval_every, c.checkpoint_every = 10, 0, 50

    # Model: the encoder of MiniLM-L6, shared by questions and answers
    c.towers.text = recipe.bert(width=384, depth=6, heads=12, mlp=1536)
    if args.init != "none":
        c.init.text = recipe.entry(config.Init(), path=args.init, head=False)
    c.fields.query = recipe.entry(config.TextField(), column="query", length=32)
    c.fields.answer = recipe.entry(
        config.TextField(),
        side="document",
        column="text",
        title="title",
        length=64,
        shares_head="query",
    )
    lexical = config.Lexical(terms="words", use_bias=bool(args.bias), bias_init=args.bias)
    head = {
        "dpr": recipe.entry(config.Projection(), dim=None),
        "splade": recipe.entry(lexical, keep_input_terms=False),
        "vdr": recipe.entry(lexical, activation="elu1p", top_k=args.top_k),
    }[args.method]
    c.fields.query.head, c.fields.answer.head = head, head.copy_and_resolve_references()
    c.towers.text.pool = "mean" if args.method == "dpr" else "none"  # as MiniLM was trained
    c.tokenizer.path, c.topology = args.vocab, "inner"
    c.losses.main.logit_scale.update(init=0.1 if args.method == "vdr" else 1.0, max=None)

    # Objective
    if args.method == "vdr":
        recipe.main_loss(c, config.Vdr(), top_k=args.top_k, bag=not args.nobag)
    if args.method == "splade":
        c.losses.main.sparsity.update(
            query=args.query, document=args.document, warmup_steps=args.steps // 3
        )

    # Optimiser
    c.optimizer.update(lr=args.lr, weight_decay=0.01, clip_norm=2.0)
    c.optimizer.rule.b2 = 0.999
    c.optimizer.schedule.update(type="linear", warmup_steps=args.steps // 10)

    # Data
    c.labels.duplicates = False  # as in the papers: the same question twice is a negative
    medquad = config.Beir(
        path=f"{args.data}/medquad",
        split="train",
        how_to_get="make the folders as configs/medical.py says; data=FOLDER says where",
    )
    c.data = recipe.entry(medquad, min_relevance=1)
    metrics = ("nDCG@10", "MRR@10", "R@100")
    liveqa = recipe.entry(medquad, path=f"{args.data}/liveqa", split="test", duplicates="max")
    for name, source in (("medquad", recipe.entry(medquad, split="test")), ("liveqa", liveqa)):
        c.evals[name] = recipe.entry(config.Ranking(), metrics=metrics)
        c.evals[name].data = source
        if args.method == "vdr":
            c.evals[name].modes = ("bag",)
    return recipe.runlocal(c) if args.runlocal else c
