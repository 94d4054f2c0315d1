"""Order and random numbers: pure functions of integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval.data.order import Order, example_rng
from big_retrieval.errors import UserError


@settings(max_examples=15, deadline=None)
@given(length=st.integers(1, 80), seed=st.integers(0, 2**40), first=st.integers(0, 1000))
def test_every_epoch_is_a_permutation(length, seed, first):
    order = Order(length, seed)
    for epoch in (first, first + 1):
        found = [order.record(epoch * length + place) for place in range(length)]
        assert {e for e, _ in found} == {epoch}
        assert sorted(index for _, index in found) == list(range(length))


def test_epochs_and_seeds_have_different_orders():
    epochs = {tuple(Order(60, seed).ids(epoch * 60, 60)) for seed in range(4) for epoch in range(8)}
    assert len(epochs) == 32  # also no seed's epoch is another seed's


def test_order_is_a_function_of_seed_and_position():
    a, b = Order(100, 7), Order(100, 7)
    backwards = [a.record(position) for position in reversed(range(250))][::-1]
    assert backwards == [b.record(position) for position in range(250)]
    assert a.ids(90, 20) == [b.record(position)[1] for position in range(90, 110)]


def test_digest_differs_for_different_orders():
    order = Order(1000, 0)
    digests = [order.digest(64, 32), Order(1000, 1).digest(64, 32), order.digest(65, 32)]
    digests.append(order.digest(64, 33))
    assert Order(1000, 0).digest(64, 32) == digests[0]
    assert len(set(digests)) == 4
    assert {len(digest) for digest in digests} == {12}


def test_order_equals_recorded_order():
    """A change of the order breaks the resume of every saved run."""
    assert Order(10, 0).ids(0, 20) == [1, 2, 4, 5, 9, 7, 8, 6, 0, 3, 9, 6, 1, 8, 2, 0, 3, 5, 4, 7]
    assert example_rng(1, 2, 3).integers(1 << 30, size=3).tolist() == [
        656433789,
        68119286,
        767880382,
    ]


def test_order_rejects_no_records():
    with pytest.raises(UserError, match="no records"):
        Order(0, 0)


@settings(max_examples=40, deadline=None)
@given(keys=st.sets(st.tuples(*[st.integers(0, 2**63)] * 3), min_size=2, max_size=5))
def test_example_rng_differs_for_any_key(keys):
    draws = [example_rng(*key).random(4) for key in keys]
    assert len({tuple(draw) for draw in draws}) == len(keys)
    for key, draw in zip(keys, draws, strict=True):
        np.testing.assert_array_equal(example_rng(*key).random(4), draw)
