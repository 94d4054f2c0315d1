"""Two processes killed at a random instant while a checkpoint is being saved.

tests/train/test_resume.py kills a process at random moments, and
`python -m tests.launch.kills --kills=200` does all of it for hours.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, environment


@pytest.mark.slow
def test_a_kill_within_a_save_changes_neither_parameters_nor_logged_rows(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.launch.kills", f"--folder={tmp_path / 'kills'}"]
    done = subprocess.run(
        [*command, "--kills=1", "--steps=20", "--seed=1"],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] == 1
    assert found["in_saves"] == 1
    assert "kill 1: process 0 " in done.stderr  # test_two_processes.py kills the other one
    assert found["different"] == 0
