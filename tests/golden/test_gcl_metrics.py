"""Reference values of "Generalized Contrastive Learning": weights of scores, ranking metrics.

What the arrays are and the tolerances: data/gcl/README.md. Every array of a file is compared or
goes into something that is compared.
"""

from collections.abc import Mapping

import numpy as np
import pytest

from big_retrieval.config import PairLabels
from big_retrieval.data.weights import make_weight

Case = Mapping[str, np.ndarray]


@pytest.mark.golden("gcl", "score_to_weight.npz")
def test_score_to_weight(case: Case) -> None:
    """Eqs. 1 to 3 for two best scores."""
    names = ("linear", "inverse", "inverse_sqrt", "piecewise")
    assert set(case) == {
        *(f"{name}{end}" for name in (*names, "scores", "s_max") for end in ("", "_b")),
        "constant", "constant_c",
    }  # fmt: skip
    for end in ("", "_b"):
        for name in names:
            labels = PairLabels(score="score", weight=name, s_max=float(case[f"s_max{end}"]))
            ours = make_weight(labels)(case[f"scores{end}"])
            np.testing.assert_allclose(ours, case[f"{name}{end}"], rtol=1e-12, err_msg=name)
    labels = PairLabels(score="score", weight=str(case["constant_c"]))
    np.testing.assert_array_equal(make_weight(labels)(case["scores"]), case["constant"])
    ours = make_weight(PairLabels(score="score"))(case["scores"])
    np.testing.assert_array_equal(ours, case["constant"] / case["constant_c"])
