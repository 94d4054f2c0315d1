"""Answers and explanations of a demo, for the page and for programs.

Models run in two threads, one that searches and one that explains (Grad-CAM compiles for seconds).
Each thread answers one request at a time. A request beyond `WAITING` is rejected.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from big_retrieval.data.images.decoding import Encoded
from big_retrieval.demo.explainer import Explainer
from big_retrieval.demo.load_collection import Demo
from big_retrieval.demo.search_modes import DEPTHS, Kind, SearchMode
from big_retrieval.errors import UserError
from big_retrieval.sparse.listing import Listed

WAITING = 128  # maximum number of requests that wait
PATIENCE = 30.0  # seconds until a waiting request is rejected
TERMS = 8  # listed terms of an answer
QUERY_TERMS = 10  # listed terms of a query


class Overloaded(Exception):
    """Too many requests wait."""


@dataclass(frozen=True)
class SearchQuery:
    """Query and the requested ranks."""

    kind: Kind
    value: Any  # a text, the content of an image file, or a document index
    start: int = 0  # number of best answers to skip
    count: int = 10  # maximum number of answers


@dataclass(frozen=True)
class FoundDocument:
    """Answer to a query."""

    rank: int  # from 1
    document: int  # document index
    score: float  # higher is better
    preview: str  # beginning of the text
    # (term, part of the score, share of the score), the `TERMS` largest
    terms: Sequence[tuple[str, float, float]] = ()


@dataclass(frozen=True)
class ModeResult:
    """Answers of one search mode."""

    mode: SearchMode
    answers: Sequence[FoundDocument]  # best first
    terms: Listed  # strongest terms of the query
    more: bool  # further answers exist
    encode_ms: float
    search_ms: float


class Service:
    """Answers requests about a demo; `waiting` counts requests that run or wait."""

    def __init__(self, demo: Demo):
        self.demo, self.started, self.waiting = demo, time.time(), 0
        self.explainer = Explainer(demo)
        self._searching, self._explaining = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    def warm_up(self) -> None:
        """Compiles the programs of searches."""
        for mode in self.demo.modes:
            mode.warm_up()

    def close(self) -> None:
        """Ends both threads, and cancels requests that wait."""
        for thread in (self._searching, self._explaining):
            thread.shutdown(cancel_futures=True)

    def modes(self, kind: Kind, key: str = "") -> list[SearchMode]:
        """Returns the modes that read a kind of query, or the mode with a key."""
        keys = [mode.key for mode in self.demo.modes]
        if key and key not in keys:
            raise UserError(f"Unknown mode {key!r}. Use one of: {', '.join(keys)}.")
        modes = [mode for mode in self.demo.modes if kind in mode.reads and key in ("", mode.key)]
        if not modes:
            noun = {"text": "words", "image": "an image", "like": "the neighbors of a document"}
            raise UserError(f"{key or 'This model'} cannot search by {noun[kind]}.")
        return modes

    async def search(self, query: SearchQuery, key: str = "") -> list[ModeResult]:
        """Searches by every mode that reads this kind of query, or by the mode with a key."""
        modes = self.modes(query.kind, key)
        return await self._run(
            self._searching, lambda: [self._search(query, mode) for mode in modes]
        )

    async def explain(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a method of `explainer` in the thread that explains."""
        return await self._run(self._explaining, function, *args)

    async def _run(
        self, thread: ThreadPoolExecutor, function: Callable[..., Any], *args: Any
    ) -> Any:
        if self.waiting >= WAITING:
            raise Overloaded
        self.waiting += 1
        try:
            loop = asyncio.get_running_loop()
            result = loop.run_in_executor(thread, functools.partial(function, *args))
            return await asyncio.wait_for(result, PATIENCE)
        except TimeoutError:
            raise Overloaded from None
        finally:
            self.waiting -= 1

    def _search(self, query: SearchQuery, mode: SearchMode) -> ModeResult:
        stop, value = query.start + query.count, query.value
        if query.kind == "image":
            value = Encoded(value, "the image")
        # 2 extra hits: one shows whether there are more answers, one may be the document itself.
        depth = next(x for x in DEPTHS if x >= stop + 2)
        times = [time.perf_counter()]
        row = mode.encode(query.kind, value)
        times.append(time.perf_counter())
        documents, scores = mode.search(row, depth)
        times.append(time.perf_counter())
        itself = value if query.kind == "like" else -1
        hits = [
            (document, score)
            for document, score in zip(documents.tolist(), scores.tolist(), strict=True)
            if document not in (-1, itself)
        ]
        answers = []
        for rank, (document, score) in enumerate(hits[query.start : stop], query.start + 1):
            terms = tuple(
                (word, value, value / score if score else 0.0)
                for word, value in mode.terms(row, document)[:TERMS]
            )
            preview = self.demo.collection.preview(document)
            answers.append(FoundDocument(rank, document, score, preview, terms))
        return ModeResult(
            mode, answers, mode.strongest(row, QUERY_TERMS), len(hits) > stop,
            1e3 * (times[1] - times[0]), 1e3 * (times[2] - times[1]),
        )  # fmt: skip
