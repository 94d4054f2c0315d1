"""Weights of pairs by their scores, and the arithmetic that a config may write for them."""

import math
import re

import numpy as np
import pytest

from big_retrieval import config
from big_retrieval.config.checks.labels import check_weight
from big_retrieval.data.judged.weights import NAMES, make_weight
from big_retrieval.errors import UserError

BY_HAND = {
    "constant": lambda s: 1.0,
    "linear": lambda s: s,
    "inverse": lambda s: 100 / (101 - s),
    "inverse_sqrt": lambda s: 100 / math.sqrt(101 - s),
    "piecewise": lambda s: 100.0 if s >= 90 else 100 / (91 - s),
}


def weights(name: str, scores: list[float], **keys) -> list[float]:
    labels = config.PairLabels(score="score", weight=name, **keys)
    assert not list(check_weight(labels))
    return make_weight(labels)(np.array(scores)).tolist()


@pytest.mark.parametrize("name", BY_HAND)
def test_weights_of_the_paper(name) -> None:
    scores = [float(s) for s in range(101)]
    np.testing.assert_allclose(weights(name, scores), [BY_HAND[name](s) for s in scores])


@pytest.mark.parametrize("s_max", [1.0, 10.0, 70.0, 99.5])
def test_the_best_score_weighs_s_max(s_max) -> None:
    for name in ("linear", "inverse", "inverse_sqrt", "piecewise"):
        assert weights(name, [s_max], s_max=s_max) == [s_max]


def test_a_table_is_linear_in_between_and_constant_beyond() -> None:
    table = ((10, 1.0), (20, 3.0), (40, 0.0))
    assert weights("table", [0, 10, 15, 20, 30, 40, 100], table=table) == [1, 1, 2, 3, 1.5, 0, 0]
    assert weights("table", [1, 99], table=((50, 7.0),)) == [7, 7]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s", lambda s: s),
        ("2", lambda s: 2.0),
        ("sqrt(s / s_max)", lambda s: math.sqrt(s / 100)),
        ("-(-s) ** 2 + +s ** 2 + 1", lambda s: 1.0),
        ("1 - -s", lambda s: 1 + s),
        ("exp(-s / 10) + log(s + 1)", lambda s: math.exp(-s / 10) + math.log(s + 1)),
        ("max(s - 90, 0, 5 - s)", lambda s: max(s - 90, 0, 5 - s)),
        ("min(s, 2e1) * abs(s - 50)", lambda s: min(s, 20) * abs(s - 50)),
        ("5 if 10 <= s < 20 else 0 if s == 3 else 1", lambda s: 5 if 10 <= s < 20 else s != 3),
        ("log(s - 50) if s > 51 else 0", lambda s: math.log(s - 50) if s > 51 else 0),
        ("2 ** s / 2 ** s_max", lambda s: 2.0 ** (s - 100)),
    ],
)  # fmt: skip
def test_arithmetic(text, expected) -> None:
    scores = [float(s) for s in range(1, 101)]
    np.testing.assert_allclose(weights(text, scores), [expected(s) for s in scores], rtol=1e-12)


