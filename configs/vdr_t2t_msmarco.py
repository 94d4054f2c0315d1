"""VDR, text to text: vocabulary-space representations on MS MARCO passages.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", sections
3.1, 3.2 and Table 3: two BERTs with tied heads, 768 terms, the nonparametric entry, the data and
recipe of dpr_msmarco.py. docs/VDR.md says where its authors' code differs.
"""

from big_retrieval import config
from big_retrieval.config import recipe
from configs import dpr_msmarco


def get_config(arg: str = "") -> recipe.Editable:
    """The paper and its ablations (Table 9) by arguments.

    Arguments: runlocal; those of dpr_msmarco.py (encoder, batch, microbatch, negatives, data,
    beir); top_k (768), terms that the gate leaves; terms (words; 1000-: as the paper counts);
    nobag: without the nonparametric entry; symmetric: four terms, as in the authors' later model;
    mean: mean instead of max pooling; relu: instead of elu1p; own: an own projection.
    """
    args = recipe.parse_arg(
        arg, encoder="bert", batch=256, microbatch=0, negatives=1, data="data/msmarco",
        beir="data/beir", top_k=768, terms="words", nobag=False, symmetric=False, mean=False,
        relu=False, own=False,
    )  # fmt: skip
    shared = ("encoder", "batch", "microbatch", "negatives", "data", "beir")
    c = dpr_msmarco.get_config(",".join(f"{key}={getattr(args, key)}" for key in shared))

    # Model: all positions, pooled over the vocabulary
    head = config.Lexical(
        tied=not args.own, terms=args.terms, top_k=args.top_k, keep_input_terms=True,
        activation="relu" if args.relu else "elu1p", pooling="mean" if args.mean else "max",
    )  # fmt: skip
    for field in ("query", "passage"):
        c.towers[field].pool = "none"
        c.fields[field].head = recipe.entry(head)

    # Objective: Eq. 5 of gated queries, and of their bags of words, against dense passages
    loss = config.Vdr(top_k=args.top_k, bag=not args.nobag, symmetric=args.symmetric)
    recipe.main_loss(c, loss)
    for each in c.evals.values():
        each.modes = ("bag",)
    return recipe.runlocal(c) if args.runlocal else c
