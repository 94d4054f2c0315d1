"""Answers and explanations of a demo, for the page and for programs.

Models run in two threads, one that searches and one that explains (Grad-CAM compiles for seconds):
each answers one request after the other. A request beyond `WAITING` is rejected.
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
    """Query and the wanted ranks.

    Attributes:
      value: a text, the content of an image file, or a document index, by `kind`.
      start: number of better answers to leave out.
      count: maximum number of answers.
    """

    kind: Kind
    value: Any
    start: int = 0
    count: int = 10


@dataclass(frozen=True)
class FoundDocument:
    """Answer to a query.

    Attributes:
      rank: from 1.
      document: document index.
      score: higher is better.
      preview: beginning of the text.
      terms: (term, part of the score, share of the score), the `TERMS` largest.
    """

    rank: int
    document: int
    score: float
    preview: str
    terms: Sequence[tuple[str, float, float]] = ()


@dataclass(frozen=True)
class ModeResult:
    """Answers of one search mode.

    Attributes:
      answers: best first.
      terms: the strongest terms of the query.
      more: True if there are further answers.
      encode_ms: milliseconds of encoding the query.
      search_ms: milliseconds of the search.
    """

    mode: SearchMode
    answers: Sequence[FoundDocument]
    terms: Listed
    more: bool
    encode_ms: float
    search_ms: float


class Service:
    """Answers requests about a demo.

    Attributes:
      started: time of the start, as `time.time()`.
      waiting: number of requests that run or wait.
    """

    def __init__(self, demo: Demo):
        self.demo, self.started, self.waiting = demo, time.time(), 0
        self.explainer = Explainer(demo)
        self._searching, self._explaining = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    def warm_up(self) -> None:
        """Compiles the programs of searches."""
        for mode in self.demo.modes:
            mode.warm_up()

    def close(self) -> None:
        """Ends both threads; requests that wait are cancelled."""
        for thread in (self._searching, self._explaining):
            thread.shutdown(cancel_futures=True)

    def modes(self, kind: Kind, key: str = "") -> list[SearchMode]:
        """Returns the modes that read a kind of query, or the one with a key.

        Raises:
          UserError: there is no such mode.
        """
        keys = [mode.key for mode in self.demo.modes]
        if key and key not in keys:
            raise UserError(f"there is no mode {key!r}; there are: {', '.join(keys)}.")
        modes = [mode for mode in self.demo.modes if kind in mode.reads and key in ("", mode.key)]
        if not modes:
            noun = {"text": "words", "image": "an image", "like": "the neighbors of a document"}
            raise UserError(f"{key or 'this model'} cannot search by {noun[kind]}.")
        return modes

    async def search(self, query: SearchQuery, key: str = "") -> list[ModeResult]:
        """Searches by every mode that reads this kind of query, or by the one with a key.

        Raises:
          UserError: there is no such mode, or the image cannot be read.
          Overloaded: too many requests wait.
        """
        return await self._run(self._searching, self._search, query, self.modes(query.kind, key))

    async def explain(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a method of `explainer` in the thread that explains; raises as `search`."""
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

    def _search(self, query: SearchQuery, modes: Sequence[SearchMode]) -> list[ModeResult]:
        return [self._search_mode(query, mode) for mode in modes]

    def _search_mode(self, query: SearchQuery, mode: SearchMode) -> ModeResult:
        stop, value = query.start + query.count, query.value
        if query.kind == "image":
            value = Encoded(value, "the image")
        depth = next(x for x in DEPTHS if x >= stop + 2)  # one more, and the document itself
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
