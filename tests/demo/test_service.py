"""What a demo answers, with a way that needs no model."""

import asyncio
from typing import Any

import pytest

from big_retrieval.demo.opening import Demo
from big_retrieval.demo.service import SearchQuery, Service
from big_retrieval.demo.ways import Bm25Way
from big_retrieval.evals.bm25 import Bm25

TEXTS = ["a red ball", "a blue ball", "the red, red door", "nothing"]


def test_answers_of_bm25_list_their_words() -> None:
    way, collection = Bm25Way("bm25", "BM25", "", Bm25(TEXTS)), object()
    no_documents: Any = collection
    service = Service(Demo(no_documents, (way,)))

    async def asked() -> Any:  # together, as one batch may answer both
        wanted = [SearchQuery("text", text) for text in ("red balls, red ball", "none of them")]
        return await asyncio.gather(*map(service.search, wanted))

    try:
        ((found,), (none,)) = asyncio.run(asked())
    finally:
        service.close()
    assert [each.number for each in found.answers] == [0, 2, 1]
    assert none.answers == []
    for each in found.answers:
        assert sum(value for _, value, _ in each.terms) == pytest.approx(each.score, rel=1e-5)
        assert sum(share for *_, share in each.terms) == pytest.approx(1, rel=1e-5)
    assert {word for word, *_ in found.answers[0].terms} == {"red", "ball"}
