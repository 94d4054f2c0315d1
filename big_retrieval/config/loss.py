"""Configuration of losses and of what they know of the rows; see `big_retrieval.config`."""

from dataclasses import dataclass, field
from typing import Literal

Exchange = Literal["auto", "gather", "ring"]
FalseNegatives = Literal["keep", "mask", "positives"]


@dataclass(frozen=True)
class Temperature:
    """The multiplier tau = exp(t) of the scores; `t` is the parameter `scalars/temperature`."""

    init: float = 1 / 0.07
    learnable: bool = True
    min: float | None = None
    max: float | None = 100.0


@dataclass(frozen=True)
class PairLabels:
    """Which columns of a record say what its pair is and how much it counts; empty: none does."""

    query: str = ""  # column of the query's id: equal ones are the same query
    document: str = ""  # column of the document's id; empty: the record is the document
    # Where the column has one id for each text of a field: that text field, so that the id of the
    # text that was drawn counts. Empty: the only text field of the side.
    query_field: str = ""
    document_field: str = ""
    score: str = ""  # column of how well the two fit; empty: all pairs weigh 1
    # from score to weight: "constant", "linear", "inverse", "inverse_sqrt", "piecewise" (GCL, Eqs.
    # 1 to 3), "table", or arithmetic in s and s_max, such as "sqrt(s / s_max)"
    weight: str = "constant"
    s_max: float = 100.0  # the best score that there can be
    table: tuple[tuple[float, float], ...] = ()  # (score, weight); linear in between
    normalise: bool = False  # divide the weights of a batch by their mean


@dataclass(frozen=True)
class Sparsity:
    """Factors of the FLOPS regulariser of lexical representations (SPLADE), for each side."""

    query: float = 0.0
    document: float = 0.0
    warmup_steps: int = 0  # over which they grow, with the square of the steps


@dataclass(frozen=True)
class Contrastive:
    """Symmetric cross-entropy over the global batch; over several fields, GCL's Eq. 5."""

    type: Literal["contrastive"] = "contrastive"
    false_negatives: FalseNegatives = "keep"  # what a pair known by its ids counts as
    divide_by: Literal["weights", "rows"] = (
        "weights"  # the sum of weighted losses; rows: GCL, Eq. 4
    )
    # with several fields a side: of their average, of every pair of them, or the sum of both
    terms: Literal["all", "average", "pairs"] = "all"
    renormalise: bool = False  # the average of the fields is brought back onto the topology
    directions: Literal["both", "query"] = "both"  # query: of queries over documents alone
    sparsity: Sparsity = field(default_factory=Sparsity)  # of lexical representations
    exchange: Exchange = "auto"  # how one side reaches all devices; auto: by its size
    block: int | None = None  # rows and columns scored at a time; None: by the size of a score


@dataclass(frozen=True)
class ColumnMask:
    """The contrastive mask (VDR, section 3.3): inactive columns are shared out among the batch."""

    # the terms that have it; the VDR paper's: "gated", its authors' code: "bag"
    apply: Literal["none", "gated", "bag", "both"] = "none"
    source: Literal["gate", "bag"] = "gate"  # what makes a query's column active
    weight: float = 1.0  # of a column that a bag of words is given
    normalise: bool = False  # a row's share to norm 1, before the weight


@dataclass(frozen=True)
class Vdr:
    """The loss of VDR over lexical representations (Eq. 5): gated queries, dense documents."""

    type: Literal["vdr"] = "vdr"
    # k, columns that the gate of training leaves besides a text's own words; None: all
    top: int | None = 768
    symmetric: bool = False  # four terms, documents gated, too, as in the authors' later model
    top_document: int | None = None  # k of the documents of four terms; None: as `top`
    bag: bool = True  # the nonparametric entry: queries as bags of words
    bag_norm: bool = False  # these to norm 1; else binary
    mask: ColumnMask = field(default_factory=ColumnMask)
    directions: Literal["both", "query"] = "both"
    # the paper sums directions and terms, its authors' code takes means: a quarter of it
    reduction: Literal["sum", "mean"] = "sum"
    divide_by: Literal["weights", "rows"] = "weights"
    false_negatives: FalseNegatives = "keep"
    renormalise: bool = False
    exchange: Exchange = "auto"
    block: int | None = None


def top_of_documents(config: Vdr) -> int | None:
    """k of the documents' gate; None: it leaves all columns."""
    return config.top if config.top_document is None else config.top_document


@dataclass(frozen=True)
class Sigmoid:
    """Sigmoid loss of every cell of the global batch (SigLIP); weighted, GCL's Eq. 6."""

    type: Literal["sigmoid"] = "sigmoid"
    bias: float = -10.0  # start of the learned bias, `scalars/bias`; minus the b of GCL's Eq. 6
    weight_inside: bool = False  # a weight multiplies the logit of its pair (Eq. 6), not the loss
    false_negatives: FalseNegatives = "keep"
    terms: Literal["all", "average", "pairs"] = "all"
    renormalise: bool = False
    exchange: Exchange = "auto"
    block: int | None = None
