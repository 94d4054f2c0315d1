"""A demo of a lexical and a dense model with random weights, on 30 generated scenes."""

from collections.abc import Iterator
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.demo.load_collection import Demo, DemoOptions, open_demo
from big_retrieval.demo.service import Service
from big_retrieval.train.build import untrained
from big_retrieval.train.checkpoint import write_model
from tests.explain.conftest import make
from tests.helpers import tiny

COUNT = 30
SCENES = configs.Scenes("scenes", "test", 32, COUNT)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Checkpoints of a lexical and a dense model of images and texts."""
    place = tmp_path_factory.mktemp("runs")
    write_model(make(), place / "lexical")
    evals = {"test": recipe.entry(configs.Retrieval(), data=SCENES)}
    write_model(untrained(tiny(evals=evals), batch_size=8), place / "dense")
    return str(place / "lexical"), str(place / "dense")


@pytest.fixture(scope="session")
def demo(runs: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return open_demo(DemoOptions(run=runs), tmp_path_factory.mktemp("encoded"))


@pytest.fixture(scope="session")
def service(demo: Demo) -> Iterator[Service]:
    service = Service(demo)
    yield service
    service.close()


@pytest.fixture
def client(service: Service) -> Any:
    """Client of the application without a network."""
    pytest.importorskip("starlette", reason="needs the extra demo")
    from starlette.testclient import TestClient

    from big_retrieval.demo.app import make_app

    return TestClient(make_app(service), raise_server_exceptions=False)