WRONG = [
    ({"weight": "inverse_sqr"}, "'inverse_sqr', which is unknown; did you mean 'inverse_sqrt'"),
    ({"weight": "inverse-sqrt"}, "did you mean 'inverse_sqrt'"),
    ({"weight": "cubic"}, "'cubic', which is unknown; the known ones are constant, linear, inv"),
    ({"weight": " "}, "config.labels.weight is empty"),
    ({"weight": "s +"}, "'s \\+' cannot be read"),
    ({"weight": "(" * 150}, "cannot be read"),
    ({"weight": "-" * 499 + "s"}, "cannot be read|has the weight"),
    ({"weight": "s +" * 167}, "has 501 characters"),
    ({"weight": "s + rank"}, "the name 'rank'; use s, s_max, numbers"),
    ({"weight": "round(s)"}, "a call of 'round'; use s, s_max"),
    ({"weight": "__import__('os').getcwd()"}, "a call of \"__import__"),
    ({"weight": "s.real"}, "'s.real' where a number must stand"),
    ({"weight": "s[0]"}, r"'s\[0\]' where a number"),
    ({"weight": "[s for s in s]"}, "where a number"),
    ({"weight": "(lambda: s)()"}, "a call of"),
    ({"weight": "s // 2"}, "'s // 2' where a number"),
    ({"weight": "s % 2"}, "where a number"),
    ({"weight": "'s' * 2"}, "where a number"),
    ({"weight": "1j * s"}, "'1j' where a number"),
    ({"weight": "s * True"}, "'True' where a number"),
    ({"weight": "~s"}, "'~s' where a number"),
    ({"weight": "s > 5"}, "'s > 5' where a number"),
    ({"weight": "1 if s else 0"}, "'s' behind an if, which needs a comparison"),
    ({"weight": "1 if s in s_max else 0"}, "the comparison 's in s_max'"),
    ({"weight": "sqrt(s, 2)"}, "sqrt takes one value"),
    ({"weight": "max(s)"}, "max takes two values or more"),
    ({"weight": "max(*s, 2)"}, "'\\*s' where a number"),
    ({"weight": "exp(x=s)"}, "exp takes one value"),
    ({"weight": "s - 3"}, "gives the score 1 the weight -2; weights must be finite"),
    ({"weight": "log(2 - s)"}, "gives the score 2 the weight -inf"),
    ({"weight": "sqrt(10 - s)"}, "gives the score 11 the weight nan"),
    ({"weight": "1 / (s - 7.0) ** 2"}, "gives the score 7 the weight inf"),
    ({"weight": "9 ** 9 ** 9 ** 9"}, "gives the score 1 the weight inf"),
    ({"weight": "s * 1" + "0" * 400}, "cannot be read"),
    ({"weight": "0 * s"}, "is 0 for every score"),
    ({"weight": "linear", "score": ""}, "config.labels.score is empty"),
    ({"weight": "linear", "s_max": 0.0}, "config.labels.s_max is 0.0; it must be positive"),
    ({"weight": "linear", "s_max": math.nan}, "config.labels.s_max is nan"),
    ({"weight": "table"}, "config.labels.table is empty"),
    ({"weight": "linear", "table": ((1, 1.0),)}, "config.labels.table is set"),
    ({"weight": "table", "table": ((2, 1.0), (1, 1.0))}, "the score 1 behind 2; order it"),
    ({"weight": "table", "table": ((1, 1.0), (1, 2.0))}, "the score 1 behind 1"),
    ({"weight": "table", "table": ((1, -1.0),)}, "weights not < 0"),
    ({"weight": "table", "table": ((1, math.nan),)}, "must be finite"),
    ({"weight": "table", "table": ((1, 1.0, 1.0),)}, "pairs of a score and a weight"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "message"), WRONG, ids=[str(k)[:60] for k, _ in WRONG])
def test_mistakes_are_said_before_the_run(keys, message) -> None:
    sentence = next(check_weight(config.PairLabels(**{"score": "score", **keys})))
    assert sentence.startswith("config.labels.")
    assert re.search(message, sentence), sentence


@pytest.mark.parametrize("score", [-1.0, 100.5, math.nan, math.inf])
@pytest.mark.parametrize("name", [*NAMES[:-1], "sqrt(s)"])
def test_scores_out_of_range(name, score) -> None:
    weight = make_weight(config.PairLabels(score="score", weight=name))
    with pytest.raises(UserError, match=r"the score \S+ is not in \[0, 100\]"):
        weight(np.array([5.0, score]))


def test_nothing_is_called_that_is_not_allowed(tmp_path) -> None:
    target = tmp_path / "made"
    for text in (f"open('{target}', 'w')", f"sqrt(open('{target}', 'w'))"):
        with pytest.raises(UserError):
            make_weight(config.PairLabels(weight=text))
    assert not target.exists()
