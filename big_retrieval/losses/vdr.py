"""The loss of VDR, "Retrieval-based Disentangled Representation Learning with Natural Language
Supervision", sections 3.2 and 3.3.

Representations are dense V(x) [B, V]; E(x) is the gated one (`gate.py`), bow(x) the bag of words.
SCE is the symmetric cross-entropy of Eq. 5 over the global batch. With hard negatives, these are in
the denominators of the queries.

  two terms (the paper)    SCE(E_q, V_p) + SCE(bow_q, V_p)
  four terms (`symmetric`, the authors' later model)    the same and SCE(V_q, E_p) + SCE(V_q, bow_p)

The second term is the nonparametric entry. Queries of the first two are sparse, and are sent so
where that is smaller.

The contrastive mask (section 3.3) distributes the terms that no row of the batch has active among
its rows: row b of B gets every inactive term v with v mod B = b. In the query of row b these
terms become active (the gate is G OR mask), in its document inactive, so that every term has at
least one positive in each batch. `shared_out` logs how many terms are distributed: with hundreds
of active terms a query and thousands of rows almost none are left.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp

from big_retrieval.config import AtLeast0, Config, NotNegative, register
from big_retrieval.config.heads import LOCAL_TOP_K
from big_retrieval.losses import activity
from big_retrieval.losses.context import Context, Result
from big_retrieval.losses.contrastive import contrastive_loss
from big_retrieval.losses.lexical import (
    LexicalBatch,
    contrastive_mask,
    contrastive_mask_terms,
)
from big_retrieval.losses.pairs import PairLoss
from big_retrieval.losses.pairwise import PairBatch
from big_retrieval.similarity import Product, unit
from big_retrieval.sparse import gate
from big_retrieval.sparse.gate import SparseRows


@dataclass(frozen=True)
class TermMask:
    """The contrastive mask (VDR, section 3.3): inactive terms are shared out among the batch."""

    # the terms that have it; the VDR paper's: "gated", its authors' code: "bag"
    apply: Literal["none", "gated", "bag", "both"] = "none"
    source: Literal["gate", "bag"] = "gate"  # what makes a query's term active
    weight: NotNegative = 1.0  # of a term that a bag of words is given
    normalise: bool = False  # a row's share to norm 1, before the weight


@register("loss")
@dataclass(frozen=True)
class Vdr(PairLoss):
    """The loss of VDR over lexical representations (Eq. 5): gated queries, dense documents."""

    type: Literal["vdr"] = "vdr"
    # k, terms that the gate of training leaves besides a text's own words; None: all
    top_k: AtLeast0 | None = 768
    symmetric: bool = False  # four terms, documents gated, too, as in the authors' later model
    top_k_document: AtLeast0 | None = None  # k of the documents of four terms; None: as `top_k`
    bag: bool = True  # the nonparametric entry: queries as bags of words
    bag_norm: bool = False  # these to norm 1; else binary
    mask: TermMask = field(default_factory=TermMask)
    directions: Literal["both", "query"] = "both"
    # the paper sums directions and terms, its authors' code takes means: a quarter of it
    reduction: Literal["sum", "mean"] = "sum"
    divide_by: Literal["weights", "rows"] = "weights"

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from super().check(config, path)
        if not self.lexical(config):
            mine = self.compares(config)
            heads = {name: field.head for name, field in config.fields.items() if name in mine}
            name = next(n for n, head in heads.items() if not head.lexical)
            yield (
                f"{path}.type 'vdr' compares lexical representations: set config.fields."
                f"{name}.head.type to 'lexical', or take another loss."
            )
        mask = self.mask
        if self.false_negatives == "positives" and mask.apply != "none":
            yield f"{path}.mask.apply goes with false_negatives 'keep' or 'mask' only."
        if mask.apply in ("bag", "both") and not self.bag:
            yield f"{path}.mask.apply is {mask.apply!r}, but {path}.bag is False: set it to True."
        yield from self._words(config, path)

    def _words(self, config: Config, path: str) -> Iterator[str]:
        """Checks that sides whose words the loss takes have a text field."""
        masked = self.mask.apply != "none" and self.mask.source == "bag"
        gates = self.top_k, self.top_k_of_documents
        needs = {  # what takes words -> what to do about it
            "query": {
                f"{path}.bag to False": self.bag,
                f"{path}.mask.source to 'gate'": masked,
                f"{path}.top_k above 0": gates[0] == 0,
            },
            "document": {
                f"{path}.symmetric to False": self.symmetric and (self.bag or gates[1] == 0),
            },
        }
        for side in ("query", "document"):
            fields = (config.fields[name] for name in self.fields(config, side))
            texts = [field for field in fields if field.modality == "text"]
            wanted = [remedy for remedy, needed in needs[side].items() if needed]
            if wanted and not texts:
                yield (
                    f"{path} takes the words of the {side} side, which has no text field: turn "
                    f"the sides around (config.fields.<field>.side), or set {' and '.join(wanted)}."
                )

    def __call__(self, context: Context) -> Result:
        pairs, words = self.pair_batch(context).flat(), self.words(context)
        loss, metrics = vdr_loss(self, pairs, words)
        metrics |= activity.of_sides(context, pairs, words, self._gates)
        return loss, {**metrics, "logit_scale": self.multiplier(context)}

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        return activity.warnings(metrics, self._gates)

    @property
    def _gates(self) -> dict[str, int]:
        """k of both sides; documents that are compared dense are only watched."""
        tops = {"query": self.top_k, "document": self.top_k_of_documents}
        return {side: activity.ALL if top_k is None else top_k for side, top_k in tops.items()}

    @property
    def top_k_of_documents(self) -> int | None:
        """k of the documents' gate; None if it leaves all terms."""
        return self.top_k if self.top_k_document is None else self.top_k_document

    def runlocal(self) -> "Vdr":
        """Returns gates for the vocabulary of generated scenes."""
        tops = {"top_k": self.top_k, "top_k_document": self.top_k_document}
        smaller = {key: min(top_k, LOCAL_TOP_K) for key, top_k in tops.items() if top_k is not None}
        return dataclasses.replace(self, **smaller)


