"""What the page and programs ask of a demo: answers, documents, pictures and explanations.

All of it is asynchronous. Searching runs in one thread, explaining in another, as it may compile
for seconds; reading pictures in a few. Each has a bounded queue, and who comes when it is full is
told to come again.
"""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval.data.images.decoding import Encoded
from big_retrieval.demo.collection import DemoDocuments
from big_retrieval.demo.explaining import Explainer
from big_retrieval.demo.opening import Demo
from big_retrieval.demo.ways import BATCH, Kind, Way, depth_of
from big_retrieval.demo.worker import Busy, Worker
from big_retrieval.errors import UserError
from big_retrieval.sparse.listing import Listed

WAITING = 128  # searches that wait, at most
EXPLAINING = 16  # explanations that wait, at most
READING = 64  # pictures that are read or wait for it, at most
READERS = 2  # threads that read pictures
PATIENCE = 30.0  # seconds until who waits is told to come again
TERMS = 8  # of an answer that are listed
QUERY_TERMS = 10  # of a query that are listed
MOST_ANSWERS = 1000  # down to which rank answers are given
PAGE = 100  # answers at a time, at most
PREVIEW = 260  # characters of a text in a list


class Overloaded(Exception):
    """More is asked for than can be answered now."""


@dataclass(frozen=True)
class SearchQuery:
    """What is searched for.

    Attributes:
      kind: "text", "image" or "like".
      value: a text, the content of an image file, or the number of a document.
      start: answers before the first one that is wanted.
      count: answers that are wanted.
    """

    kind: Kind
    value: Any
    start: int = 0
    count: int = 10


@dataclass(frozen=True)
class FoundDocument:
    """A document that was found.

    Attributes:
      rank: its place among all, from 1 on.
      number: of the document.
      score: higher is better.
      terms: (term, part of the score, share of the score) of the `TERMS` largest.
    """

    rank: int
    number: int
    score: float
    terms: Sequence[tuple[str, float, float]] = ()


@dataclass(frozen=True)
class WayAnswers:
    """What one way found.

    Attributes:
      way: how it was searched.
      answers: best first.
      terms: the strongest terms of the query.
      more: whether further answers follow.
      encode_ms: milliseconds of encoding the query, shared by those that were encoded with it.
      search_ms: milliseconds of the search, shared in the same way.
      together: queries that were answered together.
    """

    way: Way
    answers: Sequence[FoundDocument]
    terms: Listed
    more: bool
    encode_ms: float
    search_ms: float
    together: int


