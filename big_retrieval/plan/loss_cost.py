"""Memory and traffic of losses, by formulas."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from big_retrieval import similarity
from big_retrieval.config import Config, PairLoss, Vdr, is_lexical
from big_retrieval.config.checks.fields import embedding_shape
from big_retrieval.config.loss import Terms
from big_retrieval.config.topologies import TopologyKey
from big_retrieval.losses import blockwise, core
from big_retrieval.losses.fields import Term, make_sides
from big_retrieval.plan.loss_trace import traced_cost


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Bytes of a query that every device receives, for one term of a loss.

    Attributes:
      name: names the queries; terms with the same queries gather them once.
      embeddings: bytes of the embeddings; by these "auto" chooses how queries are sent.
      terms: bytes of the term ids of sparse embeddings; 0 for dense ones.
      gradient: bytes of the gradient that comes back; 0 without a gradient.
    """

    name: str
    embeddings: int
    terms: int
    gradient: int

    @property
    def forward(self) -> int:
        """Bytes of a row that another device receives in the forward pass."""
        return self.embeddings + self.terms


@dataclasses.dataclass(frozen=True)
class LossCost:
    """The formulas of a loss over all pairs of a batch.

    Attributes:
      config: of the run, checked.
      loss: one of the config's losses.
      tensor: devices of the mesh's axis `tensor`, over which the terms of lexical fields lie.
    """

    config: Config
    loss: PairLoss
    tensor: int = 1

    @property
    def topology(self) -> TopologyKey:
        """The topology that the loss scores with."""
        own = self.config.topology_of(*self.loss.compares(self.config))
        return self.loss.other_topology(self.config) or own

    @property
    def lexical(self) -> bool:
        """Whether the loss compares lexical representations."""
        return self.loss.lexical(self.config)

    def terms(self) -> Sequence[Term]:
        """The comparisons that the loss adds up."""
        which: Terms = getattr(self.loss, "terms", "average")
        return make_sides(self.config, self.loss).terms(which)

    def whole_shape(self) -> tuple[int, int]:
        """[M, N] of the compared embeddings."""
        return embedding_shape(self.config, self.loss.fields(self.config, "query")[0])

    def shape(self) -> tuple[int, int]:
        """[M, N] on one device."""
        m, dim = self.whole_shape()
        return m, -(-dim // (self.tensor if self.lexical else 1))

    def transfers(self) -> list[Transfer]:
        """The transfer of each term."""
        size = 4 * math.prod(self.shape())
        return [Transfer("+".join(term.query), size, 0, size) for term in self.terms()]

    def split(self) -> tuple[list[Transfer], list[Transfer]]:
        """The transfers by a ring and those by gathering, as `losses/core.py` chooses."""
        found: dict[str, list[Transfer]] = {"ring": [], "gather": []}
        for each in self.transfers():
            size = self.config.batch_size * each.embeddings
            found[core.chosen(self.loss.exchange, size)].append(each)
        return found["ring"], found["gather"]

    def dense_copies(self) -> int:
        """How many arrays of the size of a device's embeddings the terms make."""
        return 0

    def memory(self, rows_over: int, platform: str) -> int:
        """What the loss holds besides the representations, bytes on one device.

        A sweep holds 3 arrays of operands and 3 of scores for a tile, and 5 numbers for a row. The
        sparse queries of a tile are made dense, and so is their gradient. Arrays that terms make
        of the embeddings stay until the backward pass. Gathering adds all queries, and a partial
        gradient of all queries; a ring adds the rotating queries and gradients. Terms are computed
        one after the other, but their gathered queries and their statistics stay until the
        backward pass.

        Args:
          rows_over: devices that rows are sharded over.
          platform: "cpu", "gpu" or "tpu".
        """
        rotating, gathered = self.split()
        batch, shape = self.config.batch_size, self.shape()
        topology = similarity.topology(self.topology)
        embeddings = (batch, *shape)
        side = self.loss.block or blockwise.block_size(topology, embeddings, platform)
        local = -(-batch // rows_over)
        columns = min(side, batch if gathered else local)
        scores = min(side, local) * columns
        blocks = 4 * scores * (3 * topology.numbers_per_score(embeddings) + 3)
        sparse = [each for each in (*rotating, *gathered) if each.terms]
        dense = max((1 + (each.gradient > 0) for each in sparse), default=0)
        blocks += 4 * math.prod(shape) * (dense * columns + self.dense_copies() * local)
        statistics = [5 * 4 * batch * len(each) for each in (rotating, gathered)]
        if rows_over == 1:
            return blocks + sum(statistics)
        queries = sum({each.name: each.forward for each in gathered}.values())
        partial = max((each.gradient for each in gathered), default=0)
        moving = max((each.forward + each.gradient for each in rotating), default=0)
        whole = batch * (queries + partial) + statistics[1]
        return blocks + whole + (batch * moving + statistics[0]) // rows_over


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

        A sparse query has values and terms, with a mask also those that the mask gives to its row.
        Bags of words have no gradient.
        """
        dense = 4 * math.prod(self.shape())  # of a device's terms of a row
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
        """The most words that a row's query or document can have."""
        texts: Any = [self.config.fields[name] for name in self.config.side(side, "text")]
        return sum(field.length for field in texts)

    def dense_copies(self) -> int:
        """Copies of masked positives, and of the documents of the four-term variant."""
        first = self._masked("gated") + (self.loss.bag and self._masked("bag"))
        return first + self.loss.symmetric * (1 + self.loss.bag * (1 + self._masked("bag")))


def _kept(top_k: int | None, width: int) -> int:
    """How many of `width` terms a gate leaves."""
    return width if top_k is None else min(top_k, width)


def costs(config: Config, tensor: int = 1) -> list[LossCost]:
    """The formulas of all losses of a config that have formulas."""
    found = (loss.cost(config, tensor) for loss in config.losses.values())
    return [cost for cost in found if cost is not None]


def representations(config: Config, rows_over: int, tensor: int = 1) -> int:
    """Embeddings of all fields, averages of fields, and their gradients, float32, on one device."""
    rows = -(-config.batch_size // rows_over)
    sizes = [math.prod(local_shape(config, name, tensor)) for name in config.encoded]
    terms = [term for cost in costs(config, tensor) for term in cost.terms()]
    sides = {side for term in terms for side in (term.query, term.document)}
    averages = sum(len(side) > 1 for side in sides)
    return 2 * 4 * rows * (sum(sizes) + averages * sizes[0])


def local_shape(config: Config, name: str, tensor: int = 1) -> tuple[int, int]:
    """[M, N] of a field's embeddings on one device; the tensor axis splits lexical ones."""
    m, dim = embedding_shape(config, name)
    return m, -(-dim // (tensor if is_lexical(config, name) else 1))


def loss(config: Config, rows_over: int, platform: str, tensor: int = 1) -> int:
    """Bytes on one device: `LossCost.memory`, and the traced memory of losses without formulas."""
    known = sum(cost.memory(rows_over, platform) for cost in costs(config, tensor))
    others = [name for name, each in config.losses.items() if each.cost(config, 1) is None]
    size = config.tokenizer.vocab_size
    return known + sum(traced_cost(config, name, size).memory(rows_over) for name in others)


def exchange_mode(config: Config, tensor: int = 1) -> str:
    """ "gather", or "ring" where the queries of a term of some loss go around one."""
    return "ring" if any(cost.split()[0] for cost in costs(config, tensor)) else "gather"
