"""The loss of VDR.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision", sections
3.2 and 3.3. V(x) [B, 1, V] is the dense representation, E(x) the gated one (`gate.py`), bow(x) the
bag of words. SCE is the symmetric cross-entropy of Eq. 5 over the global batch. Hard negatives are
in the denominators of the queries.

  two terms (the paper)    SCE(E_q, V_p) + SCE(bow_q, V_p)
  four terms (`symmetric`, the authors' later model)    the same and SCE(V_q, E_p) + SCE(V_q, bow_p)

The second term is the paper's "nonparametric entry". The queries of the first two terms are sparse.
Devices exchange them in sparse form if that is smaller.

The contrastive mask (section 3.3) distributes the terms that are active in no query of the batch
among its rows: row b of B gets every such term v with v mod B = b. These terms become active in the
query of row b (the gate is G OR mask) and inactive in its document. Every term then has at least
one positive in each batch. In SCE(V_q, bow_p), the sides change places. `shared_out` logs the
number of these terms: almost 0 with hundreds of active terms per query and thousands of rows.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp

from big_retrieval.config import AtLeast0, Config, NotNegative, is_lexical, register
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
from big_retrieval.similarity import Inner, unit
from big_retrieval.sparse.gate import SparseRows


@dataclass(frozen=True)
class TermMask:
    """The contrastive mask (VDR, section 3.3): distributes inactive terms among the rows."""

    # loss terms with the mask; "gated" in the VDR paper, "bag" in its authors' code
    apply: Literal["none", "gated", "bag", "both"] = "none"
    source: Literal["gate", "bag"] = "gate"  # a query's term is active in the gate or the bag
    weight: NotNegative = 1.0  # of a term that is added to a bag of words
    normalise: bool = False  # the added terms of a row to norm 1, before the weight


@register("loss")
@dataclass(frozen=True)
class Vdr(PairLoss):
    """The loss of VDR over lexical representations (Eq. 5): gated queries, dense documents."""

    type: Literal["vdr"] = "vdr"
    # k: number of largest terms that the training gate keeps, with the text's words; None for all
    top_k: AtLeast0 | None = 768
    symmetric: bool = False  # four terms, with gated documents, as in the authors' later model
    top_k_document: AtLeast0 | None = None  # k of the documents of four terms; None for `top_k`
    bag: bool = True  # the nonparametric entry: queries as bags of words
    bag_norm: bool = False  # bags of words with norm 1 instead of binary ones
    mask: TermMask = field(default_factory=TermMask)
    directions: Literal["both", "query"] = "both"
    # the paper sums directions and terms; its authors' code takes means, a quarter of the sum
    reduction: Literal["sum", "mean"] = "sum"
    divide_by: Literal["weights", "rows"] = "weights"

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from super().check(config, path)
        dense = [name for name in self.compares(config) if not is_lexical(config, name)]
        if dense:
            yield (
                f"{path}.type 'vdr' compares lexical representations. Set config.fields."
                f"{dense[0]}.head.type to 'lexical', or use another loss."
            )
        mask = self.mask
        if self.false_negatives == "positives" and mask.apply != "none":
            yield f"{path}.mask.apply needs false_negatives 'keep' or 'mask'."
        if mask.apply in ("bag", "both") and not self.bag:
            yield f"{path}.mask.apply {mask.apply!r} needs {path}.bag=True."
        yield from self._words(config, path)

    def _words(self, config: Config, path: str) -> Iterator[str]:
        """Checks that sides whose words the loss reads have a text field."""
        masked = self.mask.apply != "none" and self.mask.source == "bag"
        gates = self.top_k, self.top_k_of_documents
        needs = {  # side -> change of the config -> True if a side without a text needs it
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
            fixes = [fix for fix, needed in needs[side].items() if needed]
            if fixes and not texts:
                yield (
                    f"{path} reads the words of the {side} side, which has no text field. Exchange "
                    f"the sides (config.fields.<field>.side), or set {' and '.join(fixes)}."
                )

    def __call__(self, context: Context) -> Result:
        pairs, words = self.pair_batch(context), self.words(context)
        loss, metrics = vdr_loss(self, pairs, words)
        metrics |= activity.of_sides(context, pairs, words, self._gates)
        return loss, {**metrics, "logit_scale": self.multiplier(context)}

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        return activity.warnings(metrics, self._gates)

    @property
    def _gates(self) -> dict[str, int]:
        """k of both sides, for metrics and warnings; also for documents that stay dense."""
        tops = {"query": self.top_k, "document": self.top_k_of_documents}
        return {side: activity.ALL if top_k is None else top_k for side, top_k in tops.items()}

    @property
    def top_k_of_documents(self) -> int | None:
        """k of the documents' gate; None for all terms."""
        return self.top_k if self.top_k_document is None else self.top_k_document

    def runlocal(self) -> "Vdr":
        """Returns gates for the vocabulary of generated scenes."""
        tops = {"top_k": self.top_k, "top_k_document": self.top_k_document}
        smaller = {key: min(top_k, LOCAL_TOP_K) for key, top_k in tops.items() if top_k is not None}
        return dataclasses.replace(self, **smaller)


