"""What the tests of launch/local.sh share."""

import time
from collections.abc import Callable

from tests.helpers import ROOT

SCRIPT = str(ROOT / "launch" / "local.sh")


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
