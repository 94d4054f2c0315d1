"""The largest terms of rows by a search for their threshold: for TPUs.

`jax.lax.top_k` sorts the whole row on a TPU: 6.7 million cycles on v5e for the 512 largest of
29,523 terms of 256 rows (static bundles of the compiled loops), here about 4 million. Every pass
over the rows counts the values above 7 thresholds and so finds 3 bits of the k-th largest value.
Of values that are equal to it, a second search finds the last term that belongs to the k. The
chosen terms are then listed by products with one-hot matrices, and sorted.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from big_retrieval.runtime.chips import LANES

_DIGIT = 3  # bits that one pass finds: with 2, 3, 4 a pass takes 141, 146, 367 thousand cycles
_TOP = 1 << 31


def largest_terms(rows: jax.Array, top_k: int) -> jax.Array:
    """Terms of the `top_k` largest values of each row, as `jax.lax.top_k` gives them.

    Args:
      rows: [n, V], float32 or narrower.
      top_k: 1 to V.

    Returns:
      int32 [n, top_k], largest value first, of equal values the first term first.
    """
    keys = _ordered(rows)
    terms = _list_terms(_largest(keys, top_k), top_k)
    # Equal keys stay in the order of their terms.
    by_value = (~jnp.take_along_axis(keys, terms, axis=1), terms)
    return jax.lax.sort(by_value, num_keys=1, is_stable=True)[1]


def _ordered(rows: jax.Array) -> jax.Array:
    """int32 [n, V] in the total order of floating-point numbers: -0 below 0, NaN above all."""
    bits = jax.lax.bitcast_convert_type(rows.astype(jnp.float32), jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _largest(keys: jax.Array, top_k: int) -> jax.Array:
    """bool [n, V], `top_k` true in each row: the largest, of equal ones the first."""
    width = keys.shape[1]

    def enough(value: jax.Array) -> jax.Array:
        return _count(keys >= _signed(value)[:, None]) >= top_k

    threshold = _signed(_largest_number(enough, keys, 32))[:, None]  # the k-th largest key
    equal = keys == threshold
    missing = top_k - _count(keys > threshold)  # so many of the equal ones belong to the k
    number = jnp.arange(width, dtype=jnp.uint32)

    def too_few(end: jax.Array) -> jax.Array:
        return _count(equal & (number < end[:, None])) < missing

    last = _largest_number(too_few, keys, width.bit_length())[:, None]
    return (keys > threshold) | (equal & (number <= last))


def _signed(value: jax.Array) -> jax.Array:
    """The int32 at a place of the order that starts with the smallest one, uint32."""
    return jax.lax.bitcast_convert_type(value ^ jnp.uint32(_TOP), jnp.int32)


def _largest_number(
    holds: Callable[[jax.Array], jax.Array], keys: jax.Array, bits: int
) -> jax.Array:
    """uint32 [n], the largest numbers of so many bits for which `holds` is true.

    Args:
      holds: of uint32 [n]; true at 0, and if at a number, then at all smaller ones.
      keys: [n, V], for n and for its layout.
      bits: at most 32.
    """
    passes = -(-bits // _DIGIT)
    largest = jnp.uint32((1 << bits) - 1)

    def find_digit(i: jax.Array, value: jax.Array) -> jax.Array:
        shift = (_DIGIT * (passes - 1 - i)).astype(jnp.uint32)
        count = jnp.zeros_like(value)
        # Counted one by one, as XLA puts all counts of a pass into one fusion.
        for digit in map(jnp.uint32, range(1, 1 << _DIGIT)):
            fits = digit <= largest >> shift
            count += (holds(value + (digit << shift)) & fits).astype(jnp.uint32)
        return value + (count << shift)

    return jax.lax.fori_loop(0, passes, find_digit, jnp.zeros(len(keys), jnp.uint32))


def _count(mask: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(mask, 1, 0), axis=1)


def _list_terms(chosen: jax.Array, top_k: int) -> jax.Array:
    """Columns of bool [n, V] that are true, `top_k` in each row: int32 [n, top_k], ascending."""
    more = -chosen.shape[1] % LANES
    chunks = jnp.pad(chosen, ((0, 0), (0, more))).reshape(len(chosen), -1, LANES)  # [n, C, 128]
    counts = _ones(jnp.sum(chunks, axis=2))  # [n, C]; up to 128, exact in bfloat16
    ends = _product(counts, _up_to(counts.shape[1]))  # [n, C], terms in a chunk and those before
    rank = jnp.arange(top_k)  # of the term to be found
    before = ends[:, None] <= rank[:, None]  # [n, k, C], chunks that end before it
    chunk = jnp.sum(before, axis=2, dtype=jnp.int32)  # [n, k]
    first = jnp.max(jnp.where(before, ends[:, None], 0), axis=2)  # rank of the chunk's first term
    one_hot = chunk[:, :, None] == jnp.arange(chunks.shape[1])
    inside = jnp.einsum("nkc,ncl->nkl", _ones(one_hot), _ones(chunks))  # the chunk of each term
    ends = _product(inside, _up_to(LANES))  # [n, k, 128]
    lane = jnp.sum(ends <= (rank - first)[:, :, None], axis=2, dtype=jnp.int32)
    return chunk * LANES + lane


def _up_to(size: int) -> jax.Array:
    """[size, size], a factor that makes sums of all entries up to each."""
    return _ones(jnp.arange(size)[:, None] <= jnp.arange(size))


def _ones(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    """int32 product of small whole numbers in bfloat16."""
    return jnp.matmul(a, b, preferred_element_type=jnp.float32).astype(jnp.int32)