def vdr_loss(config: Vdr, pairs: PairBatch, words: Mapping[str, jax.Array]) -> Result:
    """Returns the loss [] of a global batch, and metrics [].

    The metrics are `accuracy` of the first term; `accuracy_bag` of the second, which is the
    accuracy of search by bag-of-words queries; `loss_<term>`, the share of each term in the loss;
    and with a mask `shared_out`, the number of terms that the mask gives to queries.

    Args:
      pairs: dense representations [B, V], of hard negatives [B, K, V]; without a topology.
      words: term ids int32 [B, L] of "query", "document" and [B, K, L] of "negatives", if any.
    """
    negatives = pairs.negatives
    sides = {"query": pairs.query, "document": pairs.document}
    if negatives is not None:
        sides["negatives"] = negatives.embeddings
    terms = LossTerms(config, **{k: LexicalBatch(x, words.get(k)) for k, x in sides.items()})
    found = {}
    for name, (query, document, others) in terms.operands().items():
        width = document.shape[1]
        if isinstance(query, SparseRows) and 2 * query.terms.shape[1] >= width:
            query = gate.to_dense(query, width)  # no smaller as sparse rows
        term = dataclasses.replace(
            pairs,
            query=query,
            document=document,
            topology=Product(),
            negatives=None if negatives is None else negatives.replace(embeddings=others),  # type: ignore
        )
        found[name] = contrastive_loss(term, config.divide_by, config.directions)
    share = 1 / len(found)
    if config.reduction == "sum":
        share = 2 if config.directions == "both" else 1
    values = {name: share * value for name, (value, _) in found.items()}
    metrics = {"accuracy": found["gated"][1]["accuracy"]}
    if "bag" in found:
        metrics["accuracy_bag"] = found["bag"][1]["accuracy"]
    metrics |= {f"loss_{name}": value for name, value in values.items()}
    if config.mask.apply != "none":
        metrics["shared_out"] = jnp.sum(~terms.active, dtype=jnp.float32)
    return functools.reduce(jnp.add, values.values()), metrics


Operands = tuple[jax.Array | SparseRows, jax.Array, jax.Array | None]


