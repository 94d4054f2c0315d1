"""Answers and limits of a service, with a mode that needs no model."""

import asyncio
import threading
from typing import Any

import pytest

from big_retrieval.demo import service as module
from big_retrieval.demo.load_collection import Demo
from big_retrieval.demo.search_modes import Bm25Mode
from big_retrieval.demo.service import Overloaded, SearchQuery, Service
from big_retrieval.evals.bm25 import Bm25

TEXTS = ["a red ball", "a blue ball", "the red, red door", "nothing"]


class Collection:
    """Texts without an index."""

    has_pictures = False

    def preview(self, document: int) -> str:
        return TEXTS[document]


@pytest.fixture
def bm25() -> Any:
    collection: Any = Collection()
    service = Service(Demo(collection, (Bm25Mode("bm25", "BM25", "", Bm25(TEXTS)),)))
    yield service
    service.close()


def test_bm25_answers_have_terms(bm25: Service) -> None:
    async def ask() -> Any:
        queries = [SearchQuery("text", text) for text in ("red balls, red ball", "none of them")]
        return await asyncio.gather(*map(bm25.search, queries))

    ((result,), (none,)) = asyncio.run(ask())
    assert [answer.document for answer in result.answers] == [0, 2, 1]
    assert none.answers == []
    for answer in result.answers:
        assert answer.preview == TEXTS[answer.document]
        assert sum(value for _, value, _ in answer.terms) == pytest.approx(answer.score, rel=1e-5)
        assert sum(share for *_, share in answer.terms) == pytest.approx(1, rel=1e-5)
    assert {word for word, *_ in result.answers[0].terms} == {"red", "ball"}


def test_service_runs_one_request_at_a_time_and_rejects_overload(
    bm25: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING", 3)
    running, max_running, free = [0], [0], threading.Event()

    def work() -> int:
        running[0] += 1
        max_running[0] = max(max_running[0], running[0])
        free.wait(10)
        running[0] -= 1
        return 1

    async def ask() -> list[Any]:
        requests = [asyncio.create_task(bm25.explain(work)) for _ in range(4)]
        await asyncio.sleep(0.05)
        free.set()
        return await asyncio.gather(*requests, return_exceptions=True)

    results = asyncio.run(ask())
    assert results[:3] == [1, 1, 1]
    assert isinstance(results[3], Overloaded)
    assert (max_running, bm25.waiting) == ([1], 0)


def test_service_rejects_request_that_waits_too_long(
    bm25: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    free = threading.Event()

    async def ask() -> None:
        with pytest.raises(Overloaded):
            await bm25.explain(free.wait, 10)
        free.set()

    asyncio.run(ask())
    assert bm25.waiting == 0
