"""examples/pointing_game.py: shares of the mass of maps on what texts name."""

from pathlib import Path

import numpy as np
import pytest

from tests.examples.helpers import SHALLOW, copied, example, trained
from tests.helpers import results


def test_shares_of_maps_on_what_is_covered() -> None:
    module = example("pointing_game")
    cover = np.zeros((4, 4))
    cover[:2, :2] = 1  # one of four patches
    maps = np.array([[[3.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    on = module._on(maps, cover)
    assert on[0] == 0.75
    assert np.isnan(on[1])
    assert module._share(maps, np.stack([cover, cover])) == (0.75, 0.25)
    named, other = np.array([0.5, 0.1, np.nan]), np.array([0.2, 0.3, np.nan])
    assert module._right(named, other) == 0.5


@pytest.mark.slow
def test_pointing_game_metrics_are_logged(tmp_path: Path) -> None:
    config = copied("pointing_game", tmp_path, "pointing_game")
    done = trained(config, tmp_path / "run", "--config.evals.pointing.data.count=16", SHALLOW)
    prefix = "own_pointing_game/pointing/"
    found = {k.removeprefix(prefix): x for k, x in results(tmp_path / "run").items()}
    for name in ("both", "words", "named", "other", "pairs_named", "right", "pair_4_right"):
        assert 0 < found[name] < 1
    assert found["both_uniform"] == pytest.approx(2 * found["named_uniform"])
    wrong = "--config.evals.pointing.data.size=16"
    done = trained(config, tmp_path / "wrong", wrong, SHALLOW, status=2)
    assert "data.size is 16; set it to that of the field, 32." in done.stderr
