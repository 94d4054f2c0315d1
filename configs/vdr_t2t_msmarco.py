"""VDR, text to text: vocabulary-space representations on MS MARCO passages.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", sections
3.1, 3.2 and Table 3: two BERTs with tied heads, 768 terms, the nonparametric entry, the data and
recipe of dpr_msmarco.py. docs/PAPERS.md says where its authors' code differs.
"""

from big_retrieval import config
from big_retrieval.config import recipe
from configs import dpr_msmarco


def get_config(arg: str = "") -> recipe.Editable:
    """The paper and its ablations (Tables 5 and 9) by arguments.

    Arguments: runlocal; those of dpr_msmarco.py; top_k (768), terms that the gate leaves; terms
    (words; 1000-: as the paper counts); nobag: without the nonparametric entry; symmetric: four
    terms, as in the authors' later model; mean: mean instead of max pooling; relu: instead of
    elu1p; own: an own projection, drawn anew, instead of the word table (passage: of passages
    alone, the paper's VDR_proj; both); modes (bag), further ways to search (bag+top_k=64).
    """
    args = recipe.parse_arg(
        arg, **dpr_msmarco.ARGUMENTS, top_k=768, terms="words", nobag=False, symmetric=False,
        mean=False, relu=False, own="none", modes="bag",
    )  # fmt: skip
    own = args.own or "both"  # the word alone
    recipe.one_of("own", own, ("none", "passage", "both"))
    shared = dpr_msmarco.ARGUMENTS
    c = dpr_msmarco.get_config(",".join(f"{key}={getattr(args, key)}" for key in shared))

    # Model: all positions, pooled over the vocabulary
    head = config.Lexical(
        terms=args.terms, top_k=args.top_k, keep_input_terms=True,
        activation="relu" if args.relu else "elu1p", pooling="mean" if args.mean else "max",
    )  # fmt: skip
    for field in ("query", "passage"):
        c.towers[field].pool = "none"
        c.fields[field].head = recipe.entry(head, tied=own not in (field, "both"))

    # Objective: Eq. 5 of gated queries, and of their bags of words, against dense passages
    loss = config.Vdr(top_k=args.top_k, bag=not args.nobag, symmetric=args.symmetric)
    recipe.main_loss(c, loss)
    for each in c.evals.values():
        each.modes = tuple(filter(None, args.modes.split("+")))
    return recipe.runlocal(c) if args.runlocal else c
