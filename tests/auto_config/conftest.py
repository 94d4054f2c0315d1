"""A fixed machine without published weights, and a folder to work in."""

from pathlib import Path

import pytest

from big_retrieval.auto_config import machine
from big_retrieval.auto_config.machine import Machine


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "here", lambda: Machine(2))
    monkeypatch.setattr(machine, "text_weights", lambda: None)
    monkeypatch.chdir(tmp_path)