@dataclasses.dataclass(frozen=True)
class LossTerms:
    """What the terms of a batch compare; the attributes are arguments of `vdr_loss`."""

    config: Vdr
    query: LexicalBatch
    document: LexicalBatch
    negatives: LexicalBatch | None = None

    def operands(self) -> dict[str, Operands]:
        """Term -> queries [B, V] or sparse, documents [B, V], hard negatives [B, K, V] or None."""
        c = self.config
        out: dict[str, Operands] = {"gated": self._gated()}
        if c.bag:
            out["bag"] = self._bag()
        if c.symmetric:
            out["gated_document"] = (self.query.embeddings, *self._gated_documents())
            if c.bag:
                out["bag_document"] = self._bag_documents()
        return out

    @property
    def _others(self) -> jax.Array | None:
        """V of the hard negatives, [B, K, V]."""
        return None if self.negatives is None else self.negatives.embeddings

    def _masked(self, where: str) -> bool:
        return self.config.mask.apply in (where, "both")

    @functools.cached_property
    def active(self) -> jax.Array:
        """bool [V]: the terms that the mask leaves where they are."""
        return self.query.active(self.config.mask.source, self.config.top_k)

    def _gated(self) -> Operands:
        """SCE(E_q, V_p): the parametric term."""
        top_k, rows = self.config.top_k, len(self.query.embeddings)
        if not self._masked("gated"):
            return self.query.gated(top_k), self.document.embeddings, self._others
        query = self.query.gated(top_k, contrastive_mask_terms(self.active, rows))
        return query, self._without(contrastive_mask(self.active, rows)), self._others

    def _bag(self) -> Operands:
        """SCE(bow_q, V_p): the nonparametric entry."""
        query, rows = self.query.bag(self.config.bag_norm), len(self.query.embeddings)
        if not self._masked("bag"):
            return query, self.document.embeddings, self._others
        more = contrastive_mask_terms(self.active, rows)  # none is a word of the batch
        values = self._weighted(more >= 0)
        together = [(query.values, values), (query.terms, more)]
        query = SparseRows(*(jnp.concatenate(each, axis=1) for each in together))
        return query, self._without(contrastive_mask(self.active, rows)), self._others

    def _without(self, masked: jax.Array) -> jax.Array:
        """V of the positives without the terms that the mask [B, V] gives to their queries."""
        return jnp.where(masked, 0, self.document.embeddings)

    def _weighted(self, masked: jax.Array) -> jax.Array:
        """The values that a mask, bool [B, K], adds to bags of words."""
        mask = masked.astype(jnp.float32)
        return self.config.mask.weight * (unit(mask, -1) if self.config.mask.normalise else mask)

    def _gated_documents(self) -> tuple[jax.Array, jax.Array | None]:
        """E_p of the positives and of the hard negatives, dense."""
        width, top_k = self.document.width, self.config.top_k_of_documents
        own = gate.to_dense(self.document.gated(top_k), width)
        if self.negatives is None:
            return own, None
        flat = self.negatives.flat()
        others = gate.to_dense(flat.gated(top_k), width)
        return own, others.reshape(self.negatives.embeddings.shape)

    def _bag_documents(self) -> Operands:
        """SCE(V_q, bow_p) with the mask on the documents' side, if any."""
        width, norm = self.document.width, self.config.bag_norm
        rows = len(self.document.embeddings)
        own, others = gate.to_dense(self.document.bag(norm), width), None
        flat = None if self.negatives is None else self.negatives.flat()
        if flat is not None:
            others = gate.to_dense(flat.bag(norm), width)  # [B K, V]
        query = self.query.embeddings
        if self._masked("bag"):
            active = self.document.active("bag", 0)
            total = rows + (0 if flat is None else len(flat.embeddings))
            if flat is not None:
                active = active | flat.active("bag", 0)
            masked = contrastive_mask(active, rows, of=total)
            query, own = jnp.where(masked, 0, query), own + self._weighted(masked)
            if others is not None:
                others = others + self._weighted(contrastive_mask(active, len(others), rows, total))
        if others is not None and self.negatives is not None:
            others = others.reshape(self.negatives.embeddings.shape)
        return query, own, others
