"""Mixtures: exact shares in every stretch, a new order in every epoch, equal after a resume."""

import numpy as np
import pytest

from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.data.build import make_source
from big_retrieval.data.mixture import MixedSource
from big_retrieval.data.sources import TextRecords, texts_of, value_of
from big_retrieval.errors import UserError

SIZES = {"a": 30, "b": 6, "c": 100}


def mixture(**weights):
    parts = {name: TextRecords([f"{name}{i}" for i in range(SIZES[name])]) for name in weights}
    return MixedSource(parts, weights)


def read(order, start, stop):
    return [order.record(position) for position in range(start, stop)]


def part_of(index):
    return "a" if index < 30 else "b" if index < 36 else "c"


def test_shares_hold_in_every_stretch_and_each_pass_has_all_records():
    order = mixture(a=2.0, b=1.0, c=1.0).order(3)
    found = read(order, 0, 1200)
    for start in range(0, 1001, 50):
        names = [part_of(index) for _, index in found[start : start + 200]]
        shares = [names.count(name) / 200 for name in "abc"]
        np.testing.assert_allclose(shares, [0.5, 0.25, 0.25], atol=0.01)
    for name, start, size in (("a", 0, 30), ("b", 30, 6), ("c", 36, 100)):
        own = [(epoch, index) for epoch, index in found if part_of(index) == name]
        passes = len(own) // size
        assert passes >= 3
        for number in range(passes):
            part = own[number * size : (number + 1) * size]
            assert {epoch for epoch, _ in part} == {number}
            assert sorted(index for _, index in part) == list(range(start, start + size))
        assert own[:size] != [(0, index) for _, index in own[size : 2 * size]]


def test_positions_are_a_pure_function_of_the_seed():
    one, two = (mixture(a=1.0, c=3.0).order(7) for _ in range(2))
    assert read(one, 100, 150) == read(two, 0, 150)[100:]
    assert read(mixture(a=1.0, c=3.0).order(8), 0, 50) != read(one, 0, 50)
    assert one.digest(64, 64) == two.digest(64, 64)


def test_shares_without_weights_follow_sizes():
    found = mixture(a=None, b=None, c=None)
    np.testing.assert_allclose(list(found.shares.values()), np.array([30, 6, 100]) / 136)


def test_records_are_those_of_the_parts():
    found = mixture(b=1.0, a=1.0)
    assert len(found) == 36
    assert [found[i]["captions"] for i in (0, 5, 6, 35)] == [("b0",), ("b5",), ("a0",), ("a29",)]
    assert texts_of(found, 6, "captions") == value_of(found, 6, "captions") == ("a0",)
    assert (found.span(5), found.span(6)) == ((0, 6), (6, 36))
    assert list(found.captions()) == [f"b{i}" for i in range(6)] + [f"a{i}" for i in range(30)]
    with pytest.raises(IndexError):
        found[36]


def test_mixture_names_empty_part_without_weight():
    parts = {"a": TextRecords(["x"]), "b": TextRecords([])}
    with pytest.raises(UserError, match="part 'b' of the mixture has no records"):
        MixedSource(parts, {"a": None, "b": None})


def test_mixture_is_built_from_config():
    part = recipe.entry(config.MixturePart(source=config.Scenes(count=5), weight=3.0))
    parts = config.Mixture(
        parts={"x": config.MixturePart(source=config.Scenes(count=4), weight=1.0)}
    )
    c = recipe.base()
    c.data = recipe.entry(parts)
    c.data.parts.y = part
    source = make_source(config.load(c).data)
    assert isinstance(source, MixedSource)
    assert (len(source), source.shares) == (9, {"x": 0.25, "y": 0.75})


def test_mixture_rejects_mixtures():
    inner = config.Mixture(parts={"y": config.MixturePart(source=config.Scenes())})
    found = list(config.Mixture(parts={"x": config.MixturePart(source=inner)}).check("config.data"))
    assert [message.split(";")[0] for message in found] == [
        "config.data.parts.x.source is a mixture, too"
    ]