def vdr_loss(config: Vdr, pairs: PairBatch, words: Mapping[str, jax.Array]) -> Result:
    """Returns the loss [] of a global batch, and metrics [].

    Metrics:
      `accuracy`: of the first term.
      `accuracy_bag`: of the second term, so of search with bag-of-words queries.
      `loss_<term>`: share of a term in the loss.
      `shared_out` (with a mask): number of terms that the mask gives to queries.

    Args:
      pairs: dense representations [B, 1, V], and [B, K, 1, V] of hard negatives.
      words: term ids int32 [B, L] of "query", "document" and [B, K, L] of "negatives", if any.
    """
    negatives = pairs.negatives
    sides = {"query": pairs.query, "document": pairs.document}
    if negatives is not None:
        sides["negatives"] = negatives.embeddings
    terms = LossTerms(config, **{k: LexicalBatch(x, words.get(k)) for k, x in sides.items()})
    results = {}
    for name, (query, document, extra) in terms.operands().items():
        if isinstance(query, SparseRows) and 2 * query.terms.shape[1] >= terms.query.width:
            query = terms.query.dense(query)  # sparse rows are not smaller
        if negatives is not None:
            negatives = dataclasses.replace(negatives, embeddings=extra)
        term = dataclasses.replace(
            pairs, query=query, document=document, topology=Inner(), negatives=negatives
        )
        results[name] = contrastive_loss(term, config.divide_by, config.directions)
    share = 1 / len(results)
    if config.reduction == "sum":
        share = 2 if config.directions == "both" else 1
    values = {name: share * value for name, (value, _) in results.items()}
    metrics = {"accuracy": results["gated"][1]["accuracy"]}
    if "bag" in results:
        metrics["accuracy_bag"] = results["bag"][1]["accuracy"]
    metrics |= {f"loss_{name}": value for name, value in values.items()}
    if config.mask.apply != "none":
        metrics["shared_out"] = jnp.sum(~terms.active, dtype=jnp.float32)
    return functools.reduce(jnp.add, values.values()), metrics


Operands = tuple[jax.Array | SparseRows, jax.Array, jax.Array | None]


@dataclasses.dataclass(frozen=True)
class LossTerms:
    """Operands of the loss terms of a batch."""

    config: Vdr
    query: LexicalBatch
    document: LexicalBatch
    negatives: LexicalBatch | None = None

    def operands(self) -> dict[str, Operands]:
        """Returns term -> queries [B, 1, V] or sparse, documents, hard negatives [B, K, 1, V]."""
        config = self.config
        out: dict[str, Operands] = {"gated": self._gated()}
        if config.bag:
            out["bag"] = self._bag()
        if config.symmetric:
            out["gated_document"] = (self.query.embeddings, *self._gated_documents())
            if config.bag:
                out["bag_document"] = self._bag_documents()
        return out

    @property
    def _others(self) -> jax.Array | None:
        """V of the hard negatives, [B, K, 1, V]."""
        return None if self.negatives is None else self.negatives.embeddings

    def _masked(self, where: str) -> bool:
        return self.config.mask.apply in (where, "both")

    @functools.cached_property
    def active(self) -> jax.Array:
        """Terms that the mask does not change, bool [V]."""
        return self.query.active(self.config.mask.source, self.config.top_k)

    def _gated(self) -> Operands:
        """Returns the operands of SCE(E_q, V_p), the parametric term."""
        top_k, rows = self.config.top_k, len(self.query.embeddings)
        if not self._masked("gated"):
            return self.query.gated(top_k), self.document.embeddings, self._others
        query = self.query.gated(top_k, contrastive_mask_terms(self.active, rows))
        return query, self._without(contrastive_mask(self.active, rows)), self._others

    def _bag(self) -> Operands:
        """Returns the operands of SCE(bow_q, V_p), the nonparametric entry."""
        query, rows = self.query.bag(self.config.bag_norm), len(self.query.embeddings)
        if not self._masked("bag"):
            return query, self.document.embeddings, self._others
        more = contrastive_mask_terms(self.active, rows)  # contains no word of the query
        values = jnp.concatenate([query.values, self._weighted(more >= 0)], axis=1)
        query = SparseRows(values, jnp.concatenate([query.terms, more], axis=1))
        return query, self._without(contrastive_mask(self.active, rows)), self._others

    def _without(self, masked: jax.Array) -> jax.Array:
        """Returns V of the positives without the terms that the mask [B, 1, V] gives to queries."""
        return jnp.where(masked, 0, self.document.embeddings)

    def _weighted(self, masked: jax.Array) -> jax.Array:
        """Returns the values that a mask, bool [..., K], adds to bags of words."""
        mask = masked.astype(jnp.float32)
        return self.config.mask.weight * (unit(mask, -1) if self.config.mask.normalise else mask)

    def _gated_documents(self) -> tuple[jax.Array, jax.Array | None]:
        """Returns E_p of the positives and of the hard negatives, dense."""
        top_k = self.config.top_k_of_documents
        positives = self.document.dense(self.document.gated(top_k))
        if self.negatives is None:
            return positives, None
        negatives = self.document.dense(self.negatives.flat().gated(top_k))  # [B K, 1, V]
        return positives, negatives.reshape(self.negatives.embeddings.shape)

    def _bag_documents(self) -> Operands:
        """Returns the operands of SCE(V_q, bow_p); a mask adds terms to documents, not queries."""
        norm, rows = self.config.bag_norm, len(self.document.embeddings)
        positives, negatives = self.document.dense(self.document.bag(norm)), None
        flat = None if self.negatives is None else self.negatives.flat()
        if flat is not None:
            negatives = self.document.dense(flat.bag(norm))  # [B K, 1, V]
        query = self.query.embeddings
        if self._masked("bag"):
            active = self.document.active("bag", 0)
            total = rows + (0 if flat is None else len(flat.embeddings))
            if flat is not None:
                active = active | flat.active("bag", 0)
            masked = contrastive_mask(active, rows, total=total)
            query, positives = jnp.where(masked, 0, query), positives + self._weighted(masked)
            if negatives is not None:
                negatives = negatives + self._weighted(
                    contrastive_mask(active, len(negatives), rows, total)
                )
        if negatives is not None and self.negatives is not None:
            negatives = negatives.reshape(self.negatives.embeddings.shape)
        return query, positives, negatives
