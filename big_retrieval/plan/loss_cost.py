"""What a loss holds, computes and sends, by formulas; of several fields, all of its terms."""

import dataclasses
import math
from collections.abc import Sequence

from big_retrieval import similarity
from big_retrieval.checks.fields import point_shape
from big_retrieval.config import Config, Contrastive, Vdr, is_lexical
from big_retrieval.config.loss import top_of_documents
from big_retrieval.losses import blockwise, core
from big_retrieval.losses.fields import Term, make_sides

_ARC_OPERATIONS = 40  # of an arc cosine and its slope, about


def terms_of(config: Config) -> Sequence[Term]:
    """The comparisons that the loss adds up."""
    if isinstance(config.loss, Vdr):
        return make_sides(config).terms("average") * _vdr_terms(config.loss)
    return make_sides(config).terms(config.loss.terms)


def _vdr_terms(loss: Vdr) -> int:
    return (1 + loss.bag) * (1 + loss.symmetric)


@dataclasses.dataclass(frozen=True)
class Travel:
    """What of a query goes to the documents of all devices for one term, bytes a row.

    Attributes:
      name: which queries; terms with the same ones gather them once.
      points: of the points, by which "auto" chooses how they travel.
      columns: of the columns of compact points; 0 of others.
      gradient: that comes back; 0 where there is none.
    """

    name: str
    points: int
    columns: int
    gradient: int

    @property
    def there(self) -> int:
        """Bytes that go there."""
        return self.points + self.columns


