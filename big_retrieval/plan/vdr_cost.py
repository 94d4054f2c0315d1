"""What VDR's loss holds, computes and sends, by formulas; see `plan/loss_cost.py`."""

import dataclasses
import math
from collections.abc import Sequence

from big_retrieval.config import Vdr
from big_retrieval.config.vdr import top_k_of_documents
from big_retrieval.losses.fields import Term, make_sides
from big_retrieval.plan.loss_cost import LossCost, Transfer


@dataclasses.dataclass(frozen=True)
class VdrCost(LossCost):
    """The formulas of VDR's loss."""

    loss: Vdr

    def terms(self) -> Sequence[Term]:
        """See `LossCost`."""
        count = (1 + self.loss.bag) * (1 + self.loss.symmetric)
        return make_sides(self.config, self.loss).terms("average") * count

    def transfers(self) -> list[Transfer]:
        """The terms of `losses/vdr.py`, in its order.

        Sparse queries are values and columns, with a mask those that it gives to a row, too; bags
        have no gradient.
        """
        dense = 4 * math.prod(self.shape())  # of a device's columns of a row
        bow, width = self.bow("query"), self.whole_shape()[1]
        gated, more = _kept(self.loss.top_k, width) + bow, -(-width // self.config.batch_size)

        def sparse(name: str, entries: int, has_gradient: int) -> Transfer:
            """Sparse where that is smaller."""
            if 2 * entries >= width:
                return Transfer(name, dense, 0, has_gradient * dense)
            return Transfer(name, 4 * entries, 4 * entries, has_gradient * 4 * entries)

        out = [sparse("gated", gated + more * self._masked("gated"), 1)]
        if self.loss.bag:
            out.append(sparse("bag", bow + more * self._masked("bag"), 0))
        if self.loss.symmetric:
            out.append(Transfer("query", dense, 0, dense))
            if self.loss.bag:
                name = "masked" if self._masked("bag") else "query"
                out.append(Transfer(name, dense, 0, dense))
        return out

    def _masked(self, term: str) -> bool:
        """Whether a term has the contrastive mask."""
        return self.loss.mask.apply in (term, "both")

    def bow(self, side: str) -> int:
        """Words of a row's query or document at most."""
        fields = (self.config.fields[name] for name in self.config.side(side))
        return sum(field.length for field in fields if field.modality == "text")

    def dense_copies(self) -> int:
        """What a mask leaves of the positives, and the documents of the four-term variant; two
        terms without a mask make none."""
        first = self._masked("gated") + (self.loss.bag and self._masked("bag"))
        return first + self.loss.symmetric * (1 + self.loss.bag * (1 + self._masked("bag")))

    def columns_wire(self, rows_over: int) -> dict[str, float]:
        """See `LossCost`.

        A gate sends the k largest of each device's part, values and columns, (T - 1) k of both;
        what it takes is summed, and so are the gradients.
        """
        loss, tensor, batch = self.loss, self.tensor, self.config.batch_size
        share, mine, width = (tensor - 1) / tensor, batch // rows_over, self.shape()[1]
        out = super().columns_wire(rows_over)
        tops = loss.top_k, top_k_of_documents(loss)
        kept = sum(_kept(top_k, width) for top_k in tops)
        out["all-gather"] = (tensor - 1) * 8 * mine * kept  # of both sides, to be logged, too
        query, document = (_kept(top_k, tensor * width) for top_k in tops)
        taken = query + self.bow("query")
        more = -(-tensor * width // batch)  # what a mask shares out, looked up and taken
        taken += more * self._masked("gated")
        if loss.symmetric:
            negatives = self.config.negatives.count
            taken += (1 + negatives) * (document + self.bow("document"))
        out["all-reduce"] += 2 * share * mine * 2 * 4 * taken
        out["all-reduce"] += 2 * share * mine * 4 * more * (loss.mask.apply != "none")
        return out

    def activity(self) -> int:
        """See `LossCost`; one for each mask, too."""
        mask = self.loss.mask.apply
        both = mask == "both" or (mask == "bag" and self.loss.symmetric)
        return self.whole_shape()[1] * (2 + (mask != "none") + both)


def _kept(top_k: int | None, width: int) -> int:
    """Columns of `width` that a gate leaves."""
    return width if top_k is None else min(top_k, width)
