"""After a power loss there is an intact checkpoint, and the run goes on as if nothing had been."""

import random
from pathlib import Path

import pytest

from tests.train import power_loss


@pytest.mark.slow
def test_newest_save_survives_power_loss(
    tmp_path: Path,
) -> None:
    if not power_loss.may_mount(tmp_path):
        pytest.skip("needs the right to mount a file system")
    found = power_loss.attack(tmp_path / "attack", 6, 2, random.Random(0))
    assert found["intact"] == found["not_older"] == found["instants"] == 6, found
    assert found["identical"] == found["resumed"] == 2, found
