"""What losses hold, compute and send, by formulas; of several fields, all terms."""

import dataclasses
import math
from collections.abc import Sequence

from big_retrieval import similarity
from big_retrieval.config import Config, PairLoss, is_lexical
from big_retrieval.config.checks.fields import embedding_shape
from big_retrieval.config.loss import Terms
from big_retrieval.losses import blockwise, core
from big_retrieval.losses.fields import Term, make_sides
from big_retrieval.plan.loss_trace import TracedCost, traced_cost


@dataclasses.dataclass(frozen=True)
class Transfer:
    """What of a query goes to the documents of all devices for one term, bytes a row.

    Attributes:
      name: which queries; terms with the same ones gather them once.
      embeddings: of the embeddings, by which "auto" chooses how they are sent.
      columns: of the columns of sparse embeddings; 0 of others.
      gradient: that comes back; 0 where there is none.
    """

    name: str
    embeddings: int
    columns: int
    gradient: int

    @property
    def forward(self) -> int:
        """Bytes of a row that another device receives in the forward pass."""
        return self.embeddings + self.columns


@dataclasses.dataclass(frozen=True)
class LossCost:
    """The formulas of a loss over all pairs of a batch; `plan/vdr_cost.py` has VDR's.

    Attributes:
      config: of the run, checked.
      loss: one of its losses.
      tensor: devices along the mesh's axis of that name, over which columns of lexical fields lie.
    """

    config: Config
    loss: PairLoss
    tensor: int = 1

    @property
    def topology(self) -> str:
        """By which it scores."""
        own = self.config.topology_of(*self.loss.compares(self.config))
        return self.loss.topology or own

    @property
    def lexical(self) -> bool:
        """Whether it compares lexical representations."""
        return self.loss.lexical(self.config)

    def terms(self) -> Sequence[Term]:
        """The comparisons that the loss adds up."""
        which: Terms = getattr(self.loss, "terms", "average")
        return make_sides(self.config, self.loss).terms(which)

    def whole_shape(self, vocab_size: int = 0) -> tuple[int, int]:
        """[M, N] of what it compares."""
        return embedding_shape(self.config, self.loss.fields(self.config, "query")[0], vocab_size)

    def shape(self) -> tuple[int, int]:
        """[M, N] on one device."""
        m, dim = self.whole_shape()
        return m, -(-dim // (self.tensor if self.lexical else 1))

    def transfers(self) -> list[Transfer]:
        """What is sent for each term."""
        size = 4 * math.prod(self.shape())
        return [Transfer("+".join(term.query), size, 0, size) for term in self.terms()]

    def split(self) -> tuple[list[Transfer], list[Transfer]]:
        """What goes around a ring, and what is gathered, as `losses/core.py` chooses."""
        found: dict[str, list[Transfer]] = {"ring": [], "gather": []}
        for each in self.transfers():
            size = self.config.batch_size * each.embeddings
            found[core.chosen(self.loss.exchange, size)].append(each)
        return found["ring"], found["gather"]

    def dense_copies(self) -> int:
        """Arrays of one device's rows that the terms make of its embeddings."""
        return 0

    def memory(self, rows_over: int, platform: str) -> int:
        """What the loss holds besides the representations, bytes on one device.

        A sweep holds 3 arrays of what scores are made of and 3 of scores for a tile, and 5 numbers
        a row; a tile of sparse queries is made dense, as is its gradient. What terms make of the
        embeddings stays until the backward pass. Gathering: all queries too, and the partial
        gradients for all of them. Ring: the queries and the gradients that are under way. Terms are
        computed one after the other, but what is gathered of their queries, and their statistics,
        stay until the backward pass.

        Args:
          rows_over: devices that rows are sharded over.
          platform: "cpu", "gpu" or "tpu".
        """
        under_way, gathered = self.split()
        batch, shape = self.config.batch_size, self.shape()
        topology = similarity.topology(self.topology)
        embeddings = (batch, *shape)
        side = self.loss.block or blockwise.block_size(topology, embeddings, platform)
        local = -(-batch // rows_over)
        columns = min(side, batch if gathered else local)
        scores = min(side, local) * columns
        blocks = 4 * scores * (3 * topology.numbers_per_score(embeddings) + 3)
        sparse = [each for each in (*under_way, *gathered) if each.columns]
        dense = max((1 + (each.gradient > 0) for each in sparse), default=0)
        blocks += 4 * math.prod(shape) * (dense * columns + self.dense_copies() * local)
        statistics = [5 * 4 * batch * len(each) for each in (under_way, gathered)]
        if rows_over == 1:
            return blocks + sum(statistics)
        queries = sum({each.name: each.forward for each in gathered}.values())
        partial = max((each.gradient for each in gathered), default=0)
        moving = max((each.forward + each.gradient for each in under_way), default=0)
        whole = batch * (queries + partial) + statistics[1]
        return blocks + whole + (batch * moving + statistics[0]) // rows_over

    def flops(self, vocab_size: int) -> int:
        """Operations of the loss of one step over all devices.

        4 products of all queries with all documents and hard negatives a term (forward; again in
        the backward pass; the gradients of both sides). All topologies score by such products; the
        geodesic adds arcs, one per score and sub-sphere, in both sweeps and for the slope.
        """
        n, (m, dim) = self.config.batch_size, self.whole_shape(vocab_size)
        scores = n * n * (1 + self.config.negatives.count)
        one = 4 * 2 * scores * m * dim
        topology = similarity.topology(self.topology)
        one += 3 * scores * topology.extra_operations((m, dim))
        return one * len(self.terms())

    def wire(self, rows_over: int) -> dict[str, float]:
        """Bytes that one device receives for the loss in a step, by kind of collective.

        Of N rows of b bytes with gradients of g on R devices, gathering (R - 1) / R N b forward
        and (R - 1) / R N g back, ring N (2 b + g); the queries of several terms are gathered once,
        their gradients come back for each. Which columns a side has active is reduced over the
        devices. What columns on the tensor axis add is in `columns_wire`.
        """
        rows, share = self.config.batch_size, (rows_over - 1) / rows_over
        under_way, gathered = self.split()
        forward = sum({each.name: each.forward for each in gathered}.values())
        out = {
            "all-gather": share * rows * forward,
            "reduce-scatter": share * rows * sum(each.gradient for each in gathered),
            "collective-permute": float(rows * sum(2 * t.forward + t.gradient for t in under_way)),
            "all-reduce": 2 * share * self.activity() / self.tensor,
        }
        if rows_over == 1:
            out = {}
        if self.tensor > 1 and self.lexical:
            for kind, size in self.columns_wire(rows_over).items():
                out[kind] = out.get(kind, 0) + size
        return {kind: size for kind, size in out.items() if size}

    def columns_wire(self, rows_over: int) -> dict[str, float]:
        """What goes over the tensor axis, whose T devices have V / T columns of the same rows each.

        Each has a part of every score; they are summed forward and backward, 2 (T - 1) / T of 4
        bytes a score each time.
        """
        share, batch = (self.tensor - 1) / self.tensor, self.config.batch_size
        scores = batch // rows_over * batch * (1 + self.config.negatives.count) * len(self.terms())
        return {"all-reduce": 2 * share * 2 * 4 * scores}

    def activity(self) -> int:
        """Bytes of what is reduced over all rows of a lexical batch: one a column that some row has
        active, for each side; 4 a column for the regulariser of a side."""
        if not self.lexical:
            return 0
        sparsity = getattr(self.loss, "sparsity", None)
        sides = 0 if sparsity is None else (sparsity.query > 0) + (sparsity.document > 0)
        return self.whole_shape()[1] * (2 + 4 * sides) if sparsity is not None else 0


def costs(config: Config, tensor: int = 1) -> list[LossCost]:
    """The formulas of all losses of a config that have some."""
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
    """`LossCost.memory` of all losses, and the traced memory of others; bytes on one device."""
    known = sum(cost.memory(rows_over, platform) for cost in costs(config, tensor))
    return known + sum(cost.memory(rows_over) for cost in _traced(config, 0))


def exchange_mode(config: Config, tensor: int = 1) -> str:
    """ "gather", or "ring" where the queries of a term of some loss go around one."""
    return "ring" if any(cost.split()[0] for cost in costs(config, tensor)) else "gather"


def loss_flops(config: Config, vocab_size: int) -> int:
    """`LossCost.flops` of all losses, and the traced operations of others."""
    known = sum(cost.flops(vocab_size) for cost in costs(config))
    return known + sum(cost.operations for cost in _traced(config, vocab_size))


def _traced(config: Config, vocab_size: int) -> list[TracedCost]:
    """`traced_cost` of the losses without formulas."""
    names = [name for name, loss in config.losses.items() if loss.cost(config, 1) is None]
    return [traced_cost(config, name, vocab_size) for name in names]


def loss_wire(config: Config, rows_over: int, tensor: int = 1) -> dict[str, float]:
    """`LossCost.wire` of all losses."""
    out: dict[str, float] = {}
    for cost in costs(config, tensor):
        for kind, size in cost.wire(rows_over).items():
            out[kind] = out.get(kind, 0) + size
    return out