def local_shape(config: Config, name: str, tensor: int = 1) -> tuple[int, int]:
    """[M, N] of a field's points on one device; columns of lexical ones lie on the tensor axis."""
    m, dim = point_shape(config, name)
    return m, -(-dim // (tensor if is_lexical(config) else 1))


def travels(config: Config, tensor: int = 1) -> list[Travel]:
    """What travels for each term of the loss, to a device of a mesh with so many along tensor."""
    size = 4 * math.prod(local_shape(config, next(iter(config.encoded)), tensor))
    if isinstance(config.loss, Vdr):
        return _vdr_travels(config, config.loss, size)
    return [Travel("+".join(term.query), size, 0, size) for term in terms_of(config)]


def _vdr_travels(config: Config, loss: Vdr, dense: int) -> list[Travel]:
    """The terms of `losses/vdr.py`, in its order; `dense` bytes of a device's columns of a row.

    Compact queries are values and columns, with a mask those that it gives to a row, too; bags have
    no gradient.
    """
    words, width = words_of(config, "query"), point_shape(config, next(iter(config.encoded)))[1]
    gated, more = _kept(loss.top, width) + words, -(-width // config.batch_size)

    def _sparse(name: str, entries: int, has_gradient: int) -> Travel:
        """Compact where that is smaller."""
        if 2 * entries >= width:
            return Travel(name, dense, 0, has_gradient * dense)
        return Travel(name, 4 * entries, 4 * entries, has_gradient * 4 * entries)

    out = [_sparse("gated", gated + more * (loss.mask.apply in ("gated", "both")), 1)]
    bags_masked = loss.mask.apply in ("bag", "both")
    if loss.bag:
        out.append(_sparse("bag", words + more * bags_masked, 0))
    if loss.symmetric:
        out.append(Travel("query", dense, 0, dense))
        if loss.bag:
            out.append(Travel("masked" if bags_masked else "query", dense, 0, dense))
    return out


def _kept(top: int | None, width: int) -> int:
    """Columns of `width` that a gate leaves."""
    return width if top is None else min(top, width)


def words_of(config: Config, side: str) -> int:
    """Words of a row's query or document at most."""
    fields = (field for field in config.fields.values() if field.side == side)
    return sum(field.length for field in fields if field.modality == "text")


def representations(config: Config, rows_over: int, tensor: int = 1) -> int:
    """Points of all fields, averages of fields, and their gradients, float32, on one device."""
    rows = -(-config.batch_size // rows_over)
    sizes = [math.prod(local_shape(config, name, tensor)) for name in config.encoded]
    sides = {side for term in terms_of(config) for side in (term.query, term.document)}
    averages = sum(len(side) > 1 for side in sides)
    return 2 * 4 * rows * (sum(sizes) + averages * sizes[0])


def loss(config: Config, rows_over: int, platform: str, tensor: int = 1) -> int:
    """What `losses/` holds besides the representations, bytes on one device.

    A sweep holds 3 arrays of what scores are made of and 3 of scores for a block, and 5 numbers a
    row; a block of compact queries is spread out, as is its gradient. What terms make of the points
    stays until the backward pass. Gathering: all queries too, and the partial gradients for all of
    them. Ring: the queries and the gradients that are under way. Terms are
    computed one after the other, but what is gathered of their queries, and their statistics, stay
    until the backward pass.
    """
    under_way, gathered = split(config, tensor)
    shape = local_shape(config, next(iter(config.encoded)), tensor)
    topology = similarity.topology(config.topology)
    points = (config.batch_size, *shape)
    side = config.loss.block or blockwise.block_size(topology, points, platform)
    resident = -(-config.batch_size // rows_over)
    columns = min(side, config.batch_size if gathered else resident)
    cells = min(side, resident) * columns
    blocks = 4 * cells * (3 * topology.numbers_per_cell(points) + 3)
    compact = [each for each in (*under_way, *gathered) if each.columns]
    spread = max((1 + (each.gradient > 0) for each in compact), default=0)
    blocks += 4 * math.prod(shape) * (spread * columns + _made(config) * resident)
    statistics = [5 * 4 * config.batch_size * len(each) for each in (under_way, gathered)]
    if rows_over == 1:
        return blocks + sum(statistics)
    queries = sum({each.name: each.there for each in gathered}.values())
    partial = max((each.gradient for each in gathered), default=0)
    moving = max((each.there + each.gradient for each in under_way), default=0)
    whole = config.batch_size * (queries + partial) + statistics[1]
    return blocks + whole + (config.batch_size * moving + statistics[0]) // rows_over


def _made(config: Config) -> int:
    """Dense arrays of one device's rows that the terms of `losses/vdr.py` make of its points: what
    a mask leaves of the positives, and the documents of the four-term variant. Two terms without a
    mask make none."""
    if not isinstance(config.loss, Vdr):
        return 0
    loss, bags = config.loss, config.loss.mask.apply in ("bag", "both")
    first = (loss.mask.apply in ("gated", "both")) + (loss.bag and bags)
    return first + loss.symmetric * (1 + loss.bag * (1 + bags))


def split(config: Config, tensor: int = 1) -> tuple[list[Travel], list[Travel]]:
    """What goes around a ring, and what is gathered, as `losses/core.py` chooses."""
    found: dict[str, list[Travel]] = {"ring": [], "gather": []}
    for each in travels(config, tensor):
        size = config.batch_size * each.points
        found[core.chosen(config.loss.exchange, size)].append(each)
    return found["ring"], found["gather"]


def exchange_mode(config: Config, tensor: int = 1) -> str:
    """ "gather", or "ring" where the queries of a term go around one."""
    return "ring" if split(config, tensor)[0] else "gather"


def loss_flops(config: Config, vocab_size: int) -> int:
    """Operations of the loss of one step over all devices.

    4 products of all queries with all documents and hard negatives a term (forward; again in the
    backward pass; the gradients of both sides). All topologies score by such products; the geodesic
    adds arcs, one per cell and sub-sphere, in both sweeps and for the slope.
    """
    n, (m, dim) = config.batch_size, point_shape(config, next(iter(config.encoded)), vocab_size)
    cells = n * n * (1 + config.negatives.count)
    one = 4 * 2 * cells * m * dim
    one += 3 * _ARC_OPERATIONS * cells * m if config.topology == "geodesic" else 0
    return one * len(terms_of(config))


def loss_wire(config: Config, rows_over: int, tensor: int = 1) -> dict[str, float]:
    """Bytes that one device receives for the loss in a step, by kind of collective.

    Of N rows of b bytes with gradients of g on R devices, gathering (R - 1) / R N b there and
    (R - 1) / R N g back, ring N (2 b + g); the queries of several terms are gathered once, their
    gradients come back for each. Which columns a side has active is reduced over the devices. What
    columns on the tensor axis add is in `_columns_wire`.
    """
    rows, share = config.batch_size, (rows_over - 1) / rows_over
    under_way, gathered = split(config, tensor)
    there = sum({each.name: each.there for each in gathered}.values())
    out = {
        "all-gather": share * rows * there,
        "reduce-scatter": share * rows * sum(each.gradient for each in gathered),
        "collective-permute": float(rows * sum(2 * t.there + t.gradient for t in under_way)),
        "all-reduce": 2 * share * _activity(config) / tensor,
    }
    if rows_over == 1:
        out = {}
    for kind, size in _columns_wire(config, rows_over, tensor).items():
        out[kind] = out.get(kind, 0) + size
    return {kind: size for kind, size in out.items() if size}


def _columns_wire(config: Config, rows_over: int, tensor: int) -> dict[str, float]:
    """What goes over the tensor axis, whose T devices have V / T columns of the same rows each.

    Each has a part of every score; they are summed forward and backward, 2 (T - 1) / T of 4 bytes a
    cell each time. A gate sends the k largest of each part, values and columns, (T - 1) k of both;
    what it takes is summed, and so are the gradients.
    """
    if tensor == 1 or not is_lexical(config):
        return {}
    share, mine = (tensor - 1) / tensor, config.batch_size // rows_over
    cells = mine * config.batch_size * (1 + config.negatives.count) * len(terms_of(config))
    out = {"all-reduce": 2 * share * 2 * 4 * cells}
    if isinstance(config.loss, Vdr):
        width = local_shape(config, next(iter(config.encoded)), tensor)[1]
        tops = config.loss.top, top_of_documents(config.loss)
        kept = sum(_kept(top, width) for top in tops)
        out["all-gather"] = (tensor - 1) * 8 * mine * kept  # of both sides, to be logged, too
        query, document = (_kept(top, tensor * width) for top in tops)
        taken = query + words_of(config, "query")
        more = -(
            -tensor * width // config.batch_size
        )  # what a mask shares out, looked up and taken
        taken += more * (config.loss.mask.apply in ("gated", "both"))
        if config.loss.symmetric:
            taken += (1 + config.negatives.count) * (document + words_of(config, "document"))
        out["all-reduce"] += 2 * share * mine * 2 * 4 * taken
        out["all-reduce"] += 2 * share * mine * 4 * more * (config.loss.mask.apply != "none")
    return out


def _activity(config: Config) -> int:
    """Bytes of what is reduced over all rows of a lexical batch: one a column that some row has
    active, for each side and each mask; 4 a column for the regulariser of a side."""
    if not is_lexical(config):
        return 0
    loss, width = config.loss, point_shape(config, next(iter(config.encoded)))[1]
    if isinstance(loss, Vdr):
        both = loss.mask.apply == "both" or (loss.mask.apply == "bag" and loss.symmetric)
        return width * (2 + (loss.mask.apply != "none") + both)
    if isinstance(loss, Contrastive):
        return width * (2 + 4 * (loss.sparsity.query > 0) + 4 * (loss.sparsity.document > 0))
    return 0