class Service:
    """Answers questions about a demo.

    Args:
      demo: what is searched.

    Attributes:
      demo: the same.
      started: when, by `time.time()`.
    """

    def __init__(self, demo: Demo):
        self.demo, self.started = demo, time.time()
        self._ways = {way.key: way for way in demo.ways}
        self._explainer = Explainer(demo)
        self._searches = Worker(self._search, bound=WAITING, batch=BATCH, name="search")
        self._explanations = Worker(_call, bound=EXPLAINING, name="explain")
        self._readers = [Worker(_call, bound=READING // READERS) for _ in range(READERS)]

    def warm_up(self) -> None:
        """Compiles what searches will need."""
        for way in self.demo.ways:
            way.warm_up()

    def close(self) -> None:
        """Ends all threads."""
        for worker in (self._searches, self._explanations, *self._readers):
            worker.close()

    @property
    def waiting(self) -> int:
        """Searches that wait."""
        return self._searches.waiting

    def ways(self, kind: Kind, key: str = "") -> list[Way]:
        """The ways that read a kind of query.

        Args:
          kind: of the query.
          key: of one way; "": all.

        Raises:
          UserError: there is no such way, or none that reads this kind.
        """
        if key and key not in self._ways:
            raise UserError(f"there is no way {key!r}; there are: {', '.join(self._ways)}.")
        found = [way for way in self.demo.ways if kind in way.reads and key in ("", way.key)]
        if not found:
            what = {"text": "words", "image": "an image", "like": "the neighbours of a document"}
            raise UserError(f"{key or 'this model'} cannot search by {what[kind]}.")
        return found

    async def search(self, query: SearchQuery, key: str = "") -> list[WayAnswers]:
        """What each way finds.

        Args:
          query: what is searched for.
          key: of one way; "": all that read this kind of query.

        Raises:
          UserError: there is no such way, or the image cannot be read.
          Overloaded: too much is asked for.
        """
        ways = self.ways(query.kind, key)
        depth = depth_of(query.start + query.count + 2)  # one more, and the document itself
        jobs = [((way.key, query.kind, depth), query) for way in ways]
        return await _all(self._searches, jobs)

    async def explain(self, work: Callable[..., Any], *args: Any) -> Any:
        """Runs a method of `Explainer` in the thread of explanations.

        Raises:
          UserError: what it raises.
          Overloaded: too much is asked for.
        """
        job = functools.partial(work, self._explainer, *args)
        return await _one(self._explanations, job)

    async def picture(self, number: int) -> tuple[str, bytes] | None:
        """`DemoDocuments.picture`.

        Raises:
          Overloaded: too much is asked for.
        """
        job = functools.partial(self.demo.collection.picture, number)
        return await _one(self._readers[number % READERS], job)

    async def text(self, number: int) -> str:
        """`DemoDocuments.text`.

        Raises:
          Overloaded: too much is asked for.
        """
        job = functools.partial(self.demo.collection.text, number)
        return await _one(self._readers[number % READERS], job)

    async def previews(self, numbers: Sequence[int]) -> dict[int, str]:
        """The beginning of the text of each document: of `shown`, or longer where texts are read.

        Raises:
          Overloaded: too much is asked for.
        """
        collection = self.demo.collection
        if not collection.has_texts or collection.has_pictures:
            return {number: collection.shown[number] for number in numbers}
        job = functools.partial(_previews, collection, numbers)
        return await _one(self._readers[0], job)

    def _search(self, key: tuple[str, Kind, int], queries: Sequence[SearchQuery]) -> Sequence[Any]:
        """Answers some queries of one kind by one way; in the thread of searches."""
        name, kind, depth = key
        way = self._ways[name]
        if kind == "image" and len(queries) > 1:  # a broken one fails alone
            found = [_attempt(functools.partial(self._search, key, [each])) for each in queries]
            return [each if isinstance(each, Exception) else each[0] for each in found]
        values = [Encoded(q.value, "the image") if kind == "image" else q.value for q in queries]
        started = time.perf_counter()
        rows = way.encode(kind, values)
        encoded = time.perf_counter()
        numbers, scores = way.search(rows, depth)
        searched = time.perf_counter()
        times = (1e3 * (encoded - started), 1e3 * (searched - encoded))
        out = []
        for place, query in enumerate(queries):
            found = numbers[place], scores[place]
            out.append(_answers(way, query, rows[[place]], *found, times, len(queries)))
        return out


def _answers(
    way: Way,
    query: SearchQuery,
    row: Any,
    numbers: np.ndarray,
    scores: np.ndarray,
    times: tuple[float, float],
    together: int,
) -> WayAnswers:
    """The wanted answers of what a search found, with their terms."""
    found = [
        (number, score)
        for number, score in zip(numbers.tolist(), scores.tolist(), strict=True)
        if number >= 0 and not (query.kind == "like" and number == query.value)
    ]
    stop = query.start + query.count
    out = []
    for rank, (number, score) in enumerate(found[query.start : stop], query.start + 1):
        terms = way.terms(row, number)[:TERMS]
        parts = tuple((word, value, value / score if score else 0.0) for word, value in terms)
        out.append(FoundDocument(rank, number, score, parts))
    strongest = way.strongest(row, QUERY_TERMS)
    return WayAnswers(way, out, strongest, len(found) > stop, *times, together)


def _previews(collection: DemoDocuments, numbers: Sequence[int]) -> dict[int, str]:
    """The beginning of the text of each document, spaces laid together."""
    texts = {number: " ".join(collection.text(number).split()) for number in numbers}
    return {
        number: text if len(text) <= PREVIEW else text[:PREVIEW].rpartition(" ")[0] + " …"
        for number, text in texts.items()
    }


def _call(key: Any, jobs: Sequence[Callable[[], Any]]) -> Sequence[Any]:
    """Calls each job; an exception is the result of its job alone."""
    del key
    return [_attempt(job) for job in jobs]


def _attempt(function: Callable[[], Any]) -> Any:
    """What a function returns, or the exception that it raises."""
    try:
        return function()
    except Exception as problem:
        return problem


async def _one(worker: Worker, job: Callable[[], Any]) -> Any:
    """The result of a job of a worker that calls jobs; raises as `_all`."""
    return (await _all(worker, [(None, job)]))[0]


async def _all(worker: Worker, jobs: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Submits jobs, each with its key, and awaits their results; if one cannot be, none is.

    Raises:
      Overloaded: a queue is full, or it takes too long.
    """
    futures: list[Awaitable[Any]] = []
    try:
        for job in jobs:
            futures.append(asyncio.wrap_future(worker.submit(*job)))
        return await asyncio.wait_for(asyncio.gather(*futures), PATIENCE)
    except (Busy, TimeoutError):
        for future in futures:
            future.cancel()  # type: ignore[attr-defined]
        raise Overloaded from None
