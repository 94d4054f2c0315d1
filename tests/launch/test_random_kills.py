"""Two processes killed at random instants, some of them while a checkpoint is being saved."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, environment


@pytest.mark.slow
def test_random_kills_change_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.launch.kills", f"--folder={tmp_path / 'kills'}"]
    done = subprocess.run(
        [*command, "--kills=2", "--steps=30"],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] == 2
    assert found["in_saves"] >= 1
    assert found["different"] == 0
