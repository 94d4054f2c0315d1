"""What a loss holds, computes and sends, by formulas; of several fields, all of its terms."""

import math
from collections.abc import Sequence

from big_retrieval import similarity
from big_retrieval.checks_fields import point_shape
from big_retrieval.config import Config, Vdr
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


def representations(config: Config, rows_over: int) -> int:
    """Points of all fields, averages of fields, and their gradients, float32, on one device."""
    rows = -(-config.batch_size // rows_over)
    sizes = [math.prod(point_shape(config, name)) for name in config.fields]
    sides = {side for term in terms_of(config) for side in (term.query, term.document)}
    averages = sum(len(side) > 1 for side in sides)
    return 2 * 4 * rows * (sum(sizes) + averages * sizes[0])


def loss(config: Config, rows_over: int, platform: str) -> int:
    """What `losses/` holds besides the representations, bytes on one device.

    A sweep holds 3 arrays of what scores are made of and 3 of scores for a block, and 5 numbers a
    row. Gathering: all queries too, and the partial gradients for all of them. Ring: the queries
    and the gradients that are under way. Terms are computed one after the other, but what is
    gathered of their queries, and their statistics, stay until the backward pass.
    """
    terms = terms_of(config)
    sides = len({term.query for term in terms})
    shape = point_shape(config, next(iter(config.fields)))
    topology = similarity.topology(config.topology)
    size = config.batch_size * math.prod(shape) * 4
    points = (config.batch_size, *shape)
    side = config.loss.block or blockwise.block_size(topology, points, platform)
    ring = exchange_mode(config) == "ring"
    resident = -(-config.batch_size // rows_over)
    cells = min(side, resident) * min(side, resident if ring else config.batch_size)
    blocks = 4 * cells * (3 * topology.numbers_per_cell(points) + 3)
    statistics = len(terms) * 5 * 4 * config.batch_size
    if rows_over == 1:
        return blocks + statistics
    if ring:
        return blocks + (2 * size + statistics) // rows_over
    return blocks + (sides + 1) * size + statistics


def exchange_mode(config: Config) -> str:
    """ "gather" or "ring", as `losses/core.py` chooses."""
    shape = point_shape(config, next(iter(config.fields)))
    return core.chosen(config.loss.exchange, config.batch_size * math.prod(shape) * 4)


def loss_flops(config: Config, vocab_size: int) -> int:
    """Operations of the loss of one step over all devices.

    4 products of all queries with all documents a term (forward; again in the backward pass; the
    gradients of both sides). All topologies score by such products; the geodesic adds arcs, one per
    cell and sub-sphere, in both sweeps and for the slope.
    """
    n, (m, dim) = config.batch_size, point_shape(config, next(iter(config.fields)), vocab_size)
    one = 4 * 2 * n * n * m * dim
    one += 3 * _ARC_OPERATIONS * n * n * m if config.topology == "geodesic" else 0
    return one * len(terms_of(config))


def loss_wire(config: Config, rows_over: int) -> dict[str, float]:
    """Bytes that one device receives for the loss in a step, by kind of collective.

    Of N rows of b bytes on R devices, gathering (R - 1) / R N b both ways, ring 3 N b; the queries
    of several terms are gathered once, their gradients come back for each.
    """
    if rows_over == 1:
        return {}
    terms = terms_of(config)
    side = config.batch_size * math.prod(point_shape(config, next(iter(config.fields)))) * 4
    if exchange_mode(config) == "ring":
        return {"collective-permute": 3.0 * side * len(terms)}
    one = side * (rows_over - 1) / rows_over
    sides = len({term.query for term in terms})
    return {"all-gather": one * sides, "reduce-scatter": one * len(terms)}
