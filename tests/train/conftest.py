"""Fixtures of whole runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.config import Config
from big_retrieval.train.loop import train
from tests.train.runs import ONE


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains a config, by default on one device, once for all tests of a module."""
    folders: dict[str, Path] = {}

    def run(config: Config, devices: Any = ONE) -> Path:
        key = repr((config, devices))
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("trained")
            train(config, folders[key], devices)
        return folders[key]

    return run
