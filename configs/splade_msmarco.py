"""SPLADE-max on MS MARCO passages: the learned lexical baseline of VDR's text-to-text model.

"SPLADE v2: Sparse Lexical and Expansion Model for Information Retrieval", sections 3 and 4: one
BERT with its masked-language head for both sides, log(1 + relu), max pooling, and the FLOPS
regulariser, which grows with the square of the steps. Data as in dpr_msmarco.py; the factors of the
regulariser are ours, as those of the paper go with its batch and its negatives.
"""

from big_retrieval import config
from big_retrieval.config import recipe
from configs import dpr_msmarco


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal; those of dpr_msmarco.py; query (3e-4) and document (1e-4): factors of
    the regulariser.

    The masked-language head as it is published, without training:
    big-retrieval evaluate --untrained --config=configs/splade_msmarco.py
    """
    args = recipe.parse_arg(arg, **dpr_msmarco.ARGUMENTS, query=3e-4, document=1e-4)
    shared = dpr_msmarco.ARGUMENTS
    c = dpr_msmarco.get_config(",".join(f"{key}={getattr(args, key)}" for key in shared))

    # Model: one encoder with its published masked-language head
    c.towers = {"text": recipe.bert(pool="none", remat="block", scan=True)}
    weights = dpr_msmarco.ENCODERS[args.encoder]
    c.init = {"text": recipe.entry(config.Init(), path=weights)}
    head = config.Lexical(transform="gelu", epsilon=1e-12, use_bias=True, keep_input_terms=False)
    for field in ("query", "passage"):
        c.fields[field].tower, c.fields[field].head = "text", recipe.entry(head)
    c.fields.passage.shares_head = "query"

    # Objective
    steps = args.epochs * dpr_msmarco.queries(args) // args.batch
    recipe.main_loss(c, config.Contrastive())
    c.losses.main.sparsity.update(query=args.query, document=args.document, warmup_steps=steps // 3)
    return recipe.runlocal(c) if args.runlocal else c
