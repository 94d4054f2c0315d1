"""The launch script and a small run for it."""

import time
from collections.abc import Callable

from tests.helpers import ROOT

SCRIPT = str(ROOT / "launch" / "local.sh")
SMALL = [
    *["--config=configs/quickstart.py:runlocal", "--config.log_every=1"],
    *["--config.batch_size=16", "--config.data.count=200"],
    *["--config.towers.image.depth=1", "--config.towers.text.depth=1"],
    *["--config.evals.colours.data.count=16", "--config.evals.test.data.count=16"],
]


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
