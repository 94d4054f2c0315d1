"""Weights of pairs by their scores."""

import math
import re
from itertools import chain

import numpy as np
import pytest

from big_retrieval import config
from big_retrieval.config.ranges import out_of_range
from big_retrieval.data.fields.labels import make_weight

BY_HAND = {
    "constant": lambda s: 1.0,
    "linear": lambda s: s,
    "inverse": lambda s: 100 / (101 - s),
    "inverse_sqrt": lambda s: 100 / math.sqrt(101 - s),
    "piecewise": lambda s: 100.0 if s >= 90 else 100 / (91 - s),
}


def weights(name: str, scores: list[float], **keys) -> list[float]:
    labels = config.PairLabels(score="score", weight=name, **keys)
    assert not list(labels.check(config.Config()))
    return make_weight(labels)(np.array(scores)).tolist()


@pytest.mark.parametrize("name", BY_HAND)
def test_weights_of_the_paper(name) -> None:
    scores = [float(s) for s in range(101)]
    np.testing.assert_allclose(weights(name, scores), [BY_HAND[name](s) for s in scores])


@pytest.mark.parametrize("s_max", [1.0, 10.0, 70.0, 99.5])
def test_best_score_has_weight_s_max(s_max) -> None:
    for name in ("linear", "inverse", "inverse_sqrt", "piecewise"):
        assert weights(name, [s_max], s_max=s_max) == [s_max]


def test_table_is_linear_between_and_constant_beyond_its_scores() -> None:
    table = ((10, 1.0), (20, 3.0), (40, 0.0))
    assert weights("table", [0, 10, 15, 20, 30, 40, 100], table=table) == [1, 1, 2, 3, 1.5, 0, 0]
    assert weights("table", [1, 99], table=((50, 7.0),)) == [7, 7]


WRONG = [
    ({"weight": "table", "table": ((1, 0.0),)}, "is 0 for every score"),
    ({"weight": "table", "table": ((1, 0.0), (100, 0.0), (200, 1.0))}, "is 0 for every score"),
    ({"weight": "linear", "score": ""}, "config.labels.score is empty"),
    ({"weight": "linear", "s_max": 0.0}, "config.labels.s_max is 0.0; it must be positive"),
    ({"weight": "linear", "s_max": math.nan}, "config.labels.s_max is nan"),
    ({"weight": "table"}, "config.labels.table is empty"),
    ({"weight": "linear", "table": ((1, 1.0),)}, "config.labels.table is set"),
    ({"weight": "table", "table": ((2, 1.0), (1, 1.0))}, "the score 1 after 2; order it"),
    ({"weight": "table", "table": ((1, 1.0), (1, 2.0))}, "the score 1 after 1"),
    ({"weight": "table", "table": ((1, -1.0),)}, "weights not < 0"),
    ({"weight": "table", "table": ((1, math.nan),)}, "must be finite"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "message"), WRONG, ids=[str(k)[:60] for k, _ in WRONG])
def test_check_rejects_wrong_weights(keys, message) -> None:
    labels = config.PairLabels(**{"score": "score", **keys})
    sentence = next(chain(out_of_range(labels, "config.labels"), labels.check(config.Config())))
    assert sentence.startswith("config.labels.")
    assert re.search(message, sentence), sentence
